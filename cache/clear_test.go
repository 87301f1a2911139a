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

// Values and nulls from before a Clear answer nobody: at once in the process that
// clears, and in others when the message has come. What is loaded afterwards is kept.
// Without the comparison of epochs in judge, Redis goes on to answer.
func TestClearEndsEveryValueAndNull(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r, 1, 2)
		c, other := open(r, source.source()), open(r, source.source())
		for range 3 { // the second miss puts a null into Redis
			for _, p := range []*probe[int64, string]{c, other} {
				p.gives(r, 1, "v1")
				p.gives404(r, 7)
				if got, err := p.GetMany(r.ctx, []int64{1, 2}); err != nil || len(got) != 2 {
					r.Errorf("%v, %v", got, err)
				}
			}
		}
		for round := range 3 {
			value := fmt.Sprint("v2", round)
			source.put(1, value)
			source.put(2, value)
			source.put(7, value)
			if err := c.Clear(r.ctx); err != nil {
				r.Fatal(err)
			}
			if got, err := c.GetMany(r.ctx, []int64{1, 2, 7}); err != nil || got[1] != value || got[2] != value || got[7] != value {
				r.Errorf("%v, %v", got, err)
			}
			loads := source.loads(1)
			if r.rdb == nil {
				if err := other.Clear(r.ctx); err != nil { // without Redis they know nothing of each other
					r.Fatal(err)
				}
			}
			r.eventually("the other follows", func() bool {
				got, err := other.Get(r.ctx, 1)
				return err == nil && got == value
			})
			other.gives(r, 7, value)
			if r.rdb != nil && source.loads(1) != loads {
				r.Errorf("%d loads after the first", source.loads(1)-loads)
			}
			if r.kept() {
				c.comesFrom(r, 1, r.near())
			}
		}
		if s := c.Stats(); s.Unfit != 0 || r.rdb != nil && s.Cleared == 0 {
			r.Errorf("%d values were unfit, %d from before a Clear", s.Unfit, s.Cleared)
		}
	})
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

// A Clear that Redis does not confirm is an error, and holds for this process all the
// same; it is confirmed later, for everybody.
func TestAClearThatIsNotConfirmedIsTriedAgain(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1)
		c, other := open(r, source.source()), open(r, source.source())
		c.gives(r, 1, "v1")
		other.gives(r, 1, "v1")
		source.put(1, "v2")
		m.SetError("LOADING")
		if err := c.Clear(r.ctx); !errors.Is(err, cache.ErrNotInvalidated) {
			r.Errorf("got %v", err)
		}
		c.gives(r, 1, "v2")
		m.SetError("")
		c.gives(r, 1, "v2")
		r.eventually("it is confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
		c.gives(r, 1, "v2")
		r.eventually("the other follows", func() bool { v, err := other.Get(r.ctx, 1); return err == nil && v == "v2" })
		if err := c.Close(); err != nil {
			r.Error(err)
		}
		if err := c.Clear(r.ctx); !errors.Is(err, cache.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
	})
}

// No message reaches the process, as it knows by now. It may answer with old values for
// a second, from Redis or from its memory; reading the epoch less often fails here.
func TestAProcessWithoutMessagesFollowsAClearWithinASecond(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("local ", local), func(t *testing.T) {
			t.Parallel() // it waits, most of the time
			server := redistest.Start(t)
			r := onServer(t, server, cell{redis: "real", local: local})
			r.deaf = true
			p := redistest.Proxy(t, server.Addr())
			p.DropMessages(true)
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
				for time.Since(cleared) < 2*time.Second {
					for key := range int64(50) {
						asked := time.Since(cleared)
						got, err := deaf.Get(r.ctx, key)
						if err != nil {
							r.Fatal(err)
						}
						if got != now && asked > time.Second {
							r.Fatalf("%v after Clear it answers with version %d of %d", asked, got, now)
						}
						if got != now {
							old++
						}
					}
					time.Sleep(time.Millisecond)
				}
				r.Logf("%d old answers within the second", old)
			}
		})
	}
}

// However many values there are, a Clear is one command; they stay in Redis until their
// TTL, which it does not touch.
func TestAClearOfManyIsOneCommand(t *testing.T) {
	t.Parallel()
	keys := redistest.Pick(5_000, 1_000_000)
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := cache.Source[int64, string]{LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
		found := map[int64]string{}
		for _, key := range keys {
			found[key] = "v1"
		}
		return found, nil
	}}
	c := open(r, source, func(o *cache.Options) { o.RedisTimeout = 10 * time.Second })
	readAllOf(r, c, keys)
	r.eventually("messages arrive", func() bool { return c.Stats().Live })
	before, stored := server.Stat("total_commands_processed"), r.rdb.DBSize(r.ctx).Val()
	began := time.Now()
	if err := c.Clear(r.ctx); err != nil {
		r.Fatal(err)
	}
	r.Logf("%d values cleared in %v", stored, time.Since(began))
	// The script, once as EVALSHA and once as EVAL, the commands in it, heartbeats of two seconds,
	// and what this test asks.
	if sent := server.Stat("total_commands_processed") - before; sent > 30 {
		r.Errorf("%d commands", sent)
	}
	if left := r.rdb.DBSize(r.ctx).Val(); stored < int64(keys) || left < stored {
		r.Errorf("%d keys before, %d after", stored, left)
	}
	loads := c.Stats().Loads
	readAllOf(r, c, keys)
	if s := c.Stats(); s.Redis != 0 || s.Cleared < uint64(keys) || s.Loads == loads {
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

// The source is read from replicas that lag: what is loaded before they have caught up is
// an answer, and is kept nowhere.
func TestAClearWaitsForTheReplicasOfTheSource(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		const lag = 2 * time.Second
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.ReplicaLag = lag })
		c.gives(r, 1, "v1")
		if err := c.Clear(r.ctx); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 1, "v1") // from a replica that lags
		source.put(1, "v2")
		c.gives(r, 1, "v2")
		time.Sleep(lag)
		c.gives(r, 1, "v2")
		c.comesFrom(r, 1, cache.TierLocal)
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
