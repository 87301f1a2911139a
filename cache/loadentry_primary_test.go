package cache_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// Entry.Primary is true during a Write, and while replicas may lag behind an invalidation or a Clear
// of any process; not before, and not after.
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

// During an outage of Redis a process knows of no writers, so its loads read the primary where replicas
// lag. Without ReplicaLag they do not: all processes would load from the primary at once.
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
