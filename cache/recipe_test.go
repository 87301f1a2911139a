package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// permissions is the recipe of docs/recipes.md for rights that may be taken away.
func permissions(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.StaleIfError = 10*time.Second, -1, -1
	o.Local = localcache.Options{MaxBytes: -1}
}

// A right that was taken away without a word to the cache ends with its TTL, though the
// database is away; while Redis is away it ends at once. With StaleIfError on, the first is
// served for an hour; with a memory and StaleWhileRevalidate, the second too.
func TestARightIsNotServedPastItsTTLWhateverIsAway(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1)
		c := open(r, source.source(), permissions)
		c.gives(r, 1, "v1")

		source.slowly(func(context.Context, int64) error { return errBroken })
		time.Sleep(8 * time.Second) // a TTL is up to a tenth shorter
		c.gives(r, 1, "v1")
		time.Sleep(2*time.Second + time.Millisecond)
		if got, err := c.Fetch(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("past its TTL: %+v, %v", got, err)
		}

		source.slowly(nil)
		time.Sleep(time.Second) // the error is held for a moment
		c.gives(r, 1, "v1")
		m.SetError("ERR out of order")
		source.put(1, "v2") // another process could not tell
		c.gives(r, 1, "v2")
		m.SetError("")
	})
}
