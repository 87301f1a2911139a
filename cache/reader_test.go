package cache_test

import (
	"sync"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Rules that are none make no other read: it joins the load that runs, and does not ask Redis first.
func TestAReaderWithoutRulesReadsAsTheCacheDoes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, gate := newRows(r, 1), newLatch()
	source.slowly(gate.wait)
	c := open(r, source.source())
	var readers sync.WaitGroup
	readers.Go(func() { c.gives(r, 1, "v1") })
	gate.arrived(r)
	before := server.Calls("getrange")
	for range 3 {
		readers.Go(func() {
			if v, err := c.With(cache.Reads{}).Get(r.ctx, 1); v != "v1" || err != nil {
				r.Errorf("Get: %q, %v", v, err)
			}
		})
		readers.Go(func() {
			if v, err := c.With(cache.Reads{}).GetMany(r.ctx, []int64{1}); v[1] != "v1" || err != nil {
				r.Errorf("GetMany: %v, %v", v, err)
			}
		})
	}
	r.eventually("all wait", func() bool { return c.Stats().Gets == 7 })
	if n := server.Calls("getrange") - before; n != 0 {
		r.Errorf("%d reads of Redis", n)
	}
	close(gate.open)
	readers.Wait()
}
