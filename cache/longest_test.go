package cache_test

import (
	"context"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// The table of docs/consistency.md under "Bounds": for how long another process serves the old value from its
// memory, with all options at their defaults. What is announced is a matter of milliseconds; Local.TTL bounds
// only what somebody does to Redis behind the caches' backs, and the TTL what nobody tells anybody.
func TestHowLongAnotherProcessServesAnOldValue(t *testing.T) {
	type world struct {
		*rig
		source *rows
		writer *probe[int64, string]
		ended  chan struct{} // the test is over
	}
	for name, event := range map[string]struct {
		happens     func(w world)
		least, most time.Duration
	}{
		"a Write": {func(w world) {
			if err := w.writer.Write(w.ctx, []int64{1}, func(context.Context) error { w.source.put(1, "v2"); return nil }); err != nil {
				w.Error(err)
			}
		}, 0, time.Second},
		"a process dies inside Write, after the commit": {func(w world) {
			inside := make(chan struct{})
			go func() {
				_ = w.writer.Write(w.ctx, []int64{1}, func(context.Context) error {
					w.source.put(1, "v2")
					close(inside)
					<-w.ended
					return nil
				})
			}()
			<-inside
		}, 0, 2 * time.Second},
		"a DEL by hand": {func(w world) {
			w.source.put(1, "v2")
			w.do(w.rdb.Del(w.ctx, valueKey(1)).Err())
		}, 4 * time.Minute, 5 * time.Minute},
		"a process dies between its commit and Invalidate": {func(w world) { w.source.put(1, "v2") }, 9 * time.Minute, 10*time.Minute + 30*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source := newRows(r, 1)
				w := world{r, source, open(r, source.source()), make(chan struct{})}
				defer close(w.ended)
				c := open(r, source.source())
				r.eventually("messages arrive", func() bool { return c.Stats().Live && w.writer.Stats().Live })
				c.gives(r, 1, "v1")
				c.comesFrom(r, 1, cache.TierLocal)
				event.happens(w)
				began := time.Now()
				for time.Since(began) < time.Hour {
					if got, err := c.Get(r.ctx, 1); err != nil {
						r.Fatal(err)
					} else if got == "v2" {
						break
					}
					time.Sleep(100 * time.Millisecond)
				}
				if took := time.Since(began); took < event.least || took > event.most {
					r.Errorf("the old value was served for %v, want %v to %v", took, event.least, event.most)
				}
			})
		})
	}
}
