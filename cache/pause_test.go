package cache_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A lagMeter tells how far this process fell behind the clock while a test with a
// bound in real time was running: on a machine with other work to do, goroutines
// wait for a processor, and that is not what the test is about.
type lagMeter struct {
	worst atomic.Int64
	quit  chan struct{}
	done  sync.WaitGroup
}

func measureLag(t testing.TB) *lagMeter {
	m := startLagMeter()
	t.Cleanup(m.stop)
	return m
}

func startLagMeter() *lagMeter {
	m := &lagMeter{quit: make(chan struct{})}
	m.done.Go(func() {
		for last := time.Now(); ; {
			select {
			case <-m.quit:
				return
			case <-time.After(time.Millisecond):
			}
			now := time.Now()
			if lag := int64(now.Sub(last) - time.Millisecond); lag > m.worst.Load() {
				m.worst.Store(lag)
			}
			last = now
		}
	})
	return m
}

func (m *lagMeter) stop() {
	close(m.quit)
	m.done.Wait()
}

// allow is a bound with what the machine may have added to it: the caller, the
// server and a goroutine in between may each have had to wait.
func (m *lagMeter) allow(d time.Duration) time.Duration {
	return d + 3*time.Duration(m.worst.Load())
}
