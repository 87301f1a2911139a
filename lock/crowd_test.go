package lock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A crowd contends for one lock for as long as its test wants, and sees to it that
// there is one holder at a time and that fences grow.
type crowd struct {
	pause    time.Duration // the longest time inside; zero: half a millisecond
	inside   atomic.Int32
	mu       sync.Mutex
	last     int64 // fence
	served   int
	since    time.Time // of the last service
	gap      time.Duration
	longest  time.Duration // that one waited
	failures int
}

// join has n goroutines contend until ctx ends.
func (c *crowd) join(ctx context.Context, t *testing.T, all *sync.WaitGroup, l *lock.Locker, n int) {
	longest := c.pause
	if longest == 0 {
		longest = 500 * time.Microsecond
	}
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				err := l.Do(ctx, "crowd", func(held context.Context, s *lock.Lease) error {
					c.enter(t, s, time.Since(begin))
					time.Sleep(rand.N(longest))
					c.inside.Add(-1)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					c.fail(t, err)
				}
			}
		})
	}
}

func (c *crowd) enter(t *testing.T, s *lock.Lease, waited time.Duration) {
	if n := c.inside.Add(1); n != 1 {
		t.Errorf("%d holders at a time", n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Fence() <= c.last {
		t.Errorf("fence %d after %d", s.Fence(), c.last)
	}
	now := time.Now()
	if !c.since.IsZero() {
		c.gap = max(c.gap, now.Sub(c.since))
	}
	c.last, c.since, c.longest = s.Fence(), now, max(c.longest, waited)
	c.served++
}

// fail takes an error of the lock: a server that is not there may be told of, a
// lease that was lost may not.
func (c *crowd) fail(t *testing.T, err error) {
	if errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("the crowd: %v", err)
	}
	c.mu.Lock()
	c.failures++
	c.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
}

// progress waits until the crowd has been served so many times more.
func (c *crowd) progress(t *testing.T, n int) {
	t.Helper()
	count := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.served }
	from := count()
	redistest.Eventually(t, 30*time.Second, "the crowd is served", func() bool { return count() >= from+n })
}
