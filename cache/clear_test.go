package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Values and nulls from before a Clear answer nobody, and ClearTags ends the values of its tags and no
// others: at once in the process that clears, and in others when the message has come. What is loaded
// afterwards is kept.
//
// Without the comparison of epochs in judge, Redis goes on to answer. Catches also a hit in the local
// tier or in Redis whose tags are not compared, an epoch of the last Clear alone (no value with the tag
// would count any more), and a ClearTags that ends everything.
func TestAClearEndsItsValuesAndNoOthers(t *testing.T) {
	type process = *probe[int64, string]
	ofTags := func(tags ...string) func(*rig, process) error {
		return func(r *rig, p process) error { return p.ClearTags(r.ctx, tags...) }
	}
	for name, test := range map[string]struct {
		clear       func(*rig, process) error
		ends, stays []int64 // 7 does not exist at first
	}{
		"everything":    {func(r *rig, p process) error { return p.Clear(r.ctx) }, []int64{1, 2, 7, 11, 12}, nil},
		"a tag":         {ofTags(tenant(0), "of nothing"), []int64{1, 2}, []int64{11, 12}},
		"a tag of each": {ofTags("everybody"), []int64{1, 2, 11, 12}, nil},
		"no tags":       {ofTags(), nil, []int64{1, 2, 11, 12}},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				source := newRows(r, 1, 2, 11, 12)
				c, other := open(r, source.tagged()), open(r, source.tagged())
				for range 3 { // the second miss puts a null into Redis
					for _, p := range []process{c, other} {
						p.gives(r, 1, "v1")
						p.gives404(r, 7)
						p.givesMany(r, []int64{1, 2, 11, 12}, "v1")
					}
				}
				for round := range 3 {
					value := fmt.Sprint("v2", round)
					for _, key := range slices.Concat(test.ends, test.stays) {
						source.put(key, value)
					}
					before := c.Stats()
					r.do(test.clear(r, c))
					if len(test.ends) > 0 {
						c.gives(r, test.ends[0], value)
					}
					c.givesMany(r, test.ends, value)
					loads := source.all()
					if r.rdb == nil {
						r.do(test.clear(r, other)) // without Redis they know nothing of each other
					}
					for _, key := range test.ends {
						r.eventually("the other follows", func() bool { got, err := other.Get(r.ctx, key); return err == nil && got == value })
					}
					if r.rdb != nil && source.all() != loads {
						r.Errorf("%d loads after the first", source.all()-loads)
					}
					if !r.kept() {
						continue
					}
					c.givesMany(r, test.stays, "v1")
					for _, key := range test.ends {
						c.comesFrom(r, key, r.near())
					}
					if n := c.Stats().Loads - before.Loads; n != uint64(len(test.ends)) {
						r.Errorf("%d loads, want one of each value that has ended", n)
					}
				}
				if s := c.Stats(); s.Unfit != 0 || r.rdb != nil && s.Cleared == 0 && len(test.ends) > 0 {
					r.Errorf("%d values were unfit, %d from before a clear", s.Unfit, s.Cleared)
				}
			})
		})
	}
}

// A load that began before Clear may have read what was there before. Its own callers get
// it; who asks after Clear does not, whether he joins the flight or comes later. If the
// publication did not look at the epoch, the one who joins would get it.
func TestALoadUnderWayDoesNotOutliveAClear(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none"}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c, other := open(r, source.source()), open(r, source.source())
		began, goOn := make(chan struct{}, 10), make(chan struct{})
		source.slowly(func(context.Context, int64) error { began <- struct{}{}; <-goOn; return nil })
		first, later := make(chan string, 1), make(chan string, 1)
		get := func(into chan string) { v, _ := c.Get(r.ctx, 1); into <- v }
		go get(first)
		<-began
		source.put(1, "v2")
		if err := c.Clear(r.ctx); err != nil {
			r.Fatal(err)
		}
		go get(later)
		r.eventually("he has joined", func() bool { return c.Stats().Gets == 2 })
		close(goOn)
		if got := <-first; got != "v1" && got != "v2" {
			r.Errorf("the first caller got %q", got)
		}
		if got := <-later; got != "v2" {
			r.Errorf("who asked after Clear got %q", got)
		}
		for range 3 {
			c.gives(r, 1, "v2")
		}
		r.eventually("the other follows", func() bool { v, err := other.Get(r.ctx, 1); return err == nil && v == "v2" })
	})
}

// Redis does not confirm a clear: the call returns an error, and the clear holds in its own process all
// the same. A later try confirms it for all processes.
func TestAClearThatIsNotConfirmedIsTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		clear func(r *rig, p *probe[int64, string]) error
		rest  string // what another process has then of a value without the tag
	}{
		"all values": {func(r *rig, p *probe[int64, string]) error { return p.Clear(r.ctx) }, "v2"},
		"those of tags": {
			func(r *rig, p *probe[int64, string]) error { return p.ClearTags(r.ctx, tenant(0), "more") }, "v1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
				source := newRows(r, 1, 11)
				c, other := open(r, source.tagged()), open(r, source.tagged())
				for _, p := range []*probe[int64, string]{c, other} {
					p.gives(r, 1, "v1")
					p.gives(r, 11, "v1")
				}
				source.put(1, "v2")
				source.put(11, "v2")
				m.SetError("LOADING")
				if err := test.clear(r, c); !errors.Is(err, cache.ErrNotInvalidated) {
					r.Errorf("got %v", err)
				}
				c.gives(r, 1, "v2")
				m.SetError("")
				c.gives(r, 1, "v2")
				r.eventually("it is confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
				c.gives(r, 1, "v2")
				r.eventually("the other follows", func() bool { v, err := other.Get(r.ctx, 1); return err == nil && v == "v2" })
				other.gives(r, 11, test.rest)
				if err := c.Close(); err != nil {
					r.Error(err)
				}
				if err := test.clear(r, c); !errors.Is(err, cache.ErrClosed) {
					r.Errorf("after Close: %v", err)
				}
			})
		})
	}
}

// No message reaches the process, as it knows by now. It may answer with old values for
// a second, from Redis or from its memory; reading the epoch less often fails here.
func TestAProcessWithoutMessagesFollowsAClearWithinASecond(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("local ", local), func(t *testing.T) {
			t.Parallel() // it waits, most of the time
			server := redistest.Start(t)
			r := onFailing(t, server, cell{redis: "real", local: local})
			r.deaf, r.patient = true, true
			p := redistest.Proxy(t, server.Addr())
			p.DropMessages(true)
			most := time.Second
			if local {
				most *= 2 // the clock of the local tier is late where the process is
			}
			var version atomic.Int64
			src := cache.Source[int64, int64]{Load: func(context.Context, int64) (int64, error) { return version.Load(), nil }}
			deaf := openOn(r, redis.UniversalClient(p.Client(t)), src)
			c := open(r, src)
			for range 3 {
				for key := range int64(50) {
					if _, err := deaf.Get(r.ctx, key); err != nil {
						r.Fatal(err)
					}
				}
				now := version.Add(1)
				if err := c.Clear(r.ctx); err != nil {
					r.Fatal(err)
				}
				cleared, old := time.Now(), 0
				for time.Since(cleared) < most+time.Second {
					for key := range int64(50) {
						asked := time.Since(cleared)
						got, err := deaf.Get(r.ctx, key)
						if err != nil {
							r.Fatal(err)
						}
						if got != now && asked > most {
							r.Fatalf("%v after Clear it answers with version %d of %d", asked, got, now)
						}
						if got != now {
							old++
						}
					}
					time.Sleep(time.Millisecond)
				}
				r.Logf("%d old answers within %v", old, most)
			}
		})
	}
}

// However many values there are, a clear of all of them or of a tag is one command; they stay in Redis
// until their TTL, which it does not touch.
func TestAClearOfManyIsOneCommand(t *testing.T) {
	t.Parallel()
	keys, tenants := redistest.Pick(5_000, 1_000_000), redistest.Pick[int64](200, 10_000)
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	tag := func(key int64) string { return tenant(key % tenants) }
	source := cache.Source[int64, string]{
		LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
			found := map[int64]string{}
			for _, key := range keys {
				found[key] = "v1"
			}
			return found, nil
		},
		Tags: func(key int64, _ string) []string { return []string{tag(key)} },
	}
	c := open(r, source, func(o *cache.Options) { o.RedisTimeout = 10 * time.Second })
	readAllOf(r, c, keys)
	r.eventually("messages arrive", func() bool { return c.Stats().Live })
	// Most is for the script, the dozen commands in it, a heartbeat or two, and what this test asks.
	clears := func(what string, most int64, clear func() error) {
		r.Helper()
		before, stored := server.Stat("total_commands_processed"), r.rdb.DBSize(r.ctx).Val()
		began := time.Now()
		r.do(clear())
		r.Logf("%s of %d values cleared in %v", what, stored, time.Since(began))
		if sent := server.Stat("total_commands_processed") - before; sent > most {
			r.Errorf("%s: %d commands", what, sent)
		}
		if left := r.rdb.DBSize(r.ctx).Val(); stored < int64(keys) || left < stored {
			r.Errorf("%s: %d keys before, %d after", what, stored, left)
		}
	}

	r.do(c.ClearTags(r.ctx, "warm")) // the server has the script
	clears("one tag", 20, func() error { return c.ClearTags(r.ctx, tag(7)) })
	loads := c.Stats().Loads
	for _, key := range []int64{7, 7 + tenants, 8} {
		c.gives(r, key, "v1")
	}
	if n := c.Stats().Loads - loads; n != 2 {
		r.Errorf("%d loads, want one for each value with the tag", n)
	}

	clears("all", 30, func() error { return c.Clear(r.ctx) })
	before := c.Stats()
	readAllOf(r, c, keys)
	if s := c.Stats(); s.Redis != before.Redis || s.Cleared < before.Cleared+uint64(keys) || s.Loads == before.Loads {
		r.Errorf("%+v", s)
	}
}

// A cluster has the epoch on one node and the values on all of them.
func TestAClearOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	r := newRig(t, cell{redis: "real", local: true}, nil)
	r.client = func() redis.UniversalClient { return nodes.Client(t) }
	source := newRows(r)
	for key := range int64(100) {
		source.put(key, "v1")
	}
	slow := func(o *cache.Options) { o.RedisTimeout = 10 * time.Second }
	c, other := open(r, source.source(), slow), open(r, source.source(), slow)
	for key := range int64(100) {
		c.gives(r, key, "v1")
		other.gives(r, key, "v1")
		source.put(key, "v2")
	}
	if err := c.Clear(r.ctx); err != nil {
		r.Fatal(err)
	}
	for key := range int64(100) {
		c.gives(r, key, "v2")
	}
	r.eventually("the other follows", func() bool {
		for key := range int64(100) {
			if v, err := other.Get(r.ctx, key); err != nil || v != "v2" {
				return false
			}
		}
		return true
	})
}

// readAllOf reads the keys below n, which all have values, in batches.
func readAllOf(r *rig, c *probe[int64, string], n int) {
	r.Helper()
	for part := range slices.Chunk(span(0, int64(n)), 10_000) {
		if got, err := c.GetMany(r.ctx, part); err != nil || len(got) != len(part) {
			r.Fatalf("%d values, %v", len(got), err)
		}
	}
}
