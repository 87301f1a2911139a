package lock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// There are always callers who wait, and none waits as long as it takes until the next bid is
// due. Catches a leader that begins that time anew: then nobody bids, and the lock stays free
// for as long as the traffic lasts.
func TestAFreeLockIsTakenThoughEachCallerLeavesSoon(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		patience, every time.Duration // of the callers
		lives           bool          // the holder, who unlocks when its process would count the others as dead
		deaf            bool          // no message comes
	}{
		"its holder is dead":                 {patience: 500 * time.Millisecond, every: 100 * time.Millisecond},
		"its holder unlocks":                 {patience: 500 * time.Millisecond, every: 100 * time.Millisecond, lives: true},
		"its holder is dead, nobody is told": {patience: 18 * time.Millisecond, every: time.Millisecond, deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overBoth(t, func(t *testing.T, s *backend) {
				if test.deaf && s.Server == nil {
					t.Skip("no message is lost within a process")
				}
				const held = 4 * time.Second // a process without a bid counts as dead after three
				holder := s.open(t, lock.Options{Lease: held, NoRenewal: !test.lives})
				if test.deaf {
					if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-subscribe").Err(); err != nil {
						t.Fatal(err)
					}
				}
				l := s.open(t, lock.Options{})
				if !test.deaf {
					redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
				}
				gate := must(t)(holder.Lock(t.Context(), "a"))
				begin := time.Now()
				if test.lives {
					time.AfterFunc(held, func() { _ = gate.Unlock(context.Background()) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), held+time.Second+slack)
				defer cancel()
				var all sync.WaitGroup
				defer all.Wait()
				defer cancel()
				got := make(chan *lock.Lease, 1)
				callers := time.NewTicker(test.every)
				defer callers.Stop()
				for {
					select {
					case lease := <-got:
						t.Logf("taken after %v", time.Since(begin))
						unlock(t, lease)
						return
					case <-ctx.Done():
						t.Fatalf("nobody has got it %v after it was free", time.Since(begin)-held)
					case <-callers.C:
					}
					all.Go(func() {
						short, leave := context.WithTimeout(ctx, test.patience)
						defer leave()
						lease, err := l.Lock(short, "a")
						switch {
						case err == nil:
							select {
							case got <- lease:
							default:
								unlock(t, lease)
							}
						case !errors.Is(err, lock.ErrNotAcquired):
							t.Error(err)
						}
					})
				}
			})
		})
	}
}

// pass has n goroutines wait for the lock for a moment each, until ctx ends.
func (c *crowd) pass(ctx context.Context, t *testing.T, all *sync.WaitGroup, l *lock.Locker, n int) {
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				short, leave := context.WithTimeout(ctx, rand.N(100*time.Millisecond))
				begin := time.Now()
				lease, err := l.Lock(short, "crowd")
				leave()
				if err == nil {
					c.enter(t, lease, time.Since(begin))
					c.inside.Add(-1)
					err = lease.Unlock(context.Background())
				}
				if err != nil && ctx.Err() == nil && !errors.Is(err, lock.ErrNotAcquired) {
					c.fail(t, err)
				}
			}
		})
	}
}
