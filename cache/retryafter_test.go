package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
)

// A resting is the error of a source that wants to be left alone.
type resting struct{ rest time.Duration }

func (b resting) Error() string { return "too many requests" }

func (b resting) RetryAfter() time.Duration {
	if b.rest == 0 {
		panic("no rest")
	}
	return b.rest
}

// overwhelmed is a source that fails with an error, by each kind of loader, and notes when
// it was asked.
type overwhelmed struct {
	mu    sync.Mutex // guards what follows
	err   error      // nil: it does not fail
	asked []time.Time
}

func (s *overwhelmed) load(context.Context, int64) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Now())
	return "v", s.err
}

func (s *overwhelmed) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.asked = err, nil
}

func (s *overwhelmed) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.asked...)
}

func (s *overwhelmed) sources() map[string]cache.Source[int64, string] {
	return map[string]cache.Source[int64, string]{
		"Load": {Load: s.load},
		"LoadMany": {LoadMany: func(ctx context.Context, keys []int64) (map[int64]string, error) {
			value, err := s.load(ctx, keys[0])
			return map[int64]string{keys[0]: value}, err
		}},
		"LoadEntry": {LoadEntry: func(ctx context.Context, key int64, _ *cache.Entry[string]) (string, error) {
			return s.load(ctx, key)
		}},
	}
}

// A source that says when to come again is not asked before, by whatever loader, and callers
// get its error meanwhile. Catches an error that is held for the 250 ms of others, and one that
// is not recognized when it is wrapped.
func TestASourceIsLeftAloneForAsLongAsItAsks(t *testing.T) {
	for _, loader := range []string{"Load", "LoadMany", "LoadEntry"} {
		t.Run(loader, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true, breaker: true}, {redis: "none", local: true}}, func(r *rig) {
				s := &overwhelmed{err: fmt.Errorf("source: %w", resting{10 * time.Second})}
				c := open(r, s.sources()[loader])
				for range 150 {
					if _, err := c.Get(r.ctx, 1); !errors.As(err, &resting{}) {
						r.Errorf("got %v", err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				asked := s.times()
				if len(asked) != 2 {
					r.Fatalf("the source was asked %d times in 15 s", len(asked))
				}
				if rest := asked[1].Sub(asked[0]); rest < 10*time.Second || rest > 12100*time.Millisecond {
					r.Errorf("it was left alone for %v", rest)
				}
			})
		})
	}
}

// After a write the load may succeed, whoever has written.
func TestAnInvalidationEndsTheRestOfASource(t *testing.T) {
	for name, end := range map[string]func(r *rig, c, other *probe[int64, string]) error{
		"Invalidate":           func(r *rig, c, _ *probe[int64, string]) error { return c.Invalidate(r.ctx, 1) },
		"Invalidate elsewhere": func(r *rig, _, other *probe[int64, string]) error { return other.Invalidate(r.ctx, 1) },
		"Clear":                func(r *rig, c, _ *probe[int64, string]) error { return c.Clear(r.ctx) },
		"Clear elsewhere":      func(r *rig, _, other *probe[int64, string]) error { return other.Clear(r.ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
				s := &overwhelmed{err: resting{time.Minute}}
				c, other := open(r, s.sources()["Load"]), open(r, s.sources()["Load"])
				time.Sleep(2 * time.Second) // until messages arrive
				if _, err := c.Get(r.ctx, 1); err == nil {
					r.Error("no error")
				}
				s.fail(nil)
				time.Sleep(5 * time.Second)
				if _, err := c.Get(r.ctx, 1); err == nil {
					r.Error("the error is not held")
				}
				r.do(end(r, c, other))
				synctest.Wait()
				c.gives(r, 1, "v")
			})
		})
	}
}

// While an old value is served, its refreshes leave the source alone too. Catches one every
// 250 ms, for as long as the value is stale.
func TestARefreshLeavesTheSourceAloneForAsLongAsItAsks(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		s := &overwhelmed{}
		c := open(r, s.sources()["Load"], staleAfterASecond)
		c.gives(r, 1, "v")
		pastTTL()
		s.fail(resting{10 * time.Second})
		for range 250 {
			c.gives(r, 1, "v")
			time.Sleep(100 * time.Millisecond)
		}
		asked := s.times()
		if len(asked) < 2 || len(asked) > 3 {
			r.Errorf("the source was asked %d times in 25 s", len(asked))
		}
		for i := 1; i < len(asked); i++ {
			if rest := asked[i].Sub(asked[i-1]); rest < 10*time.Second {
				r.Errorf("it was left alone for %v", rest)
			}
		}
	})
}

// Sixty-four callers want a key that goes on to fail, or one that is stale and whose refreshes fail:
// its load runs after 250 ms, then 500 ms, up to every four seconds. Catches one that runs four times a
// second for ever: 240 loads in this minute. When the source is well again, so is the key, and its next
// failure is held as the first was.
func TestAKeyThatGoesOnFailingIsLoadedLessAndLess(t *testing.T) {
	for _, stale := range []bool{false, true} {
		t.Run(fmt.Sprint("stale: ", stale), func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
				s := &overwhelmed{}
				c := open(r, s.sources()["Load"], staleAfterASecond)
				if stale {
					c.gives(r, 1, "v")
					pastTTL()
				}
				fails := func(length time.Duration) (asked []time.Time) {
					s.fail(errBroken)
					var callers sync.WaitGroup
					for i := range 64 {
						callers.Go(func() {
							time.Sleep(time.Duration(i) * 10 * time.Millisecond)
							for began := time.Now(); time.Since(began) < length; {
								if _, err := c.Get(r.ctx, 1); (err == nil) != stale {
									r.Errorf("got %v", err)
								}
								time.Sleep(640 * time.Millisecond)
							}
						})
					}
					callers.Wait()
					asked, most := s.times(), 400*time.Millisecond
					if stale && r.local { // there a stale value is for a second before somebody looks for a newer one
						most = 1100 * time.Millisecond
					}
					if len(asked) < 2 || asked[1].Sub(asked[0]) > most {
						r.Errorf("of %d loads, the second came after %v", len(asked), most)
					}
					return asked
				}
				if n := len(fails(time.Minute)); n < 14 || n > 25 {
					r.Errorf("%d loads in a minute", n)
				}
				s.fail(nil)
				for range 50 {
					_, _ = c.Get(r.ctx, 1)
					time.Sleep(100 * time.Millisecond)
				}
				if len(s.times()) == 0 {
					r.Fatal("a source that is well again is not asked")
				}
				c.gives(r, 1, "v")
				synctest.Wait() // for its refresh, which would bring the value back
				r.do(c.Invalidate(r.ctx, 1))
				if stale {
					c.gives(r, 1, "v")
				}
				pastTTL()
				fails(3 * time.Second)
			})
		})
	}
}

// A method RetryAfter is the user's. One that panics is a panic of the loader, and nobody waits
// for ever.
func TestAPanicOfRetryAfterIsThatOfTheLoader(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		c := open(r, (&overwhelmed{err: resting{}}).sources()["Load"])
		var panicked *cache.PanicError
		if _, err := c.Get(r.ctx, 1); !errors.As(err, &panicked) || fmt.Sprint(panicked.Value) != "no rest" {
			r.Errorf("got %v", err)
		}
	})
}
