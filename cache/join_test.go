package cache_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// When the local life of a hot key with a long value ends, one reader goes to Redis, and all
// who come while it reads take what it brings: it is what the local tier would give them a
// moment later. If each read it for itself, as they do with a short value, a thousand
// callers would take 64 MB and more out of Redis at one moment.
func TestReadersOfALongValueShareOneReadOfRedis(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		const life, length, readers = time.Second, 5 * time.Second, 5
		source := newRows(r, 1)
		long := strings.Repeat("long", 16<<10)
		source.put(1, long)
		c := open(r, source.source(), func(o *cache.Options) { o.Local.TTL = life })
		c.comesFrom(r, 1, cache.TierLocal)
		var gets atomic.Int64
		m.Before(func(command string, args []string) {
			if command == "GETRANGE" && args[0] == valueKey(1) {
				gets.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
		defer m.Before(nil)
		var wg sync.WaitGroup
		for reader := range readers {
			wg.Go(func() {
				time.Sleep(time.Duration(reader) * 200 * time.Microsecond)
				for began := time.Now(); time.Since(began) < length; time.Sleep(time.Millisecond) {
					c.gives(r, 1, long)
				}
			})
		}
		wg.Wait()
		// Off a life go the jitter and what the coarse clock is ahead. At the first nobody
		// knows that the value is long.
		most := int64(length/(life*9/10-50*time.Millisecond)) + readers
		r.Logf("%d reads of Redis, at most %d lives, %+v", gets.Load(), most, c.Stats())
		if n := gets.Load(); n > most || n < 2 || c.Stats().Joined == 0 {
			r.Errorf("%d reads of Redis in at most %d lives, %d joined", n, most, c.Stats().Joined)
		}
	})
}

// Who comes while another reads, but after an invalidation has returned, must not take
// what that read brings: it may have been on its way since before.
func TestALateJoinerDoesNotTakeWhatHasBeenInvalidated(t *testing.T) {
	for name, late := range map[string]string{"with an invalidation": "v2", "without": "v1"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
				source := newRows(r, 1)
				open(r, source.source()).gives(r, 1, "v1")
				w := &way{}
				c := openOn(r, w.client(r, m), source.source())
				release := w.keepBack()
				defer release()
				var wg sync.WaitGroup
				wg.Go(func() { c.gives(r, 1, "v1") }) // it began before
				synctest.Wait()
				source.put(1, "v2")
				if late == "v2" {
					if err := c.Invalidate(r.ctx, 1); err != nil {
						r.Fatal(err)
					}
				}
				wg.Go(func() { c.gives(r, 1, late) })
				synctest.Wait()
				release()
				wg.Wait()
				if n := c.Stats().Gets; n != 2 || w.delay.Load() != nil {
					r.Errorf("%d Gets, nothing was kept back: this tests nothing", n)
				}
			})
		})
	}
}
