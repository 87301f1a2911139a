package redistest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A LagMeter tells how far this process falls behind the clock. A test with a bound
// in real time starts one with [MeasureLag]: on a machine with other work to do
// goroutines wait for a processor, and that is not what the test is about.
type LagMeter struct {
	begun time.Time
	last  atomic.Int64 // when it ran, since begun
	worst atomic.Int64
}

// tick is how often a LagMeter wants to run.
const tick = time.Millisecond

// MeasureLag measures until the test ends.
func MeasureLag(t testing.TB) *LagMeter {
	m := &LagMeter{begun: time.Now()}
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() { m.run(quit) })
	t.Cleanup(func() { close(quit); done.Wait() })
	return m
}

func (m *LagMeter) run(quit <-chan struct{}) {
	ticker := time.NewTimer(tick)
	defer ticker.Stop()
	for {
		select {
		case <-quit:
			return
		case <-ticker.C:
		}
		m.worst.Store(m.lag())
		m.last.Store(int64(time.Since(m.begun)))
		ticker.Reset(tick)
	}
}

// lag is the worst so far. A pause may be over for the caller before the meter has run again, so
// what has passed since it ran last counts too.
func (m *LagMeter) lag() int64 {
	return max(m.worst.Load(), int64(time.Since(m.begun)-tick)-m.last.Load())
}

// Allow is a bound with what the machine may have added to it so far: the caller, the
// server and some goroutine in between may each have had to wait, and more than once.
func (m *LagMeter) Allow(d time.Duration) time.Duration {
	return d + 5*time.Duration(m.lag())
}
