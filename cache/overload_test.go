package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// With the fixed wait of 200 ms four in five of 2,000 keys failed.
func TestAColdStartFailsNobody(t *testing.T) {
	for _, keys := range []int64{500, 2000, 5000} {
		for _, c := range []cell{{redis: "mini", local: true, breaker: true}, {redis: "none", local: true, breaker: true}} {
			if keys > 2000 && c.redis == "mini" {
				continue // 5,000 connections to miniredis take minutes
			}
			t.Run(fmt.Sprintf("%d keys, %v", keys, c), func(t *testing.T) {
				inCells(t, []cell{c}, func(r *rig) {
					source := newRows(r, span(0, keys)...)
					source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
					p := open(r, source.source())
					coldStart(r, p, keys)
					if n := source.all(); n != int(keys) || source.allAtOnce() > 64 {
						r.Errorf("%d loads, %d at one time", n, source.allAtOnce())
					}
				})
			})
		}
	}
}

// coldStart reads keys at once, each with a deadline of 10 s.
func coldStart(r *rig, p *probe[int64, string], keys int64) {
	r.Helper()
	var calls sync.WaitGroup
	began := time.Now()
	for key := range keys {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
			defer cancel()
			if got, err := p.Get(ctx, key); err != nil || got != "v1" {
				r.Errorf("Get(%d): %q, %v", key, got, err)
			}
		})
	}
	calls.Wait()
	s := p.Stats()
	r.Logf("%d keys in %v; waited %d, %v each", keys, time.Since(began), s.Breaker.Waited, s.Breaker.WaitTime/time.Duration(max(s.Breaker.Waited, 1)))
	if s.Degraded > 0 || s.Rebuild.Outages > 0 || s.Errors > 0 {
		r.Errorf("%+v", s)
	}
}

// The same with a server, whose client has ten connections a processor.
func TestAColdStartWithAServerFailsNobody(t *testing.T) {
	t.Parallel()
	keys := int64(redistest.Pick(500, 2000))
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true, breaker: true})
	source := newRows(r, span(0, keys)...)
	source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
	coldStart(r, open(r, source.source()), keys)
}

// The database takes ten times as long and has twice the load that it can serve. Half
// of the readers find a value past its TTL, and half find nothing.
func TestUnderOverloadWhoeverHoldsSomethingAnswersAndOthersHearAtOnce(t *testing.T) {
	const old, patience, length = 500, 2 * time.Second, 6 * time.Second
	const capacity = 64 / 0.5 // a second
	for _, c := range []cell{{redis: "mini", local: true, breaker: true}} {
		t.Run(c.String(), func(t *testing.T) {
			inCells(t, []cell{c}, func(r *rig) {
				source := newRows(r, span(0, 20_000)...)
				p := open(r, source.source(), func(o *cache.Options) {
					o.TTL, o.StaleWhileRevalidate = time.Minute, -1
					o.SoftTimeout = 200 * time.Millisecond // else the slow database is waited for
				})
				for key := range int64(old) {
					p.gives(r, key, "v1")
				}
				time.Sleep(2 * time.Minute)
				source.slowly(func(context.Context, int64) error { time.Sleep(500 * time.Millisecond); return nil })

				var mu sync.Mutex
				var calls sync.WaitGroup
				served, asked, late := 0, 0, 0
				rng, began := rand.New(rand.NewPCG(1, 2)), time.Now()
				for n := int64(0); time.Since(began) < length; n++ {
					time.Sleep(time.Duration(rng.ExpFloat64() / (4 * capacity) * float64(time.Second)))
					stale := n%2 == 0
					key := old + n
					if stale {
						key = n / 2 % old
					}
					steady := time.Since(began) > 2*time.Second
					calls.Go(func() {
						ctx, cancel := context.WithTimeout(r.ctx, patience)
						defer cancel()
						called := time.Now()
						_, err := p.Get(ctx, key)
						took := time.Since(called)
						mu.Lock()
						defer mu.Unlock()
						switch {
						case stale && (err != nil || took > 250*time.Millisecond):
							r.Errorf("with an old value: %v after %v", err, took)
						case stale:
						case err == nil && took <= patience:
							if served++; steady {
								asked++
							}
						case steady:
							asked++
							if !errors.Is(err, cache.ErrOverloaded) || !errors.Is(err, breaker.ErrLimited) {
								r.Errorf("without: %v", err)
							}
							if took > 10*time.Millisecond {
								late++
							}
						}
					})
				}
				calls.Wait()
				r.eventually("all loads have ended", func() bool { return p.Stats().Breaker.Running == 0 })
				s := p.Stats()
				goodput := float64(s.Breaker.Successes-old) / (capacity * length.Seconds())
				r.Logf("%d served; %d of %d without an old value heard no after more than 10 ms; the database did %.0f %% of what it can; %+v",
					served, late, asked, 100*goodput, s.Breaker)
				if goodput < 0.9 || late > 0 || source.allAtOnce() > 64 {
					r.Errorf("%d at one time", source.allAtOnce())
				}
			})
		})
	}
}
