package cache_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// The source says that a page has not changed and sends none. The page gets a new TTL, and the
// version comes with it each time. Catches a page or a version that is not stored again, and a
// TTL that is not extended.
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

// An empty Version beside ErrNotModified stands for the version of Prev. Catches a loader that always
// empties it, and gets no version at the next load.
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

// The tags in Entry.Tags count beside those of Source.Tags, and stay with a value that has not changed.
func TestTagsThatALoaderGivesStayWithAnUnmodifiedValue(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		var bodies, unmodified atomic.Int64
		c := open(r, cache.Source[int64, string]{
			LoadEntry: func(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
				if e.Prev != nil {
					unmodified.Add(1)
					return "", cache.ErrNotModified
				}
				bodies.Add(1)
				e.Tags, e.Version = []string{"a", "c"}, "1"
				return "v", nil
			},
			Tags: func(int64, string) []string { return []string{"b", "c"} },
		}, ttl(10*time.Minute), func(o *cache.Options) { o.StaleWhileRevalidate, o.EarlyRefresh = 3*time.Hour, -1 })
		for round, tag := range []string{"a", "b", "c"} {
			c.gives(r, 1, "v")
			time.Sleep(11 * time.Minute)
			c.gives(r, 1, "v") // and refreshes it
			r.eventually("it is refreshed", func() bool { return unmodified.Load() == int64(round)+1 })
			time.Sleep(time.Second)
			if err := c.ClearTags(r.ctx, "of another", tag); err != nil {
				r.Fatal(err)
			}
			if bodies.Load() != int64(round)+1 {
				r.Fatalf("%d bodies in round %d", bodies.Load(), round)
			}
		}
		c.gives(r, 1, "v")
		if bodies.Load() != 4 {
			r.Errorf("%d bodies, want one after each clear", bodies.Load())
		}
	})
}

// Another process invalidates between Prev and ErrNotModified, and the source had not seen the change
// yet. The old value does not come back, and the load runs again, without a Prev. Catches an
// ErrNotModified that is published without the token of the lease.
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

// ErrNotModified does not bring back a value that was ended during the load: neither in a refresh in
// the background, nor after a Clear, which takes no lease away.
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

// A process clears another tag, so it knows a later clear than that of the page's tag, which it has
// not read yet. Its load gets the page as Prev, and the source says that it has not changed. Catches
// an unmodified page that counts as loaded after both clears: no process would load it until its TTL ends.
func TestNotModifiedRevivesNothingThatAnotherProcessHasCleared(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1}
		var meanwhile atomic.Pointer[func()]
		rdb := r.client()
		onLook(rdb, func() {
			if do := meanwhile.Swap(nil); do != nil {
				(*do)()
			}
		})
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

// A load without a Prev returns ErrNotModified, and this is an error. Catches an empty value, or a null.
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
