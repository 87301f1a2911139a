package cache_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// The source is read from replicas that lag: what is loaded before they have caught up with a clear is
// an answer, and is kept nowhere.
//
// Of two clears the replicas may lag behind the first alone: this holds after a later clear of another
// tag too, and values of other tags are kept. Catches an epoch just below the latest clear alone. And a
// process may clear a tag before it has read the record, and so create it. Catches a process that takes
// such a record for one without clears.
func TestAClearWaitsForTheReplicasOfTheSource(t *testing.T) {
	const lag = 2 * time.Second
	lagging := func(o *cache.Options) { o.ReplicaLag = lag }
	for name, cleared := range map[string]func(r *rig, source *rows) *probe[int64, string]{
		"of all values": func(r *rig, source *rows) *probe[int64, string] {
			c := open(r, source.tagged(), lagging)
			c.gives(r, 1, "v1")
			r.do(c.Clear(r.ctx))
			return c
		},
		"of two tags": func(r *rig, source *rows) *probe[int64, string] {
			c := open(r, source.tagged(), lagging)
			time.Sleep(lag)
			c.gives(r, 1, "v1")
			for _, n := range []int64{0, 1} {
				r.do(c.ClearTags(r.ctx, tenant(n)))
				time.Sleep(lag / 4)
			}
			c.gives(r, 21, "v1")
			c.comesFrom(r, 21, cache.TierLocal)
			return c
		},
		"that makes the record": func(r *rig, source *rows) *probe[int64, string] {
			r.deaf = true
			cleared, rdb := make(chan struct{}), r.client()
			onLook(rdb, func() { <-cleared })
			c := openOn(r, rdb, source.tagged(), lagging)
			r.do(c.ClearTags(r.ctx, tenant(0)))
			close(cleared)
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source := newRows(r, 1, 21)
				c := cleared(r, source)
				c.gives(r, 1, "v1") // from a replica that lags
				source.put(1, "v2")
				c.gives(r, 1, "v2")
				time.Sleep(lag)
				c.gives(r, 1, "v2")
				c.comesFrom(r, 1, cache.TierLocal)
			})
		})
	}
}

// A Set says what the source has now, so it counts although a clear is younger than ReplicaLag. Catches
// the epoch of a load: the value would be dead on arrival, and readers would get the replica's old one.
func TestASetAfterAClearIsReadDespiteReplicaLag(t *testing.T) {
	for name, clear := range map[string]func(r *rig, c *probe[int64, string]) error{
		"Clear":     func(r *rig, c *probe[int64, string]) error { return c.Clear(r.ctx) },
		"ClearTags": func(r *rig, c *probe[int64, string]) error { return c.ClearTags(r.ctx, tenant(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				c := open(r, newRows(r, 1).tagged(), func(o *cache.Options) { o.ReplicaLag = 2 * time.Second })
				c.gives(r, 1, "v1")
				r.do(clear(r, c))
				r.do(c.Set(r.ctx, 1, "v2")) // the replica still has v1
				c.gives(r, 1, "v2")
			})
		})
	}
}

// A process learns of two clears at once, since the later one comes before it has read the earlier one.
// It keeps no row of the earlier tag from a lagging replica. Catches an epoch just below the later
// clear, which is later than the earlier one: every process would keep the row for its whole TTL.
func TestClearsLearnedTogetherWaitForTheReplicasOfTheSource(t *testing.T) {
	type process = *probe[int64, string]
	ofTag := func(n int64) func(r *rig, p process) {
		return func(r *rig, p process) { r.do(p.ClearTags(r.ctx, tenant(n))) }
	}
	all := func(r *rig, p process) { r.do(p.Clear(r.ctx)) }
	for name, test := range map[string]struct {
		first, then func(r *rig, p process)
		own         bool // the later clear is that of the process that learns of them
		lost        bool // and the record of them, before the first
	}{
		"two tags":         {first: ofTag(0), then: ofTag(1)},
		"its own tag":      {first: ofTag(0), then: ofTag(1), own: true},
		"all, then a tag":  {first: all, then: ofTag(1)},
		"in a new record":  {first: ofTag(0), then: func(*rig, process) {}, lost: true},
		"two of a new one": {first: ofTag(0), then: ofTag(1), lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				const lag = 2 * time.Second
				source := newRows(r, 1)
				var meanwhile atomic.Pointer[func()]
				rdb := r.client()
				onLook(rdb, func() {
					if do := meanwhile.Swap(nil); do != nil {
						(*do)()
					}
				})
				lagging := func(o *cache.Options) { o.ReplicaLag = lag }
				c, other := openOn(r, rdb, source.tagged(), lagging), open(r, source.tagged(), lagging)
				time.Sleep(2 * lag)
				c.gives(r, 1, "v1")
				who := other
				if test.own {
					who = c
				}
				do := func() { test.then(r, who) }
				meanwhile.Store(&do)
				if test.lost {
					r.do(r.rdb.Del(r.ctx, clearsKey()).Err())
				}
				test.first(r, other)
				time.Sleep(lag / 4)
				if meanwhile.Load() != nil {
					r.Fatal("the process has not read what was cleared")
				}
				c.gives(r, 1, "v1") // from a replica that lags
				source.put(1, "v2")
				c.gives(r, 1, "v2")
				time.Sleep(lag)
				c.gives(r, 1, "v2")
				other.gives(r, 1, "v2")
			})
		})
	}
}

// onLook calls do before each reading of what was cleared.
func onLook(rdb redis.UniversalClient, do func()) {
	rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 4 && args[4] == "look" {
			do()
		}
	}))
}
