package cache_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A load gets no Prev that was invalidated, or that may have been. Catches a Prev that is taken from
// the caller's read, or from the local tier.
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

// The value ends after the caller has read it and before Redis grants the lease. Catches a Prev that
// is the value of this read: the source would call it unchanged, and bring back a value that
// somebody has ended.
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
				once := redistest.Once(func() { r.do(end(r, other)); time.Sleep(time.Millisecond) })
				m.Before(func(command string, args []string) {
					if strings.HasPrefix(command, "EVAL") && strings.Contains(strings.Join(args, " "), " ask ") {
						once()
					}
				})
				c.gives(r, 1, "page 1")
				m.Before(nil)
				p.were(r, seen{}, seen{})
			})
		})
	}
}

// A caller of Refresh says that the value has changed, and a Write may change it. Both load without
// a Prev.
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

// Replicas may lag behind a clear of any tag. A loader that reads the primary for this reason gets no
// Prev, even for a value without this tag.
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

// With a Clone, no other caller shares the Prev: a loader that changes it, or keeps it, changes
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
