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

// anew are the rules of a read that asks the source.
var anew = cache.Reads{MaxAge: time.Nanosecond}

// reads fails the test unless key has this value by the rules.
func (p *probe[K, V]) reads(r *rig, rules cache.Reads, key K, want any, stale bool) {
	r.Helper()
	got, err := p.With(rules).Fetch(r.ctx, key)
	if err != nil || any(got.Value) != want || got.Stale != stale {
		r.Errorf("Fetch(%v) with %+v is %+v, %v; want %v, stale %v", key, rules, got, err, want, stale)
	}
}

var strictCells = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none", local: true}}

func TestAValueOlderThanMaxAgeIsLoadedAnewForEverybody(t *testing.T) {
	inCells(t, strictCells, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		source.put(1, "v2")
		c.reads(r, cache.Reads{MaxAge: time.Minute}, 1, "v1", false)
		time.Sleep(20 * time.Millisecond)
		c.reads(r, cache.Reads{MaxAge: 10 * time.Millisecond}, 1, "v2", false)
		r.eventually("a Get follows", func() bool { return must(c.Get(r.ctx, 1)) == "v2" })
		if r.rdb != nil {
			open(r, source.source()).gives(r, 1, "v2")
		}
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want 2", n)
		}
		source.remove(1)
		time.Sleep(2 * time.Millisecond) // what began in the same moment is new enough
		if got, err := c.With(anew).Get(r.ctx, 1); !errors.Is(err, cache.ErrNotFound) {
			r.Errorf("of a row that is gone: %v, %v", got, err)
		}
		r.eventually("a Get follows", func() bool { _, err := c.Get(r.ctx, 1); return errors.Is(err, cache.ErrNotFound) })
		time.Sleep(2 * time.Millisecond)
		source.put(1, "v3") // which neither a null in the process nor one in Redis hides
		c.reads(r, anew, 1, "v3", false)
	})
}

// Readers of two processes who want a value of now, all at once: one load, as none was under way.
// With claims instead, each reader would void the load of the one before.
func TestAStampedeOfTheAsStrictIsOneLoad(t *testing.T) {
	for _, many := range []bool{false, true} {
		inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
			source := newRows(r, 1, 2)
			src := source.source()
			if many {
				src = cache.Source[int64, string]{LoadMany: func(ctx context.Context, keys []int64) (map[int64]string, error) {
					values := map[int64]string{}
					for _, key := range keys {
						values[key] = must(source.load(ctx, key))
					}
					return values, nil
				}}
			}
			caches := []*probe[int64, string]{open(r, src), open(r, src)}
			for _, c := range caches {
				c.gives(r, 1, "v1")
				c.gives(r, 2, "v1")
			}
			source.put(1, "v2")
			source.put(2, "v2")
			source.forget()
			source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
			time.Sleep(time.Second)
			var wg sync.WaitGroup
			for _, c := range caches {
				for range 64 {
					wg.Go(func() { c.reads(r, anew, 1, "v2", false) })
					wg.Go(func() {
						got, err := c.With(anew).GetMany(r.ctx, []int64{1, 2})
						if err != nil || got[1] != "v2" || got[2] != "v2" {
							r.Errorf("a page: %v, %v", got, err)
						}
					})
				}
			}
			synctest.Wait()
			for _, c := range caches {
				c.gives(r, 1, "v1") // at once, beside the load
			}
			wg.Wait()
			if source.loads(1) != 1 || source.loads(2) != 1 {
				r.Errorf("%d and %d loads, want 1", source.loads(1), source.loads(2))
			}
		})
	}
}

// A load that is under way began too early for who comes now: one more load, for all of them.
func TestALoadUnderWayIsNoAnswerToWhoComesAfterItsBeginning(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		caches := []*probe[int64, string]{open(r, source.source())}
		if r.rdb != nil {
			caches = append(caches, open(r, source.source()))
		}
		for _, c := range caches {
			c.gives(r, 1, "v1")
		}
		source.forget()
		source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		wg.Go(func() { caches[0].reads(r, anew, 1, "v1", false) })
		time.Sleep(10 * time.Millisecond)
		source.put(1, "v2") // beside the load, which has read v1
		for _, c := range caches {
			for range 64 {
				wg.Go(func() { c.reads(r, anew, 1, "v2", false) })
			}
		}
		wg.Go(func() { caches[0].reads(r, cache.Reads{MaxAge: 100 * time.Millisecond}, 1, "v1", false) }) // one who is not as strict
		began := time.Now()
		wg.Wait()
		if n := source.loads(1); n != 2 {
			r.Errorf("%d loads, want 2", n)
		}
		if took := time.Since(began); took > 150*time.Millisecond {
			r.Errorf("two loads of 50 ms took %v", took)
		}
	})
}

// Pages that join the loads of another page, too late, go on together: with one load a key, one
// after another, they would take as many loads as they have keys.
func TestPagesThatComeTooLateForALoadGoOnTogether(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		source := newBatches(r, 1, 100)
		c := open(r, source.source())
		var keys []int64
		for key := range int64(100) {
			keys = append(keys, key+1)
		}
		if _, err := c.GetMany(r.ctx, keys); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		source.forget()
		source.slowly(func(context.Context, []int64) error { time.Sleep(50 * time.Millisecond); return nil })
		var wg sync.WaitGroup
		page := func() {
			if got, err := c.With(anew).GetMany(r.ctx, keys); err != nil || len(got) != len(keys) {
				r.Errorf("%d values, %v", len(got), err)
			}
		}
		wg.Go(page)
		time.Sleep(10 * time.Millisecond)
		for range 8 {
			wg.Go(page)
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); took > 150*time.Millisecond {
			r.Errorf("two loads of 50 ms took %v", took)
		}
		byKey, calls := source.loads()
		for key, n := range byKey {
			if n != 2 || calls > 9 {
				r.Errorf("%d loads of %d, in %d calls, want 2", n, key, calls)
			}
		}
	})
}

// If the load fails, the value that is too old is served, marked; with NoStale the error is.
func TestIfTheLoadFailsAnOlderValueIsServedMarked(t *testing.T) {
	inCells(t, strictCells, func(r *rig) {
		for name, change := range map[string]func(*cache.Options){"": func(*cache.Options) {}, "-hard": hard} {
			source := newRows(r, 1)
			c := open(r, source.source(), change, func(o *cache.Options) { o.Name = "test" + name })
			c.gives(r, 1, "v1")
			time.Sleep(5 * time.Millisecond)
			source.slowly(func(context.Context, int64) error { return errBroken })
			for range 3 {
				c.reads(r, anew, 1, "v1", true)
				if got, err := c.With(cache.Reads{MaxAge: 1, NoStale: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
					r.Errorf("with NoStale: %v, %v", got, err)
				}
				c.gives(r, 1, "v1")
			}
			if s := c.Stats(); s.Stale != 3 || s.Errors != 3 {
				r.Errorf("%+v", s)
			}
			if n := source.loads(1); n != 3 && r.redis != "real" { // one that is held for those with a fallback, and one for all
				r.Errorf("%d loads", n)
			}
		}
	})
}

// The error that a read by rules has left answers nobody else: not a Get that has to load, and not
// a refresh. And a Get's error does not answer a read by rules.
func TestNoErrorCrossesFromStrictReadsToOthers(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		c := open(r, source.source(), staleAfterASecond, func(o *cache.Options) { o.Rebuild.ErrorHold = time.Minute })
		source.slowly(func(context.Context, int64) error { return errBroken })
		for _, rules := range []cache.Reads{{NoStale: true}, {SkipLocal: true}, anew} { // all by one error
			if _, err := c.With(rules).Get(r.ctx, 1); !errors.Is(err, errBroken) {
				r.Errorf("with %+v: %v", rules, err)
			}
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads, want 1 and its held error", n)
		}
		source.slowly(nil)
		c.gives(r, 1, "v1") // held for strict readers alone
		pastTTL()
		c.gives(r, 1, "v1")
		synctest.Wait()
		if s := c.Stats(); s.Refreshes != 1 || s.Refreshed != 1 {
			r.Errorf("the refresh beside a held error: %+v", s)
		}
		source.slowly(func(context.Context, int64) error { return errBroken })
		if _, err := c.Get(r.ctx, 2); !errors.Is(err, errBroken) {
			r.Errorf("Get: %v", err)
		}
		source.slowly(nil)
		c.reads(r, cache.Reads{NoStale: true}, 2, "v1", false)
		if err := c.Invalidate(r.ctx, 1); err != nil { // forgets both
			r.Fatal(err)
		}
		c.reads(r, cache.Reads{NoStale: true}, 1, "v1", false)
	})
}

// A value past its TTL is waited for, by this reader alone; others get it at once, and one load
// serves them all.
func TestWithNoStaleNothingPastItsTTLIsServed(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		for name, past := range map[string]func(*cache.Options){"stale": staleAfterASecond, "fallback": fallbackAfterASecond} {
			source := newRows(r, 1)
			c := open(r, source.source(), past, func(o *cache.Options) { o.Name = name })
			c.gives(r, 1, "v1")
			pastTTL()
			source.put(1, "v2")
			source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { c.reads(r, cache.Reads{NoStale: true}, 1, "v2", false) })
			}
			synctest.Wait()
			if name == "stale" {
				c.gives(r, 1, "v1")
			}
			wg.Wait()
			if n := source.loads(1); r.rdb != nil && n != 2 {
				r.Errorf("%s: %d loads, want 2", name, n)
			}
			pastTTL()
			source.slowly(func(context.Context, int64) error { return errBroken })
			if got, err := c.With(cache.Reads{NoStale: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
				r.Errorf("%s, when the load fails: %v, %v", name, got, err)
			}
			ctx, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
			source.slowly(func(context.Context, int64) error { time.Sleep(50 * time.Millisecond); return nil })
			time.Sleep(time.Second)
			if got, err := c.With(cache.Reads{NoStale: true}).Get(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
				r.Errorf("%s, at the deadline: %v, %v", name, got, err)
			}
			cancel()
			time.Sleep(time.Second)
		}
	})
}

// A read with SkipLocal takes nothing from the process, and fills it: so does what it finds, and
// what it loads. It begins the refreshes that a Get would (ZiggyCreatures/FusionCache#604).
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

// deafAndWriter opens a cache that no message reaches, and another one. hook is one of the client of
// the deaf one, nil: none.
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

// What another process has written is there for who asks Redis, though no message tells of it and
// the local tier still serves the old value.
func TestWithSkipLocalAWriteElsewhereIsSeenWithoutItsMessage(t *testing.T) {
	server := start(t)
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

// afterCommit is a hook that calls do when the server has answered the first commit of a client: the
// first script of a value and its lease that does not ask for that.
func afterCommit(do func()) redis.Hook { return &answered{do: sync.OnceFunc(do)} }

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

// A strict caller joins a flight whose value is published, and was invalidated elsewhere before the
// caller came. The local tier of the process, which has not heard of it, must not decide that the
// caller may have the value.
func TestAStrictFlightIsNotForAllWhomTheLocalTierWouldAnswer(t *testing.T) {
	server := start(t)
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

// While Redis is out of reach SkipLocal asks the source, and what the process has kept is not
// served, also not for an error.
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
		if got, err := c.With(cache.Reads{MaxAge: 1, NoStale: true}).Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("with NoStale, when the load fails: %v, %v", got, err)
		}
		c.reads(r, anew, 1, "v4", true)
	})
}

// A Get that has to load opens a flight of its own beside one of a strict reader, and is answered
// by another process's value if that is enough for it.
func TestAGetWaitsForNoStrictFlight(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		time.Sleep(10 * time.Millisecond)
		source.slowly(gate.wait)
		var wg sync.WaitGroup
		wg.Go(func() { c.reads(r, anew, 1, "v1", false) })
		gate.arrived(r)
		c.gives(r, 1, "v1")
		if got, err := c.GetMany(r.ctx, []int64{1}); err != nil || got[1] != "v1" {
			r.Errorf("a page: %v, %v", got, err)
		}
		c.reads(r, cache.Reads{SkipLocal: true}, 1, "v1", false) // nor does a reader who is not as strict
		close(gate.open)
		wg.Wait()
		if s := c.Stats(); s.Joined != 0 {
			r.Errorf("somebody joined: %+v", s)
		}
	})
}

// A load that asks for its own key by rules would wait for itself.
func TestAStrictReadOfALoadsOwnKeyIsReentrant(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "none"}}, func(r *rig) {
		var c *probe[int64, string]
		c = open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			return c.With(anew).Get(ctx, key)
		}})
		for _, get := range []func(context.Context, int64) (string, error){c.Get, c.With(anew).Get, c.With(cache.Reads{NoStale: true}).Get} {
			if _, err := get(r.ctx, 1); !errors.Is(err, cache.ErrReentrant) {
				r.Errorf("got %v", err)
			}
		}
	})
}

// What was chosen within its TTL is not marked because the TTL ends before the caller has it: here the Clone of
// the first value takes that long.
func TestAnAnswerIsMarkedByWhenItWasChosen(t *testing.T) {
	inBubble(t, cell{redis: "none", local: true}, func(r *rig, _ *redistest.MiniServer) {
		src := newRows(r, 1, 2).source()
		slow := false
		src.Clone = func(v string) string {
			if slow {
				time.Sleep(2 * time.Second)
			}
			return v
		}
		c := open(r, src, staleAfterASecond)
		c.gives(r, 1, "v1")
		c.gives(r, 2, "v1")
		slow = true
		got, err := c.With(cache.Reads{NoStale: true}).FetchMany(r.ctx, []int64{1, 2})
		if err != nil || len(got) != 2 || got[1].Stale || got[2].Stale {
			r.Errorf("with NoStale: %+v, %v", got, err)
		}
	})
}

// A read that wants no old value waits for another process' load, and one that asks Redis joins its
// flight. Meanwhile the local tier is filled, by a Get, with a value that is then invalidated
// elsewhere: it is new enough for the first, and nothing for the second, who came after the invalidation.
//
// Catches a flight whose local look is by the rules of the reader who opened it, and answers all.
func TestWithSkipLocalTheLookOfAnotherReadersFlightIsNoAnswer(t *testing.T) {
	server := start(t)
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

// A null is too old for who wants to know it of now, and the load fails. Catches a null that is
// served in place of the error: it is no older value.
func TestANullIsNotServedForALoadThatFails(t *testing.T) {
	inCells(t, strictCells, func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		for range 3 { // the second miss puts a null into Redis
			c.gives404(r, 1)
			time.Sleep(5 * time.Millisecond)
		}
		source.slowly(func(context.Context, int64) error { return errBroken })
		if got, err := c.With(anew).Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("got %v, %v", got, err)
		}
		c.gives404(r, 1)
	})
}

// During an outage callers for whom the process has kept a value do not wait for a place among the
// degraded loads. A reader who does not take it does. Catches one who gets ErrOverloaded at once.
func TestDuringAnOutageWhoTakesNoKeptValueWaitsForAPlace(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		c, source, wg := duringABusyOutage(r, m)
		source.put(1, "v2")
		for _, rules := range []cache.Reads{{NoStale: true}, {SkipLocal: true}} {
			wg.Go(func() { c.reads(r, rules, 1, "v2", false) })
		}
		wg.Wait()
	})
}
