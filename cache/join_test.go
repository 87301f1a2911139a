package cache_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// When the local life of a hot key ends, its readers share reads of Redis: two are lone, and those who ask while these
// are on their way ride together. Catches that each reads for itself, which takes 64 MB out of Redis at one
// moment where a thousand callers want a value of 64 KB.
func TestReadersOfAHotKeyShareReadsOfRedis(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
		const readers = 1000
		long := strings.Repeat("long", 16<<10)
		source := newRows(r, 1)
		source.put(1, long)
		open(r, source.source()).gives(r, 1, long)
		c := open(r, source.source())
		var gets atomic.Int64
		m.Before(func(command string, args []string) {
			if command == "GETRANGE" && args[0] == valueKey(1) {
				gets.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
		defer m.Before(nil)
		var wg sync.WaitGroup
		for range readers {
			wg.Go(func() { c.gives(r, 1, long) })
		}
		wg.Wait()
		if n := gets.Load(); n > 7 {
			r.Errorf("%d reads of Redis by %d readers", n, readers)
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
