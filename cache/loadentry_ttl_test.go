package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
)

// Entry.TTL goes before the TTL of the Source and of the Options. It is shortened as other TTLs are,
// and holds for nulls as well.
func TestALoaderSaysTheTTLOfThisValueOrNull(t *testing.T) {
	for _, test := range []struct {
		name        string
		number      int
		ttl         time.Duration
		least, most time.Duration
	}{
		{name: "value", number: 1, ttl: time.Hour, least: 54 * time.Minute, most: time.Hour},
		{name: "short value", number: 1, ttl: 10 * time.Second, least: 9 * time.Second, most: 10 * time.Second},
		{name: "value as the Source says", number: 1, least: 18 * time.Minute, most: 20 * time.Minute},
		{name: "null", ttl: 5 * time.Minute, least: 4*time.Minute + 30*time.Second, most: 5 * time.Minute},
		{name: "null as the Options say", least: 27 * time.Second, most: 30 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
				p := &pages{number: test.number, during: func(e *cache.Entry[string]) { e.TTL = test.ttl }}
				source := p.source()
				source.TTL = func(int64, string) time.Duration { return 20 * time.Minute }
				c := open(r, source, hard)
				_, _ = c.Get(r.ctx, 1)
				_, _ = c.Get(r.ctx, 1) // a null is stored at its second miss
				before := len(p.loads())
				time.Sleep(test.least - 10*time.Millisecond)
				_, _ = c.Get(r.ctx, 1)
				if n := len(p.loads()) - before; n != 0 {
					r.Errorf("after %v it is loaded", test.least)
				}
				time.Sleep(test.most - test.least + 20*time.Millisecond)
				_, _ = c.Get(r.ctx, 1)
				if n := len(p.loads()) - before; n != 1 {
					r.Errorf("%d loads after %v, want 1", n, test.most)
				}
			})
		})
	}
}

// A negative Entry.TTL: the waiting callers get the value, and Redis keeps nothing of the key, not even
// the value from before. A flood of callers is no flood of loads. Catches a value that is stored all
// the same, an old one that is still served, a lease that keeps others waiting, and callers that
// load one after another.
func TestAValueThatIsNotToBeStoredAnswersAFlood(t *testing.T) {
	for _, number := range []int{1, 0} {
		for _, c := range append([]cell{{redis: "none"}, {redis: "none", local: true}}, entryCells...) {
			t.Run(fmt.Sprint("page ", number, " ", c), func(t *testing.T) {
				inCells(t, []cell{c}, func(r *rig) { floodUnstored(r, number) })
			})
		}
	}
}

func floodUnstored(r *rig, number int) {
	const callers = 1000
	p := &pages{number: 1}
	one, other := open(r, p.source(), fallbackAfterASecond), open(r, p.source(), fallbackAfterASecond)
	one.gives(r, 1, "page 1")
	time.Sleep(3 * time.Second)
	p.change(2*number, func(e *cache.Entry[string]) {
		time.Sleep(10 * time.Millisecond)
		e.TTL = -1
	})
	before := len(p.loads())
	var waiting sync.WaitGroup
	for i := range callers { // for two seconds
		waiting.Go(func() {
			time.Sleep(time.Duration(i) * 2 * time.Millisecond)
			if number == 0 {
				one.gives404(r, 1)
			} else {
				one.gives(r, 1, "page 2")
			}
		})
	}
	waiting.Wait()
	loads, most := len(p.loads())-before, 2*1000/200 // one for each hold of 250 ms, less the jitter
	r.Logf("%d loads for %d callers", loads, callers)
	if loads < 2 || loads > most {
		r.Errorf("%d loads for %d callers, want at most %d", loads, callers, most)
	}
	if r.rdb != nil {
		if names := r.rdb.Keys(r.ctx, valueKey("*")).Val(); len(names) != 0 {
			r.Errorf("Redis has %q", names)
		}
	}
	p.change(3, nil)
	began := time.Now()
	other.gives(r, 1, "page 3")
	if took := time.Since(began); took > 0 {
		r.Errorf("another process has waited for %v", took)
	}
}

// A value with a negative Entry.TTL is served for ErrorHold and no longer, whatever the stale windows
// are: it is neither stale then nor kept for errors. Without ErrorHold only the waiting callers get it.
func TestWhatIsNotToBeStoredHasNoStaleWindows(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none"}, {redis: "none", local: true}}, func(r *rig) {
		for _, hold := range []time.Duration{200 * time.Millisecond, -1} {
			var loads atomic.Int64
			c := open(r, cache.Source[int64, string]{LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
				if e.TTL = -1; loads.Add(1) > 2 {
					return "", errBroken
				}
				return "page", nil
			}}, func(o *cache.Options) { o.Rebuild.ErrorHold, o.Name = hold, fmt.Sprint("hold ", int64(hold)) })
			synctest.Wait() // until messages arrive: that they do drops what was kept before
			c.gives(r, 1, "page")
			if hold > 0 {
				c.gives(r, 1, "page")
				time.Sleep(time.Second)
			}
			if n := loads.Load(); n != 1 {
				r.Errorf("%d loads", n)
			}
			c.gives(r, 1, "page")
			if n := loads.Load(); n != 2 {
				r.Errorf("%d loads, want another after %v", n, hold)
			}
			time.Sleep(time.Second)
			if got, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
				r.Errorf("when the load fails: %v, %v", got, err)
			}
		}
	})
}
