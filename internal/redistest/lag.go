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
	quit  chan struct{}
	done  sync.WaitGroup
}

// tick is how often a LagMeter wants to run.
const tick = time.Millisecond

// MeasureLag measures until the test ends.
func MeasureLag(t testing.TB) *LagMeter {
	m := StartLagMeter()
	t.Cleanup(m.Stop)
	return m
}

// StartLagMeter measures until Stop, in a process that has no test.
func StartLagMeter() *LagMeter {
	m := &LagMeter{begun: time.Now(), quit: make(chan struct{})}
	m.done.Go(m.run)
	return m
}

// Stop ends the measuring.
func (m *LagMeter) Stop() {
	close(m.quit)
	m.done.Wait()
}

func (m *LagMeter) run() {
	ticker := time.NewTimer(tick)
	defer ticker.Stop()
	for {
		select {
		case <-m.quit:
			return
		case <-ticker.C:
		}
		m.worst.Store(int64(m.Worst()))
		m.last.Store(int64(time.Since(m.begun)))
		ticker.Reset(tick)
	}
}

// Worst is the longest pause so far. One may be over for the caller before the meter has run again,
// so what has passed since it ran last counts too.
func (m *LagMeter) Worst() time.Duration {
	return time.Duration(max(m.worst.Load(), int64(time.Since(m.begun)-tick)-m.last.Load()))
}

// Allow is a bound with what the machine may have added to it so far. The caller, the
// server and goroutines in between may each have had to wait, and more than once; pauses
// of other processes are not seen from here.
func (m *LagMeter) Allow(d time.Duration) time.Duration {
	return d + 100*time.Millisecond + 10*m.Worst()
}
