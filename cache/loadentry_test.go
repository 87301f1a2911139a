package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// pages is a source that knows whether what its caller has is the newest.
type pages struct {
	mu     sync.Mutex // guards what follows
	number int        // of the page that all keys have; 0: there is none
	asked  []seen     // what each load was given
	bodies int        // loads that brought a page
	during func(e *cache.Entry[string])
}

// A seen is what a load was given.
type seen struct {
	prev, version string
	primary       bool
}

func (p *pages) load(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
	p.mu.Lock()
	given := seen{version: e.Version, primary: e.Primary}
	if e.Prev != nil {
		given.prev = *e.Prev
	}
	p.asked = append(p.asked, given)
	page, during := fmt.Sprint("page ", p.number), p.during
	p.mu.Unlock()
	if during != nil {
		during(e)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case page == "page 0":
		return "", cache.ErrNotFound
	case given.prev != "" && given.version == page:
		return "", fmt.Errorf("source: %w", cache.ErrNotModified)
	}
	p.bodies++
	e.Version = page
	return page, nil
}

func (p *pages) source() cache.Source[int64, string] {
	return cache.Source[int64, string]{LoadEntry: p.load, Tags: func(int64, string) []string { return []string{"page"} }}
}

// change sets the page, and what loads do once they have read it.
func (p *pages) change(number int, during func(*cache.Entry[string])) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.during = number, during
}

func (p *pages) loads() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]seen(nil), p.asked...)
}

// were fails the test unless the loads were given this.
func (p *pages) were(r *rig, want ...seen) {
	r.Helper()
	synctest.Wait()
	if got := p.loads(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("the loads were given %+v, want %+v", got, want)
	}
}

var entryCells = []cell{{redis: "mini"}, {redis: "mini", local: true}}

// unjittered is for tests that look at the moment at which a TTL ends.
func unjittered(o *cache.Options) { o.Jitter, o.EarlyRefresh = -1, -1 }

// A source that says that a page has not changed sends none, and the page has another life. The
// version comes with it each time. Catches a Prev or a version that is not stored again with
// the page, and a life that is not prolonged.
func TestAValueThatHasNotChangedGetsAnotherLife(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1}
		c := open(r, p.source(), ttl(time.Minute), unjittered)
		c.gives(r, 1, "page 1")
		want := []seen{{}}
		for range 5 {
			time.Sleep(62 * time.Second) // beyond the second for which the local tier has what is stale
			if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "page 1" || !got.Stale {
				r.Errorf("got %+v, %v, want the page, stale", got, err)
			}
			want = append(want, seen{prev: "page 1", version: "page 1"})
			p.were(r, want...)
			time.Sleep(2 * time.Second)
			if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "page 1" || got.Stale || got.Age > 3*time.Second {
				r.Errorf("after the refresh: got %+v, %v, want the page, as if loaded", got, err)
			}
		}
		p.change(2, nil)
		time.Sleep(62 * time.Second)
		c.gives(r, 1, "page 1")
		time.Sleep(2 * time.Second)
		c.gives(r, 1, "page 2")
		if p.bodies != 2 {
			r.Errorf("%d pages were sent, want 2", p.bodies)
		}
	})
}

// A load gets no Prev that anybody has ended or that nobody can vouch for. Catches a Prev that
// is taken from what the caller has read, or from the local tier.
func TestThereIsNoPrevOfWhatHasEnded(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(r *rig, c, other *probe[int64, string])
		prev bool
	}{
		"nothing happens":      {end: func(*rig, *probe[int64, string], *probe[int64, string]) {}, prev: true},
		"Invalidate":           {end: func(r *rig, c, _ *probe[int64, string]) { r.do(c.Invalidate(r.ctx, 1)) }},
		"Invalidate elsewhere": {end: func(r *rig, _, other *probe[int64, string]) { r.do(other.Invalidate(r.ctx, 1)) }},
		"Clear":                {end: func(r *rig, c, _ *probe[int64, string]) { r.do(c.Clear(r.ctx)) }},
		"ClearTags":            {end: func(r *rig, c, _ *probe[int64, string]) { r.do(c.ClearTags(r.ctx, "page")) }},
		"ClearTags elsewhere":  {end: func(r *rig, _, other *probe[int64, string]) { r.do(other.ClearTags(r.ctx, "page")); synctest.Wait() }},
		"Clear elsewhere":      {end: func(r *rig, _, other *probe[int64, string]) { r.do(other.Clear(r.ctx)); synctest.Wait() }},
		"Expire": {end: func(r *rig, _, _ *probe[int64, string]) {
			for _, name := range r.rdb.Keys(r.ctx, valueKey("*")).Val() { // the mark in the header
				r.do(r.rdb.SetRange(r.ctx, name, 7, "\x01").Err())
			}
		}},
		"Set, without a version": {end: func(r *rig, _, other *probe[int64, string]) { r.do(other.Set(r.ctx, 1, "page 1")); pastTTL() }, prev: true},
		"a null":                 {end: func(r *rig, _, other *probe[int64, string]) { r.do(other.Announce(r.ctx, 1)) }},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, entryCells, func(r *rig) {
				p := &pages{number: 1}
				c, other := open(r, p.source(), fallbackAfterASecond), open(r, p.source(), fallbackAfterASecond)
				c.gives(r, 1, "page 1")
				time.Sleep(3 * time.Second)
				test.end(r, c, other)
				c.gives(r, 1, "page 1")
				loads := p.loads()
				if last := loads[len(loads)-1]; (last.prev != "") != test.prev {
					r.Errorf("the load was given %+v, want a Prev: %v", last, test.prev)
				}
			})
		})
	}
}

func (r *rig) do(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// Who calls Refresh says that the value has changed, and beside a Write it may.
func TestThereIsNoPrevForARefreshAndBesideAWrite(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1}
		c := open(r, p.source(), fallbackAfterASecond)
		c.gives(r, 1, "page 1")
		r.do(c.Refresh(r.ctx, 1))
		pastTTL()
		r.do(c.Write(r.ctx, []int64{1}, func(context.Context) error {
			c.gives(r, 1, "page 1")
			return nil
		}))
		p.were(r, seen{}, seen{}, seen{primary: true})
	})
}

// The value ends after the caller has read it and before the lease is granted. Catches a Prev
// that is what the caller has read: the source would call it unchanged, and what somebody
// has ended would be back.
func TestThereIsNoPrevOfWhatEndsBeforeTheGrant(t *testing.T) {
	for name, end := range map[string]func(*rig, *probe[int64, string]) error{
		"Invalidate": func(r *rig, other *probe[int64, string]) error { return other.Invalidate(r.ctx, 1) },
		"Clear":      func(r *rig, other *probe[int64, string]) error { return other.Clear(r.ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
				p := &pages{number: 1}
				other, c := open(r, p.source(), fallbackAfterASecond), open(r, p.source(), fallbackAfterASecond)
				c.gives(r, 1, "page 1")
				time.Sleep(3 * time.Second)
				var once sync.Once
				m.Before(func(command string, args []string) {
					if strings.HasPrefix(command, "EVAL") && strings.Contains(strings.Join(args, " "), " ask ") {
						once.Do(func() { r.do(end(r, other)); time.Sleep(time.Millisecond) })
					}
				})
				c.gives(r, 1, "page 1")
				m.Before(nil)
				p.were(r, seen{}, seen{})
			})
		})
	}
}

// Between Prev and ErrNotModified another process invalidates: the source had not seen the
// change yet. The old value does not come back, and the load runs again, without a Prev.
// Catches an ErrNotModified that is published without the lease's token.
func TestAnInvalidationBetweenPrevAndNotModifiedLoadsAgainWithoutPrev(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1}
		c, other := open(r, p.source(), fallbackAfterASecond), open(r, p.source(), fallbackAfterASecond)
		c.gives(r, 1, "page 1")
		time.Sleep(3 * time.Second)
		p.change(1, func(e *cache.Entry[string]) {
			p.change(2, nil)
			r.do(other.Invalidate(r.ctx, 1))
		})
		c.gives(r, 1, "page 2")
		other.gives(r, 1, "page 2")
		p.were(r, seen{}, seen{prev: "page 1", version: "page 1"}, seen{})
		if n := c.Stats().Rebuild.Refused; n != 1 {
			r.Errorf("%d publications were refused, want that of the old page", n)
		}
	})
}

// The same for a refresh in the background, and for a Clear, which takes no lease away.
func TestNotModifiedBringsNothingBack(t *testing.T) {
	for name, end := range map[string]func(*rig, *probe[int64, string]) error{
		"Invalidate": func(r *rig, c *probe[int64, string]) error { return c.Invalidate(r.ctx, 1) },
		"Clear":      func(r *rig, c *probe[int64, string]) error { return c.Clear(r.ctx) },
		"ClearTags":  func(r *rig, c *probe[int64, string]) error { return c.ClearTags(r.ctx, "page") },
	} {
		for _, old := range []struct {
			name string
			with func(*cache.Options)
		}{{"refresh", staleAfterASecond}, {"load", fallbackAfterASecond}} {
			t.Run(name+" beside a "+old.name, func(t *testing.T) {
				inCells(t, entryCells, func(r *rig) {
					p := &pages{number: 1}
					c, other := open(r, p.source(), old.with), open(r, p.source(), old.with)
					c.gives(r, 1, "page 1")
					time.Sleep(3 * time.Second)
					p.change(1, func(*cache.Entry[string]) {
						p.change(2, nil)
						r.do(end(r, other))
						time.Sleep(10 * time.Millisecond)
					})
					_, _ = c.Get(r.ctx, 1) // beside the invalidation, either
					time.Sleep(20 * time.Millisecond)
					c.gives(r, 1, "page 2")
					other.gives(r, 1, "page 2")
				})
			})
		}
	}
}

// A process clears another tag, and so knows a clear that is later than that of the page's tag, of which it
// has not read yet. It asks whether the page is unmodified, and the source says so. Catches an unmodified page
// that counts as loaded after both clears: no process would load it until its TTL ends.
func TestNotModifiedRevivesNothingThatAnotherProcessHasCleared(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1}
		var meanwhile atomic.Pointer[func()]
		rdb := r.client()
		rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
			if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 4 && args[4] == "look" {
				if do := meanwhile.Swap(nil); do != nil {
					(*do)()
				}
			}
		}))
		c, other := openOn(r, rdb, p.source(), fallbackAfterASecond), open(r, p.source(), fallbackAfterASecond)
		c.gives(r, 1, "page 1")
		time.Sleep(3 * time.Second)
		before := func() {
			r.do(c.ClearTags(r.ctx, "of another"))
			c.gives(r, 1, "page 1")
		}
		meanwhile.Store(&before)
		r.do(other.ClearTags(r.ctx, "page"))
		time.Sleep(10 * time.Millisecond)
		other.gives(r, 1, "page 1")
		p.were(r, seen{}, seen{prev: "page 1", version: "page 1"}, seen{})
	})
}

// Without a Prev there is nothing that could be unmodified. Catches one that becomes an empty
// value, or a null.
func TestNotModifiedWithoutPrevIsAnError(t *testing.T) {
	inCells(t, append(entryCells, cell{redis: "none", local: true}), func(r *rig) {
		c := open(r, cache.Source[int64, string]{LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
			if e.Prev != nil || e.Version != "" {
				r.Errorf("a first load was given %+v", e)
			}
			return "nothing", cache.ErrNotModified
		}})
		got, err := c.Get(r.ctx, 1)
		if got != "" || !errors.Is(err, cache.ErrNotModified) || !strings.Contains(err.Error(), "without a Prev") || errors.Is(err, cache.ErrNotFound) {
			r.Errorf("got %q, %v", got, err)
		}
	})
}

// Nobody shares a Prev that there is a Clone for: a loader that changes it, or keeps it, changes
// nobody's value.
func TestAPrevIsNobodyElses(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		var kept *[]byte
		c := open(r, cache.Source[int64, []byte]{
			Clone: func(b []byte) []byte { return append([]byte(nil), b...) },
			LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[[]byte]) ([]byte, error) {
				if e.Prev == nil {
					return []byte("page"), nil
				}
				(*e.Prev)[0] = 'X'
				kept = e.Prev
				return nil, cache.ErrNotModified
			},
		}, fallbackAfterASecond)
		for range 3 {
			if got, err := c.Get(r.ctx, 1); err != nil || string(got) != "page" {
				r.Errorf("got %q, %v", got, err)
			}
			if kept != nil {
				(*kept)[1] = 'Y'
			}
			time.Sleep(3 * time.Second)
		}
		if kept == nil {
			r.Error("no load was given a Prev: this tests nothing")
		}
	})
}

// What the loader leaves in Version is stored, also beside a change; one that is too long is
// not. Catches a version that is cut: it would pass for another.
func TestAVersionOfUpToSixtyFourBytesIsStored(t *testing.T) {
	for length, kept := range map[int]bool{0: false, 1: true, 64: true, 65: false, 1000: false} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			inCells(t, entryCells, func(r *rig) {
				version, given := strings.Repeat("v", length), []string{}
				c := open(r, cache.Source[int64, string]{LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
					given = append(given, e.Version)
					e.Version = version
					return "page", nil
				}}, fallbackAfterASecond)
				other := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "", errBroken }}, fallbackAfterASecond)
				for range 2 {
					c.gives(r, 1, "page")
					other.gives(r, 1, "page") // from Redis, whatever the version
					time.Sleep(3 * time.Second)
				}
				want := ""
				if kept {
					want = version
				}
				if len(given) != 2 || given[1] != want {
					r.Errorf("the loads were given %q, want the second to get %d bytes", given, len(want))
				}
			})
		})
	}
}

// What a loader says of this value goes before what the Source and the Options say of all, is
// shortened as other TTLs are, and holds for a null as well.
func TestALoaderSaysTheTTLOfThisValueOrNull(t *testing.T) {
	for _, test := range []struct {
		name         string
		number       int
		ttl          time.Duration
		least, most  time.Duration
		notModified  bool
		withoutStale bool
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

// A negative TTL: the value answers those who wait for it, and Redis has nothing of the key, nor
// what was there before. A flood of callers does not become a flood of loads. Catches a value
// that is stored all the same, an old one that goes on to answer, a lease that keeps others
// waiting, and callers who load one after another.
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
	loads, most := len(p.loads())-before, callers/4 // each takes 10 ms, and answers those who had come when it began
	if r.local {
		most = 2 * 1000 / 200 // one for each hold of 250 ms, less the jitter
	}
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

// hardForAnHour gives values that are hard, to a cache that serves others for an hour past their
// minute.
func hardForAnHour(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError = time.Minute, 30*time.Minute, time.Hour
}

// A hard value is not served past its TTL: not while it is refreshed, not when its load fails
// or takes long, not at a deadline, not from what the process has kept, and not during an
// outage. Each of these serves other values.
func TestAHardValueIsNeverServedPastItsTTL(t *testing.T) {
	for name, test := range map[string]struct {
		during func(*cache.Entry[string])
		outage bool
		soft   time.Duration
	}{
		"the source is well":    {},
		"the load fails":        {during: func(*cache.Entry[string]) { panic("broken") }},
		"the load is slow":      {during: func(*cache.Entry[string]) { time.Sleep(3 * time.Second) }},
		"with a SoftTimeout":    {during: func(*cache.Entry[string]) { time.Sleep(3 * time.Second) }, soft: 100 * time.Millisecond},
		"an outage":             {outage: true},
		"an outage, and broken": {outage: true, during: func(*cache.Entry[string]) { panic("broken") }},
	} {
		for _, isHard := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", hard: ", isHard), func(t *testing.T) {
				inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
					r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
					w, p := &way{}, &pages{number: 1, during: func(e *cache.Entry[string]) { e.Hard = isHard }}
					c := openOn(r, w.client(r, m), p.source(), hardForAnHour, func(o *cache.Options) { o.SoftTimeout = test.soft })
					c.gives(r, 1, "page 1")
					c.comesFrom(r, 1, cache.TierLocal)
					time.Sleep(59 * time.Second)
					if test.outage {
						w.refuse()
						for key := int64(2); key <= 6; key++ { // until the outage is known
							_, _ = c.Get(r.ctx, key)
						}
					}
					time.Sleep(5 * time.Second)
					p.change(2, test.during)
					served := false
					for range 20 {
						ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
						got, _ := c.Get(ctx, 1)
						served = served || got == "page 1"
						cancel()
						time.Sleep(300 * time.Millisecond)
					}
					if isHard && served {
						r.Error("a hard value was served past its TTL")
					}
					if !isHard && !served && name != "an outage" {
						r.Error("no other value was served past its TTL either: this tests nothing")
					}
				})
			})
		}
	}
}

// Catches a hard value that ErrNotModified makes one that is served past its TTL.
func TestAHardValueStaysHardThoughItHasNotChanged(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1, during: func(e *cache.Entry[string]) {
			time.Sleep(time.Second) // what the load costs, on which an early refresh depends
			e.Hard = e.Prev == nil
		}}
		c := open(r, p.source(), hardForAnHour, func(o *cache.Options) { o.Jitter, o.EarlyRefresh = -1, 1e6 })
		c.gives(r, 1, "page 1")
		time.Sleep(55 * time.Second)
		c.gives(r, 1, "page 1")
		time.Sleep(2 * time.Second)
		p.were(r, seen{}, seen{prev: "page 1", version: "page 1"})
		p.change(0, nil)
		time.Sleep(61 * time.Second)
		c.gives404(r, 1)
	})
}

// Without Redis the local tier is all there is, and serves others past their TTL.
func TestAHardValueIsNeverServedPastItsTTLWithoutRedis(t *testing.T) {
	for _, isHard := range []bool{true, false} {
		t.Run(fmt.Sprint(isHard), func(t *testing.T) {
			inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
				p := &pages{number: 1, during: func(e *cache.Entry[string]) { e.Hard = isHard }}
				c := open(r, p.source(), hardForAnHour)
				c.gives(r, 1, "page 1")
				p.change(2, func(*cache.Entry[string]) { panic("broken") })
				time.Sleep(time.Minute)
				if got, _ := c.Get(r.ctx, 1); (got == "page 1") == isHard {
					r.Errorf("got %q", got)
				}
			})
		})
	}
}

// Catches a batch that leaves a source without Load and LoadMany alone, and one in which
// LoadEntry takes the place of LoadMany.
func TestLoadEntryAloneLoadsBatches(t *testing.T) {
	inCells(t, append(entryCells, cell{redis: "none", local: true}), func(r *rig) {
		keys := make([]int64, 100)
		for i := range keys {
			keys[i] = int64(i)
		}
		p := &pages{number: 1}
		c := open(r, p.source())
		if got, err := c.GetMany(r.ctx, keys); err != nil || len(got) != 100 || got[7] != "page 1" || len(p.loads()) != 100 {
			r.Errorf("got %d values, %v, with %d loads", len(got), err, len(p.loads()))
		}
		calls, source := 0, p.source()
		source.LoadMany = func(_ context.Context, keys []int64) (map[int64]string, error) {
			calls++
			values := map[int64]string{}
			for _, key := range keys {
				values[key] = "of many"
			}
			return values, nil
		}
		both := open(r, source, func(o *cache.Options) { o.Name = "both" })
		if got, err := both.GetMany(r.ctx, keys); err != nil || len(got) != 100 || got[7] != "of many" || calls != 1 {
			r.Errorf("with LoadMany: got %d values, %v, with %d calls", len(got), err, calls)
		}
		both.gives(r, 1000, "page 1")
	})
}

// replicaLag is for sources that lag.
func replicaLag(lag time.Duration) func(*cache.Options) {
	return func(o *cache.Options) { o.ReplicaLag = lag }
}

// A loader is told to read the primary while a write is under way, and for as long as replicas
// may lag behind an invalidation or a Clear, whoever has made it; not before, and not after.
func TestALoaderIsToldWhenAReplicaMayNotDo(t *testing.T) {
	const lag = 5 * time.Second
	for name, end := range map[string]func(r *rig, c *probe[int64, string]) error{
		"Invalidate": func(r *rig, c *probe[int64, string]) error { return c.Invalidate(r.ctx, 1) },
		"Clear":      func(r *rig, c *probe[int64, string]) error { return c.Clear(r.ctx) },
		"Write": func(r *rig, c *probe[int64, string]) error {
			return c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, entryCells, func(r *rig) {
				p := &pages{number: 1}
				c, other := open(r, p.source(), fallbackAfterASecond, replicaLag(lag)), open(r, p.source(), fallbackAfterASecond, replicaLag(lag))
				c.gives(r, 1, "page 1")
				r.do(end(r, other))
				synctest.Wait() // for the message
				time.Sleep(2 * time.Second)
				c.gives(r, 1, "page 1")
				time.Sleep(lag)
				c.gives(r, 1, "page 1")
				pastTTL()
				c.gives(r, 1, "page 1")
				p.were(r, seen{}, seen{primary: true}, seen{}, seen{prev: "page 1", version: "page 1"})
			})
		})
	}
	inCells(t, entryCells, func(r *rig) { // without ReplicaLag
		p := &pages{number: 1}
		c := open(r, p.source(), fallbackAfterASecond)
		c.gives(r, 1, "page 1")
		r.do(c.Write(r.ctx, []int64{1}, func(context.Context) error { c.gives(r, 1, "page 1"); return nil }))
		c.gives(r, 1, "page 1")
		p.were(r, seen{}, seen{primary: true}, seen{})
	})
}

// During an outage of Redis nobody knows of writers. A source that does not lag is not asked at
// its primary all the same: all processes would be there at once.
func TestDuringAnOutageThePrimaryIsReadWhereReplicasLag(t *testing.T) {
	for _, lag := range []time.Duration{0, time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
				r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
				w, p := &way{}, &pages{number: 1}
				c := openOn(r, w.client(r, m), p.source(), replicaLag(lag))
				w.refuse()
				for key := range int64(5) {
					c.gives(r, key, "page 1")
				}
				for i, load := range p.loads() {
					if load.primary != (lag > 0) {
						r.Errorf("load %d was given %+v", i, load)
					}
				}
			})
		})
	}
}

// Beside ErrNotModified an empty version means that of Prev. Catches a loader that empties it always,
// and has no version at the next load.
func TestAVersionThatIsEmptiedBesideNotModifiedStays(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		var given []string
		c := open(r, cache.Source[int64, string]{LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
			given = append(given, e.Version)
			if e.Version = ""; e.Prev != nil {
				return "", cache.ErrNotModified
			}
			e.Version = "7"
			return "page", nil
		}}, fallbackAfterASecond)
		for range 4 {
			c.gives(r, 1, "page")
			time.Sleep(3 * time.Second)
		}
		if got := strings.Join(given, ","); got != ",7,7,7" {
			r.Errorf("the loads were given %q", got)
		}
	})
}

// Replicas may lag behind a clear of tags, of whatever values: a loader that reads the primary gets no
// Prev to compare with, also of a value that has none of the tags.
func TestThereIsNoPrevBesideAClearOfOtherTagsThatReplicasMayLack(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1}
		c := open(r, p.source(), fallbackAfterASecond, replicaLag(5*time.Second))
		time.Sleep(10 * time.Second)
		c.gives(r, 1, "page 1")
		time.Sleep(3 * time.Second)
		r.do(c.ClearTags(r.ctx, "of another"))
		c.gives(r, 1, "page 1")
		p.were(r, seen{}, seen{primary: true})
	})
}

// What is not to be stored answers for ErrorHold and no longer, whatever the stale windows say: it is
// neither stale then nor kept for errors. Without ErrorHold it answers those alone who wait for it.
func TestWhatIsNotToBeStoredHasNoStaleWindows(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		for _, hold := range []time.Duration{200 * time.Millisecond, -1} {
			var loads atomic.Int64
			c := open(r, cache.Source[int64, string]{LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
				if e.TTL = -1; loads.Add(1) > 2 {
					return "", errBroken
				}
				return "page", nil
			}}, func(o *cache.Options) { o.Rebuild.ErrorHold, o.Name = hold, fmt.Sprint("hold ", int64(hold)) })
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
