package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A read with SkipLocal takes nothing from the local tier, and fills it with the value that it finds
// or loads. It begins the refreshes that a Get would begin (ZiggyCreatures/FusionCache#604).
func TestWithSkipLocalRedisIsAsked(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1, 2)
		c, other := open(r, source.source(), staleAfterASecond), open(r, source.source(), staleAfterASecond)
		reader := c.With(cache.Reads{SkipLocal: true})
		for _, want := range []cache.Tier{cache.TierSource, cache.TierRedis, cache.TierRedis} {
			if got, err := reader.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || got.Tier != want {
				r.Errorf("got %+v, %v, want from %v", got, err, want)
			}
		}
		if got, err := c.Fetch(r.ctx, 1); err != nil || got.Tier != cache.TierLocal {
			r.Errorf("a Get after it: %+v, %v", got, err)
		}
		other.gives(r, 2, "v1")
		page, err := reader.FetchMany(r.ctx, []int64{1, 2})
		if err != nil || page[1].Tier != cache.TierRedis || page[2].Tier != cache.TierRedis {
			r.Errorf("a page: %+v, %v", page, err)
		}
		if got, err := c.Fetch(r.ctx, 2); err != nil || got.Tier != cache.TierLocal {
			r.Errorf("a Get after the page: %+v, %v", got, err)
		}
		pastTTL()
		if got, err := reader.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
			r.Errorf("past the TTL: %+v, %v", got, err)
		}
		synctest.Wait()
		if s := c.Stats(); s.Refreshed != 1 {
			r.Errorf("%+v", s)
		}
	})
}

// While Redis is out of reach, a read with SkipLocal loads. It does not get the value that the process
// has kept, even if the load fails.
func TestDuringAnOutageSkipLocalLoads(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		r.Cleanup(func() { time.Sleep(time.Minute) })
		w, source := &way{}, newRows(r, 1, 2, 3, 4, 5)
		c := openOn(r, w.client(r, m), source.source(), ttl(time.Hour))
		c.gives(r, 1, "v1")
		w.refuse()
		for key := int64(2); key <= 5; key++ {
			c.gives(r, key, "v1")
		}
		if !c.Stats().Rebuild.Outage {
			r.Fatal("no outage")
		}
		source.put(1, "v2")
		c.reads(r, cache.Reads{SkipLocal: true}, 1, "v2", false)
		source.put(1, "v3")
		c.reads(r, cache.Reads{NoStale: true, SkipLocal: true}, 1, "v3", false)
		source.put(1, "v4")
		c.reads(r, anew, 1, "v4", false)
		source.slowly(func(context.Context, int64) error { return errBroken })
		if got, err := c.With(cache.Reads{SkipLocal: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("with SkipLocal, when the load fails: %v, %v", got, err)
		}
		if got, err := c.With(cache.Reads{Reload: true, NoStale: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("with NoStale, when the load fails: %v, %v", got, err)
		}
		c.reads(r, anew, 1, "v4", true)
	})
}

// deafAndWriter opens a cache that no message reaches, and a second one that writes. The client of the
// first one has this hook; nil: none.
func deafAndWriter(r *rig, server *redistest.Server, source *rows, hook redis.Hook, change func(*cache.Options)) (deaf, writer *probe[int64, string]) {
	r.deaf = true
	proxy := redistest.Proxy(r, server.Addr())
	proxy.DropMessages(true)
	long := func(o *cache.Options) {
		o.TTL, o.Local.TTL, o.Local.DistrustTTL, o.RedisTimeout = time.Hour, time.Hour, time.Minute, 5*time.Second
	}
	rdb := proxy.Client(r)
	if hook != nil {
		rdb.AddHook(hook)
	}
	deaf, writer = openOn(r, rdb, source.source(), long, change), open(r, source.source(), long)
	r.eventually("the link stands", func() bool { return deaf.Stats().LocalTier.Flushes > 0 })
	return deaf, writer
}

// Another process has written, and its message is lost, so the local tier still serves the old value.
// A read with SkipLocal gets the new one.
func TestWithSkipLocalAWriteElsewhereIsSeenWithoutItsMessage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	c, writer := deafAndWriter(r, server, source, nil, func(*cache.Options) {})
	c.gives(r, 1, "v1")
	c.comesFrom(r, 1, cache.TierLocal)
	source.put(1, "v2")
	if err := writer.Invalidate(r.ctx, 1); err != nil {
		r.Fatal(err)
	}
	c.gives(r, 1, "v1")
	for _, rules := range []cache.Reads{{SkipLocal: true, NoStale: true}, {SkipLocal: true}} { // by a load, and by Redis
		c.reads(r, rules, 1, "v2", false)
	}
	source.put(1, "v3")
	if err := writer.Set(r.ctx, 1, "v3"); err != nil {
		r.Fatal(err)
	}
	if got, err := c.With(cache.Reads{SkipLocal: true}).GetMany(r.ctx, []int64{1}); err != nil || got[1] != "v3" {
		r.Errorf("a page: %v, %v", got, err)
	}
}

// One reader has a MaxAge, and waits for the load of another process; a second one, with SkipLocal, joins
// its flight. Meanwhile a Get fills the local tier with a value, and another process invalidates it.
// This value is new enough for the first reader. The second one came after the invalidation, and must
// not get it.
//
// Catches a flight that looks into the local tier by the rules of its first reader, and answers all.
func TestWithSkipLocalTheLookOfAnotherReadersFlightIsNoAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source, gate := newRows(r, 1), newLatch()
	waits, release, joined := make(chan struct{}), make(chan struct{}), make(chan struct{}, 10)
	c, writer := deafAndWriter(r, server, source, nil, func(o *cache.Options) {
		o.Hooks.LeaseWait = func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
			close(waits)
			<-release
			return ctx, nil
		}
		o.Hooks.FlightWait = func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
			joined <- struct{}{}
			return ctx, nil
		}
	})
	source.slowly(gate.wait)
	loading := writer.getting(r.ctx, 1)
	gate.arrived(r)
	source.slowly(nil)
	var wg sync.WaitGroup
	wg.Go(func() { c.reads(r, cache.Reads{MaxAge: time.Hour}, 1, "v1", false) })
	<-waits
	close(gate.open)
	<-loading
	c.gives(r, 1, "v1")
	source.put(1, "v2")
	if err := writer.Invalidate(r.ctx, 1); err != nil {
		r.Error(err)
	}
	wg.Go(func() { c.reads(r, cache.Reads{SkipLocal: true}, 1, "v2", false) })
	<-joined
	close(release)
	wg.Wait()
}

// A flight has published its value, and another process has invalidated that since. Then a strict
// caller joins the flight. The local tier has not heard of the invalidation, and must not decide
// that the caller may have the value.
func TestAStrictFlightIsNotForAllWhomTheLocalTierWouldAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	source := newRows(r, 1)
	committed, release, joined := make(chan struct{}), make(chan struct{}), make(chan struct{}, 10)
	hook := afterCommit(func() { close(committed); <-release })
	c, writer := deafAndWriter(r, server, source, hook, func(o *cache.Options) {
		o.Hooks.FlightWait = func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
			joined <- struct{}{}
			return ctx, nil
		}
	})
	rules := cache.Reads{SkipLocal: true}
	var wg sync.WaitGroup
	wg.Go(func() { c.reads(r, rules, 1, "v1", false) })
	<-committed
	source.put(1, "v2")
	if err := writer.Invalidate(r.ctx, 1); err != nil {
		r.Error(err)
	}
	wg.Go(func() { c.reads(r, rules, 1, "v2", false) })
	<-joined
	close(release)
	wg.Wait()
}

// afterCommit is a hook that calls do after the first commit of a client: the server has answered a
// script of a value and its lease that does not ask for the lease.
func afterCommit(do func()) redis.Hook { return &answered{do: redistest.Once(do)} }

type answered struct{ do func() }

func (a *answered) look(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		args := cmd.Args()
		if cmd.Err() == nil && strings.HasPrefix(cmd.Name(), "eval") && fmt.Sprint(args[2]) == "2" && !slices.Contains(args, any("ask")) {
			a.do()
		}
	}
}

func (a *answered) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answered) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		a.look(cmd)
		return err
	}
}

func (a *answered) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		a.look(cmds...)
		return err
	}
}
