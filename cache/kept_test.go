package cache_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// During an outage of both, what was read before goes on to be answered, past its
// life in the local tier too. Without what is kept every one of these would fail.
func TestWithRedisAndTheSourceGoneWhatIsKeptAnswers(t *testing.T) {
	t.Parallel()
	const keys = 200
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	all := make([]int64, keys)
	for i := range all {
		all[i] = int64(i)
	}
	source := newRows(r, all...)
	c := open(r, source.source(), func(o *cache.Options) { o.Local.TTL = 200 * time.Millisecond })
	for _, key := range all {
		c.gives(r, key, "v1")
		c.comesFrom(r, key, cache.TierLocal)
	}
	server.Kill()
	defer server.Restart() // what the rig looks at in the end
	source.slowly(func(context.Context, int64) error { return errBroken })
	for round := range 5 {
		for _, key := range all {
			ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
			got, err := c.Fetch(ctx, key)
			if err != nil || got.Value != "v1" {
				r.Errorf("Fetch(%d): %q, %v", key, got.Value, err)
			}
			if round > 0 && !got.Stale { // within its TTL, but nobody can say whether it is still right
				r.Errorf("Fetch(%d): a kept value is not marked: %+v", key, got)
			}
			cancel()
		}
		time.Sleep(300 * time.Millisecond) // so that their lives are over
	}
	if s := c.Stats(); s.Stale < keys {
		r.Errorf("%d answers were kept ones: this tests nothing", s.Stale)
	}

	// What this process itself has invalidated is not kept, though Redis cannot be told.
	source.slowly(nil)
	source.put(1, "v2")
	if err := c.Invalidate(r.ctx, 1); err == nil {
		r.Error("an invalidation is confirmed by nobody")
	}
	c.gives(r, 1, "v2")
}

// While Redis is gone, a value that many read is not loaded for each of them: it
// goes on to answer, and is read anew in the background about once a second.
func TestWithRedisGoneTheSourceIsAskedInTheBackground(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	c := open(r, source.source(), func(o *cache.Options) { o.Local.TTL = 200 * time.Millisecond })
	c.gives(r, 1, "v1")
	c.comesFrom(r, 1, cache.TierLocal)
	server.Kill()
	defer server.Restart() // what the rig looks at in the end
	r.eventually("Redis is not asked any more", func() bool {
		_, _ = c.Get(r.ctx, 1)
		return c.Stats().Stale > 0
	})
	source.put(1, "v2") // by another process, whose invalidation does not arrive
	began, loads := time.Now(), source.loads(1)
	r.eventually("the new value is read", func() bool {
		got, err := c.Get(r.ctx, 1)
		if err != nil {
			r.Errorf("Get: %v", err)
		}
		return got == "v2"
	})
	for range 2000 {
		c.gives(r, 1, "v2")
		time.Sleep(time.Millisecond)
	}
	most := int(time.Since(began)/(150*time.Millisecond)) + 2 // a local life, less the jitter
	if n := source.loads(1) - loads; n < 2 || n > most {
		r.Errorf("%d loads in %v", n, time.Since(began))
	}
}

// The longest of the windows is how long a whole fleet lives without its database.
func TestWithTheSourceGoneWhatRedisHoldsAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []cell{{redis: "real"}, {redis: "real", local: true}} {
		t.Run(c.String(), func(t *testing.T) {
			const keys = 50
			r := onServer(t, redistest.Start(t), c)
			source := newRows(r)
			one, other := open(r, source.source(), shortLived), open(r, source.source(), shortLived)
			for key := range int64(keys) {
				source.put(key, "v1")
				one.gives(r, key, "v1")
			}
			source.slowly(func(context.Context, int64) error { return errBroken })
			time.Sleep(100 * time.Millisecond) // past their TTL
			for range 3 {
				for key := range int64(keys) {
					one.gives(r, key, "v1")
					other.gives(r, key, "v1") // which has read none of them before
				}
			}
			if s := other.Stats(); s.Stale+s.Local != 3*keys || s.Fallbacks == 0 {
				r.Errorf("no outage: %+v", s)
			}
			source.slowly(nil)
			source.put(1, "v2")
			r.eventually("the source is asked again", func() bool {
				got, err := other.Fetch(r.ctx, 1)
				return err == nil && got.Value == "v2" && !got.Stale
			})
		})
	}
}

// shortLived values are spares after 50 ms.
func shortLived(o *cache.Options) {
	o.TTL, o.StaleWhileRevalidate, o.EarlyRefresh = 50*time.Millisecond, -1, -1
}

// In a process of its own, nobody else can have changed a value: within its TTL it is
// as good as new, also when its life in the local tier is over, whether it is asked for
// first or answers for a load that failed. Fetch and Stats say the same.
func TestWithoutARedisAValueIsNotStaleWithinItsTTL(t *testing.T) {
	for name, window := range map[string]time.Duration{"first": 0, "instead": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, cell{redis: "none", local: true}, nil)
				source := newRows(r, 1)
				c := open(r, source.source(), ttl(time.Hour), func(o *cache.Options) {
					o.Local.TTL, o.StaleWhileRevalidate = 10*time.Second, window
				})
				c.gives(r, 1, "v1")
				if window < 0 {
					source.slowly(func(context.Context, int64) error { return errors.New("gone") })
				}
				for range 20 {
					time.Sleep(11 * time.Second)
					if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || got.Stale {
						r.Errorf("got %+v, %v", got, err)
					}
				}
				if s := c.Stats(); s.Stale != 0 || s.Local < 10 {
					r.Errorf("got %+v", s)
				}
			})
		})
	}
}
