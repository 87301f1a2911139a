package cache_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Whatever somebody else has put under our keys is loaded over once, and read
// from then on.
func TestForeignBytesUnderAKeyAreReplaced(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		writer := open(r, source.source())
		writer.gives(r, 1, "v1")
		writer.gives(r, 2, "v1")
		ours := r.rdb.Get(r.ctx, valueKey(1)).Val()
		flipped := []byte(ours)
		flipped[20] ^= 1

		for name, foreign := range map[string]string{
			"text": "hello", "another key's": r.rdb.Get(r.ctx, valueKey(2)).Val(), "cut": ours[:len(ours)-1],
			"header alone": ours[:56], "longer": ours + "x", "flipped": string(flipped),
			"json": `{"ID":1}`, "zeros": strings.Repeat("\x00", 200), "large": strings.Repeat(ours, 30_000), // more than MaxValue
		} {
			if err := r.rdb.Set(r.ctx, valueKey(1), foreign, redis.KeepTTL).Err(); err != nil {
				r.Fatal(err)
			}
			loads := source.loads(1)
			c := open(r, source.source())
			got, err := c.Fetch(r.ctx, 1)
			if err != nil || got.Value != "v1" || got.Tier != cache.TierSource || source.loads(1) != loads+1 {
				r.Errorf("%s: %+v, %v", name, got, err)
			}
			if n := c.Stats().Unfit; n != 1 {
				r.Errorf("%s: %d counted", name, n)
			}
			if now := r.rdb.Get(r.ctx, valueKey(1)).Val(); now == foreign || !strings.HasPrefix(now, "Lv") {
				r.Errorf("%s: it still stands there", name)
			}
			c.comesFrom(r, 1, r.near())
			if source.loads(1) != loads+1 {
				r.Errorf("%s: %d loads", name, source.loads(1)-loads)
			}
		}
	})
}

// A key of another type belongs to somebody else: it stays as it is, and the source and the
// local tier answer. A commit or an invalidation that did not ask for the type fails here.
func TestAnotherTypeUnderAKeyIsLeftAlone(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		for name, put := range map[string]func(key string) error{
			"list":   func(key string) error { return r.rdb.LPush(r.ctx, key, "x").Err() },
			"hash":   func(key string) error { return r.rdb.HSet(r.ctx, key, "t", "x").Err() },
			"set":    func(key string) error { return r.rdb.SAdd(r.ctx, key, "x").Err() },
			"sorted": func(key string) error { return r.rdb.ZAdd(r.ctx, key, redis.Z{Member: "x"}).Err() },
			"stream": func(key string) error {
				return r.rdb.XAdd(r.ctx, &redis.XAddArgs{Stream: key, Values: []string{"a", "b"}}).Err()
			},
		} {
			for _, key := range []string{valueKey(1), leaseKey(1)} {
				if key == leaseKey(1) && name == "hash" {
					continue // that is what a lease is
				}
				r.rdb.FlushDB(r.ctx)
				if err := put(key); err != nil {
					r.Fatal(err)
				}
				theirs := r.rdb.Type(r.ctx, key).Val()
				loads := source.loads(1)
				c := open(r, source.source())
				c.gives(r, 1, "v1")
				if r.local {
					c.comesFrom(r, 1, cache.TierLocal)
				} else {
					c.comesFrom(r, 1, cache.TierSource)
				}
				if got := c.Stats(); got.Rebuild.Foreign == 0 || got.Unfit != 0 || got.Degraded != uint64(source.loads(1)-loads) {
					r.Errorf("a %s at %s: %d loads, %+v", name, key, source.loads(1)-loads, got)
				}
				for op, err := range map[string]error{
					"Invalidate": c.Invalidate(r.ctx, 1),
					"Write":      c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil }),
					"Set":        c.Set(r.ctx, 1, "v1"),
				} {
					if err != nil {
						r.Errorf("a %s at %s: %s: %v", name, key, op, err)
					}
				}
				c.gives(r, 1, "v1")
				if now := r.rdb.Type(r.ctx, key).Val(); now != theirs {
					r.Errorf("a %s at %s has become a %s", name, key, now)
				}
				r.rdb.Del(r.ctx, key)
			}
		}
	})
}

// Two versions of a program, during a deployment. If they shared a key, each
// would throw out what the other wrote.
func TestTwoSchemasLiveSideBySide(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1)
		schema := func(n int) func(*cache.Options) { return func(o *cache.Options) { o.Schema = n } }
		versions := []*probe[int64, string]{
			open(r, source.source()), open(r, source.source(), schema(1)), open(r, source.source(), schema(2)),
		}
		for range 20 {
			for _, c := range versions {
				c.gives(r, 1, "v1")
			}
		}
		if n := source.loads(1); n != len(versions) {
			r.Errorf("%d loads for %d schemas", n, len(versions))
		}
		for _, c := range versions {
			if n := c.Stats().Unfit; n != 0 {
				r.Errorf("%d values were unfit", n)
			}
		}
	})
}

// During a deployment old and new processes read the same key in two forms. Each form
// is loaded once in each of its lives, not once for every Get of the other's readers.
func TestTwoFormsOfAValueAreLoadedOnceEachInALife(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		const life, length = time.Second, 30 * time.Second
		old, revised := newRows(r, 1), newRows(r, 1)
		revised.put(1, "in another form")
		change := func(o *cache.Options) { o.TTL = life; hard(o) }
		inForm := func(source cache.Source[int64, string], schema int) (two []*probe[int64, string]) {
			for range 2 {
				two = append(two, open(r, source, change, func(o *cache.Options) { o.Schema = schema }))
			}
			return two
		}
		olds, news := inForm(old.source(), 1), inForm(revised.source(), 2)
		reads := 0
		for began := time.Now(); time.Since(began) < length; time.Sleep(5 * time.Millisecond) {
			for i := range 2 {
				olds[i].gives(r, 1, "v1")
				news[i].gives(r, 1, "in another form")
				reads += 2
			}
		}
		r.Logf("%d reads: %d loads of the old form, %d of the new", reads, old.all(), revised.all())
		windows := int(length/(life*9/10)) + 1 // a life is shorter by the jitter
		if old.all() > windows || revised.all() > windows || old.all() < 2 {
			r.Errorf("%d and %d loads in %d windows", old.all(), revised.all(), windows)
		}
		for _, c := range append(olds, news...) {
			if n := c.Stats().Unfit; n != 0 {
				r.Errorf("%d values were unfit", n)
			}
		}
	})
}

// Replies that reach the wrong command are what cost others their data before. The
// digest is what this tests: without it the wrong values come out. Two processes read
// different keys at a time, one each and many at once, and each gets what the other asked for.
func TestSwappedRepliesAreNeverAnswers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	proxy := redistest.Proxy(t, server.Addr())
	const each = 32
	var keys []int64
	var stored []string
	for key := range int64(2 * each) {
		keys, stored = append(keys, key), append(stored, valueKey(key))
	}
	value := func(key int64) string { return fmt.Sprint("value of ", key) }
	source := newRows(r, keys...)
	for _, key := range keys {
		source.put(key, value(key))
	}
	processes := []*probe[int64, string]{openOn(r, proxy.Client(t), source.source()), openOn(r, proxy.Client(t), source.source())}
	swap := func(pairs int, read func(c *probe[int64, string], own []int64)) {
		for r.rdb.Exists(r.ctx, stored...).Val() < int64(len(keys)) { // a machine that is busy for a lease's time has lost a result
			for _, key := range keys {
				processes[0].gives(r, key, value(key))
			}
		}
		before := processes[0].Stats().Unfit + processes[1].Stats().Unfit
		proxy.SwapReplies(pairs, "GETRANGE")
		var reading sync.WaitGroup
		for i, c := range processes {
			reading.Go(func() { read(c, keys[i*each:(i+1)*each]) })
		}
		reading.Wait()
		if n := processes[0].Stats().Unfit + processes[1].Stats().Unfit - before; n != uint64(2*pairs) {
			r.Errorf("%d of %d swapped replies were noticed: %+v and %+v", n, 2*pairs, processes[0].Stats(), processes[1].Stats())
		}
	}
	for n := range redistest.Pick(100, 5000) {
		swap(1, func(c *probe[int64, string], own []int64) { c.gives(r, own[n%each], value(own[n%each])) })
	}
	for range redistest.Pick(10, 500) {
		swap(each, func(c *probe[int64, string], own []int64) {
			got, err := c.GetMany(r.ctx, own)
			if err != nil || len(got) != each {
				r.Errorf("GetMany: %d of %d keys, %v", len(got), each, err)
			}
			for key, v := range got {
				if v != value(key) {
					r.Errorf("GetMany gives %q for %d", v, key)
				}
			}
		})
	}
}

// A foreign value of any size costs what a value may, on whichever way it is met, and
// is counted and written over. With a GET in place of one of the reads, the client
// makes room for all of it. Callers of one moment each read it, as long as nobody knows
// that it is long.
func TestAHugeForeignValueIsNotReadWhole(t *testing.T) {
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	source := newRows(r, 1, 2, 3, 4)
	foreign := func() { // put there by the server, so that it does not count as allocated here
		huge := redistest.Pick[int64](32<<20, 300<<20)
		if _, err := r.rdb.TxPipelined(r.ctx, func(p redis.Pipeliner) error { // a waiter must not see half of it
			p.SetRange(r.ctx, valueKey(1), huge, "x")
			p.SetRange(r.ctx, valueKey(1), 0, "Lv\x02\x01\x01")
			p.Expire(r.ctx, valueKey(1), time.Minute)
			return nil
		}); err != nil {
			r.Fatal(err)
		}
	}
	for name, meet := range map[string]func(c *probe[int64, string]){
		"a Get": func(c *probe[int64, string]) {
			foreign()
			c.gives(r, 1, "v1")
		},
		"many Gets": func(c *probe[int64, string]) {
			foreign()
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() { c.gives(r, 1, "v1") })
			}
			all.Wait()
		},
		"GetMany": func(c *probe[int64, string]) {
			foreign()
			if got, err := c.GetMany(r.ctx, []int64{1, 2, 3, 4}); err != nil || got[1] != "v1" || len(got) != 4 {
				r.Errorf("GetMany: %v, %v", got, err)
			}
		},
		"a wait for another's load": func(c *probe[int64, string]) {
			at := newLatch()
			source.slowly(at.wait)
			defer source.slowly(nil)
			other := open(r, source.source())
			var both sync.WaitGroup
			both.Go(func() { other.gives(r, 1, "v1") })
			at.arrived(r)
			both.Go(func() { c.gives(r, 1, "v1") })
			r.eventually("it waits", func() bool { return c.Stats().Rebuild.Waits > 0 })
			foreign()
			r.eventually("it has looked", func() bool { return c.Stats().Unfit > 0 })
			close(at.open)
			both.Wait()
		},
	} {
		if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		c := open(r, source.source())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		meet(c)
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d KiB allocated", name, allocated>>10)
		reads := uint64(1)
		if name == "many Gets" {
			reads = 32
		}
		if allocated > reads<<23 { // a value may have 1 MiB, and is read once more where the first read was late
			t.Errorf("%s: %d bytes allocated", name, allocated)
		}
		if s := c.Stats(); s.Unfit < 1 || s.Unfit > reads || s.Rebuild.Unknown != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		c.comesFrom(r, 1, cache.TierRedis)
	}
}
