package cache_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// hardForAnHour is for a cache of hard values: it serves others for an hour past their TTL of a minute.
func hardForAnHour(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError = time.Minute, 30*time.Minute, time.Hour
}

// A hard value is not served past its TTL: not during a refresh, not when its load fails or takes
// long, not at a deadline, not from the local tier, and not during an outage. Other values are
// served in each of these cases.
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

// Without Redis the local tier serves other values past their TTL, and no hard ones.
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

// A hard value stays hard after an ErrNotModified. Catches one that is then served past its TTL.
func TestAHardValueStaysHardThoughItHasNotChanged(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		p := &pages{number: 1, during: func(e *cache.Entry[string]) {
			time.Sleep(time.Second) // what the load costs, on which an early refresh depends
			e.Hard = e.Prev == nil
		}}
		c := open(r, p.source(), hardForAnHour, func(o *cache.Options) { o.Jitter, o.EarlyRefresh, o.Local.TTL = -1, 1e6, 30*time.Second })
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
