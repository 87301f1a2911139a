package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/internal/redistest"
)

// auditing runs an Audit beside the test, and collects the keys that it accuses.
func auditing(r *rig, c *probe[int64, string], o audit.Options[int64, string]) (accused func() map[int64]int, stop func()) {
	var mu sync.Mutex
	found := map[int64]int{}
	o.Stale = func(s audit.StaleValue[int64, string]) {
		mu.Lock()
		defer mu.Unlock()
		found[s.Key]++
		if s.Cached == s.Source || s.Age < 0 {
			r.Errorf("accused: %+v", s)
		}
	}
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { done <- audit.Run(ctx, c.Cache, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.Errorf("Run returned %v", err)
		}
	})
	r.Cleanup(stop)
	return func() map[int64]int {
		mu.Lock()
		defer mu.Unlock()
		copied := map[int64]int{}
		for key, n := range found {
			copied[key] = n
		}
		return copied
	}, stop
}

// A writer forgets one invalidation in a hundred. All of these are found, no other is
// accused, and what is found is healed. The values have tags. Catches one that is told from its successor by what
// is made anew whenever it is decoded.
func TestAuditFindsAWriterThatForgets(t *testing.T) {
	inCells(t, []cell{{redis: "real"}, {redis: "real", local: true}, {redis: "none", local: true}}, func(r *rig) {
		const keys = 200
		source := newRows(r)
		for key := range int64(keys) {
			source.put(key, "v1")
		}
		c := open(r, source.tagged())
		writer := c
		if r.rdb != nil {
			writer = open(r, source.tagged())
		}
		accused, _ := auditing(r, c, audit.Options[int64, string]{Rate: 1000, Settle: 500 * time.Millisecond, Heal: true})
		// It is told of reads only while it runs, and what the local tier has by then is not read again.
		r.eventually("it runs", func() bool {
			if err := c.Invalidate(r.ctx, 0); err != nil {
				r.Fatal(err)
			}
			c.gives(r, 0, "v1") // beyond the local tier
			return c.Stats().Audit.Compared > 0
		})
		for key := range int64(keys) {
			c.gives(r, key, "v1")
		}
		forgotten := map[int64]bool{}
		for key := range int64(keys) {
			if key%100 == 7 {
				forgotten[key] = true
				continue
			}
			source.put(key, "v2")
			if err := writer.Invalidate(r.ctx, key); err != nil {
				r.Fatal(err)
			}
		}
		for key := range forgotten {
			c.gives(r, key, "v1") // an invalidation ends one in 16,384 other local values too
			source.put(key, "v2")
		}
		r.eventually("all are found", func() bool {
			for key := range int64(keys) {
				_, _ = c.Get(r.ctx, key)
			}
			time.Sleep(10 * time.Millisecond)
			return len(accused()) >= len(forgotten)
		})
		for key := range accused() {
			if !forgotten[key] {
				r.Errorf("%d is accused", key)
			}
		}
		r.eventually("they are healed", func() bool { return c.Stats().Audit.Healed >= uint64(len(forgotten)) })
		for key := range forgotten {
			c.gives(r, key, "v2")
		}
		if s := c.Stats().Audit; s.Compared == 0 || s.Stale != uint64(len(forgotten)) || s.StaleAge.Count() != s.Stale || s.Failed != 0 {
			r.Errorf("got %+v", s)
		}
	})
}

// Writers that forget nothing are never accused, however their writes and the looks of an
// Audit fall together. Defect: what differs at the first look is accused.
func TestAuditAccusesNobodyInRaces(t *testing.T) {
	t.Parallel()
	length := redistest.Length(5*time.Second, time.Hour)
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 0, 1, 2, 3, 4, 5, 6, 7)
	a, b := open(r, source.source()), open(r, source.source())
	accused, stop := auditing(r, a, audit.Options[int64, string]{Rate: 1000})
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithTimeout(r.ctx, length)
	defer cancel()
	var mu sync.Mutex // one writer of a key at a time: v<n> says which write it was
	for i := range 4 {
		c := []*probe[int64, string]{a, b}[i%2]
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key, value := rand.Int64N(8), "v"+strconv.Itoa(rand.Int())
				var err error
				if mu.Lock(); n%2 == 0 {
					err = c.Write(r.ctx, []int64{key}, func(context.Context) error {
						source.put(key, value)
						time.Sleep(rand.N(5 * time.Millisecond))
						return nil
					})
				} else {
					source.put(key, value)
					time.Sleep(rand.N(5 * time.Millisecond))
					err = c.Invalidate(r.ctx, key)
				}
				mu.Unlock()
				if err != nil {
					r.Error(err)
				}
				for range 5 {
					_, _ = c.Get(r.ctx, rand.Int64N(8))
					time.Sleep(rand.N(3 * time.Millisecond))
				}
			}
		})
	}
	all.Wait()
	stop()
	s := a.Stats().Audit
	if found := accused(); len(found) > 0 || s.Stale > 0 {
		r.Errorf("accused: %v", found)
	}
	if s.Raced == 0 || s.Compared < 100 {
		r.Errorf("no race: %+v", s)
	}
	r.Logf("%+v", s)
}

func TestAuditRefusesWhatCannotWork(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		source, none := newRows(r), audit.Options[int64, string]{}
		c := open(r, source.source())
		_, stop := auditing(r, c, none)
		key := int64(0)
		r.eventually("it runs", func() bool {
			key++
			source.put(key, "v1")
			c.gives(r, key, "v1") // a load, which it may look at
			return c.Stats().Audit.Compared > 0
		})
		for says, o := range map[string]audit.Options[int64, string]{
			"runs already": none, "Rate": {Rate: -1}, "Settle": {Settle: -1},
		} {
			if err := audit.Run(r.ctx, c.Cache, o); err == nil || !strings.Contains(err.Error(), says) {
				r.Errorf("%+v: %v", o, err)
			}
		}
		stop()
		done := make(chan error, 1)
		go func() { done <- audit.Run(r.ctx, c.Cache, none) }()
		_ = c.Close()
		if err := <-done; err != cache.ErrClosed {
			r.Errorf("got %v", err)
		}
	})
}

// What Audit passes over, and what it does not do: it heals only if it is asked to, accuses
// nobody of a value that is right again, and does not look at nulls, at values past their
// TTL, or at those from before a Clear.
func TestAuditComparesWhatIsServed(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r *rig, source *rows, c *probe[int64, string]) // after the value was read
		later  func(r *rig, source *rows, c *probe[int64, string]) // before the second look
		want   cache.AuditStats
	}{
		"stale": {
			change: func(_ *rig, source *rows, _ *probe[int64, string]) { source.put(1, "v2") },
			want:   cache.AuditStats{Stale: 1},
		},
		"gone": {
			change: func(_ *rig, source *rows, _ *probe[int64, string]) { source.remove(1) },
			want:   cache.AuditStats{Stale: 1},
		},
		"right again": {
			change: func(_ *rig, source *rows, _ *probe[int64, string]) { source.put(1, "v2") },
			later:  func(_ *rig, source *rows, _ *probe[int64, string]) { source.put(1, "v1") },
			want:   cache.AuditStats{Raced: 1},
		},
		"invalidated, and written again": { // the second write is on its way out
			change: func(_ *rig, source *rows, _ *probe[int64, string]) { source.put(1, "v2") },
			later: func(r *rig, source *rows, c *probe[int64, string]) {
				if err := c.Invalidate(r.ctx, 1); err != nil {
					r.Error(err)
				}
				c.gives(r, 1, "v2")
				time.Sleep(time.Millisecond) // the local tier shows it
				source.put(1, "v3")
			},
			want: cache.AuditStats{Raced: 1},
		},
		"past its TTL": {change: func(_ *rig, source *rows, _ *probe[int64, string]) {
			time.Sleep(time.Minute)
			source.put(1, "v2")
		}},
		"cleared": {change: func(r *rig, source *rows, c *probe[int64, string]) {
			if err := c.Clear(r.ctx); err != nil {
				r.Error(err)
			}
			source.put(1, "v2")
		}},
		"a null": {change: func(r *rig, source *rows, c *probe[int64, string]) {
			source.remove(1)
			if err := c.Invalidate(r.ctx, 1); err != nil {
				r.Error(err)
			}
			c.gives404(r, 1)
			c.gives404(r, 1) // in Redis now
			source.put(1, "v2")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
				source := newRows(r, 1)
				c := open(r, source.source(), ttl(time.Minute))
				accused, stop := auditing(r, c, audit.Options[int64, string]{Rate: 10, Settle: time.Second})
				synctest.Wait() // until it runs: only then is it told of reads
				c.gives(r, 1, "v1")
				time.Sleep(time.Millisecond) // the local tier shows it
				test.change(r, source, c)
				time.Sleep(500 * time.Millisecond)
				if test.later != nil {
					test.later(r, source, c)
				}
				time.Sleep(900 * time.Millisecond) // one second look, whatever the jitter
				stop()
				s := c.Stats().Audit
				if s.Stale > 0 != (test.want.Stale > 0) || s.Raced > 0 != (test.want.Raced > 0) || s.Failed != 0 || s.Healed != 0 {
					r.Errorf("got %+v", s)
				}
				if n := accused()[1]; uint64(n) != s.Stale {
					r.Errorf("%d are told, %d counted", n, s.Stale)
				}
			})
		})
	}
}

// The functions of its user may panic.
func TestAuditGoesOnAfterAPanic(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		c := open(r, newRows(r, 1).source())
		panics := 3
		_, stop := auditing(r, c, audit.Options[int64, string]{Equal: func(a, b string) bool {
			if panics--; panics >= 0 {
				panic("no such luck")
			}
			return a == b
		}})
		synctest.Wait()
		c.gives(r, 1, "v1")
		time.Sleep(10 * time.Second)
		stop()
		if s := c.Stats().Audit; s.Failed != 3 || s.Compared == 0 {
			r.Errorf("got %+v", s)
		}
	})
}

// Audit costs the source what it says: Rate loads a second, of the breaker's background
// class, which leave the places to those who wait.
func TestAuditLoadsAtItsRateInTheBackground(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		var classes []bool
		var mu sync.Mutex
		c := open(r, source.source(), func(o *cache.Options) {
			o.Hooks.Load = func(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
				mu.Lock()
				defer mu.Unlock()
				classes = append(classes, op.Background)
				return ctx, nil
			}
		})
		_, stop := auditing(r, c, audit.Options[int64, string]{Rate: 5})
		synctest.Wait()
		c.gives(r, 1, "v1")
		source.forget()
		time.Sleep(20 * time.Second)
		stop()
		if n := source.loads(1); n < 80 || n > 130 || source.loads(2) != 0 {
			r.Errorf("%d loads in 20 seconds at a rate of 5, and %d of a key that nobody reads", n, source.loads(2))
		}
		mu.Lock()
		defer mu.Unlock()
		for i, background := range classes {
			if background != (i > 0) { // the first is the Get's
				r.Errorf("load %d is in the background: %v", i, background)
			}
		}
	})
}
