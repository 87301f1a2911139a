package cache_test

import (
	"testing"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
)

// The filter that levee ships learns by a feed. What was deleted stays until its next Rebuild.
func TestAFilterLearnsByTheFeed(t *testing.T) {
	server := start(t)
	r := onServer(t, server, cell{redis: "real"})
	filter := must(bloom.Open(r.ctx, server.Client(t), bloom.Options{
		Name: "product", Capacity: 1000, FalsePositiveRate: 1e-6, Complete: true, MaxTransaction: -1,
	}))
	t.Cleanup(func() { _ = filter.Close() })
	r.eventually("the filter answers", func() bool { return !filter.MayContain(r.ctx, "1") })
	source, db := newRows(r), newLedger()
	c := open(r, source.source(), func(o *cache.Options) { o.Filter = filter })
	follows(r, db, c)
	c.gives404(r, 1)
	source.put(1, "v1")
	db.confirms(r, db.commit(inserted(1)))
	c.gives(r, 1, "v1")
	db.confirms(r, db.commit(updated(2)))
	if !filter.MayContain(r.ctx, "2") {
		t.Error("a row whose beginning the filter has missed is denied after its update")
	}
	db.confirms(r, db.commit(deleted(1)))
	if !filter.MayContain(r.ctx, "1") {
		t.Error("it is out")
	}
}
