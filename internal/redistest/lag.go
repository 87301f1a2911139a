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
type LagMeter struct{ worst atomic.Int64 }

// MeasureLag measures until the test ends.
func MeasureLag(t testing.TB) *LagMeter {
	m := &LagMeter{}
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() { m.run(quit) })
	t.Cleanup(func() { close(quit); done.Wait() })
	return m
}

func (m *LagMeter) run(quit <-chan struct{}) {
	const tick = time.Millisecond
	ticker := time.NewTimer(tick)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-quit:
			return
		case <-ticker.C:
		}
		now := time.Now()
		m.worst.Store(max(m.worst.Load(), int64(now.Sub(last)-tick)))
		last = now
		ticker.Reset(tick)
	}
}

// Allow is a bound with what the machine may have added to it so far: the caller, the
// server and some goroutine in between may each have had to wait, and more than once.
func (m *LagMeter) Allow(d time.Duration) time.Duration {
	return d + 5*time.Duration(m.worst.Load())
}
