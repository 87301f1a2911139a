package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A told is what hooks were told of, in the order of the ends: "load 42 in rebuild" for a
// load whose context came from that of a rebuild.
type told struct {
	mu     sync.Mutex // guards what follows
	events []string
	served []string // by which load a wait or a rebuild was
	depth  int      // of contexts, at most
	hits   int

	waiting atomic.Int64 // flight waits that have begun
}

type toldKey struct{}

func (to *told) hook(name string) cache.Hook {
	return func(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
		outer, _ := ctx.Value(toldKey{}).([]string)
		name := name
		if op.Call != "" {
			name = op.Call
		}
		event := fmt.Sprintf("%s %s", name, op.Key)
		if op.Keys > 1 {
			event += fmt.Sprint(" +", op.Keys-1)
		}
		if op.Background {
			event += " in the background"
		}
		if len(outer) > 0 {
			event += " in " + outer[len(outer)-1]
		}
		to.mu.Lock()
		defer to.mu.Unlock()
		inner := append(slices.Clone(outer), name)
		to.depth = max(to.depth, len(inner))
		if name == "flight wait" {
			to.waiting.Add(1)
		}
		return context.WithValue(ctx, toldKey{}, inner), func(o cache.Outcome) {
			to.mu.Lock()
			defer to.mu.Unlock()
			if o.Err != nil {
				event += ": " + o.Err.Error()
			}
			to.events = append(to.events, event)
			to.hits += o.Hits
			if o.Load != nil {
				by, _ := o.Load.Value(toldKey{}).([]string)
				to.served = append(to.served, name+" by "+strings.Join(by, "/"))
			}
		}
	}
}

func (to *told) hooks(o *cache.Options) {
	o.Hooks = cache.Hooks{
		Read: to.hook("read"), FlightWait: to.hook("flight wait"), Rebuild: to.hook("rebuild"),
		LeaseWait: to.hook("lease wait"), Load: to.hook("load"), Write: to.hook("write"),
	}
}

// take returns what was told since the last take.
func (to *told) take() (events, served []string) {
	to.mu.Lock()
	defer to.mu.Unlock()
	events, served = to.events, to.served
	to.events, to.served = nil, nil
	return events, served
}

func (to *told) want(t testing.TB, want ...string) {
	t.Helper()
	if got, _ := to.take(); !slices.Equal(got, want) {
		t.Errorf("hooks were told %q, want %q", got, want)
	}
}

func TestHooksFollowAReadToItsLoad(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r, 1, 2, 3)
	var to told
	c := open(r, source.source(), to.hooks)
	c.gives(r, 1, "v1")
	to.want(t, "read 1", "load 1 in rebuild", "rebuild 1")
	c.gives(r, 1, "v1")
	to.want(t, "read 1")
	c.gives404(r, 9)
	to.want(t, "read 9", "load 9 in rebuild", "rebuild 9")
	to.hits = 0
	if got, err := c.GetMany(r.ctx, []int64{1, 2, 3}); err != nil || len(got) != 3 {
		t.Errorf("got %v, %v", got, err)
	}
	if got, _ := to.take(); got[0] != "read 1 +2" || to.hits != 1 {
		t.Errorf("a batch of three of which one is in Redis: %q, %d hits", got, to.hits)
	}
	s := c.Stats()
	if n := s.RedisRead.Count(); n != 4 || s.LoadTime.Count() != s.Loads || s.Loads != 4 {
		t.Errorf("4 reads and 4 loads are noted as %v and %v, %d loads", s.RedisRead, s.LoadTime, s.Loads)
	}
}

// A caller who waited learns which load has served it, also when that has failed.
func TestAWaitIsToldOfTheLoadThatServedIt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	for _, failure := range []error{nil, errors.New("no database")} {
		var to told
		loading, finish := make(chan struct{}), make(chan struct{})
		c := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) {
			close(loading)
			<-finish
			return "v", failure
		}}, to.hooks)
		var both sync.WaitGroup
		get := func() { _, _ = c.Get(r.ctx, 7) }
		both.Go(get)
		<-loading
		both.Go(get)
		r.eventually("the second waits", func() bool { return to.waiting.Load() == 1 })
		close(finish)
		both.Wait()
		events, served := to.take()
		slices.Sort(served)
		if want := []string{"flight wait by rebuild/load", "rebuild by rebuild/load"}; !slices.Equal(served, want) {
			t.Errorf("served %q, want %q; %q", served, want, events)
		}
		if s := c.Stats(); s.FlightWait.Count() != 1 || s.LoadTime.Count() != 1 {
			t.Errorf("one wait and one load are noted as %v and %v", s.FlightWait, s.LoadTime)
		}
		if err := c.Invalidate(r.ctx, 7); err != nil {
			t.Error(err)
		}
	}
}

func TestAWaitForAnotherProcessIsTold(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	loading, finish := make(chan struct{}), make(chan struct{})
	one := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) {
		close(loading)
		<-finish
		return "v", nil
	}})
	var to told
	other := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) {
		t.Error("the other process loads too")
		return "", nil
	}}, to.hooks)
	var both sync.WaitGroup
	both.Go(func() { one.gives(r, 7, "v") })
	<-loading
	both.Go(func() { other.gives(r, 7, "v") })
	r.eventually("the other waits", func() bool { return other.Stats().Rebuild.Waits > 0 })
	close(finish)
	both.Wait()
	to.mu.Lock()
	to.events = slices.Compact(to.events) // on a slow machine it looks more than once
	to.mu.Unlock()
	to.want(t, "read 7", "read 7 in rebuild", "lease wait 7 in rebuild", "rebuild 7")
	if s := other.Stats(); s.LeaseWait.Count() != 1 || s.LoadTime.Count() != 0 || s.LeaseWait.Sum <= 0 {
		t.Errorf("one wait is noted as %v, no load as %v", s.LeaseWait, s.LoadTime)
	}
}

func TestARefreshIsToldAsOneOfTheBackground(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r, 1)
	var to told
	c := open(r, source.source(), to.hooks, ttl(20*time.Millisecond))
	c.gives(r, 1, "v1")
	to.take()
	var events []string
	r.eventually("the value is refreshed", func() bool {
		c.gives(r, 1, "v1")
		more, _ := to.take()
		events = append(events, more...)
		return slices.Contains(events, "rebuild 1 in the background")
	})
	if !slices.Contains(events, "load 1 in the background in rebuild") {
		t.Errorf("%q", events)
	}
	s := c.Stats()
	if s.StaleAge.Count() != s.Stale || s.Stale > 0 && s.StaleAge.Sum < 15*time.Millisecond {
		t.Errorf("the ages of %d stale values are noted as %v", s.Stale, s.StaleAge)
	}
}

// A writer who is slow must find out whether it is the hold, the transaction or the
// invalidation, and nobody else can tell.
func TestHooksFollowAWrite(t *testing.T) {
	t.Parallel()
	r := onServer(t, redistest.Start(t), cell{redis: "real"})
	source := newRows(r, 1, 2)
	var to, toOther told
	c := open(r, source.source(), to.hooks)
	other := open(r, source.source(), toOther.hooks, func(o *cache.Options) { o.Name = "other" })
	var inTx []string
	tx := func(ctx context.Context) error {
		inTx, _ = ctx.Value(toldKey{}).([]string)
		return nil
	}
	write := []string{"hold 1 +1 in write", "tx 1 +1 in write", "invalidate 1 +1 in write", "write 1 +1"}
	for name, test := range map[string]struct {
		call func() error
		want []string
	}{
		"Write":      {func() error { return c.Write(r.ctx, []int64{1, 2}, tx) }, write},
		"Invalidate": {func() error { return c.Invalidate(r.ctx, 1) }, []string{"invalidate 1"}},
		"Set":        {func() error { return c.Set(r.ctx, 1, "v1") }, []string{"set 1"}},
		"SetMany":    {func() error { return c.SetMany(r.ctx, map[int64]string{1: "v1"}) }, []string{"set 1"}},
		"Announce":   {func() error { return c.Announce(r.ctx, 3) }, []string{"invalidate 3 in announce", "announce 3"}},
		"Clear":      {func() error { return c.Clear(r.ctx) }, []string{"clear "}},
		"no keys":    {func() error { return c.Write(r.ctx, nil, tx) }, []string{"tx  in write", "write "}},
		"a failed transaction": {
			func() error {
				_ = c.Write(r.ctx, []int64{1}, func(context.Context) error { return errBroken })
				return nil
			},
			[]string{"hold 1 in write", "tx 1 in write: the source is broken", "invalidate 1 in write", "write 1: the source is broken"},
		},
		"a transaction that panics": {
			func() error {
				defer func() { _ = recover() }()
				return c.Write(r.ctx, []int64{1}, func(context.Context) error { panic("bug in tx") })
			},
			[]string{
				"hold 1 in write", "tx 1 in write: cache: the transaction has panicked, or called runtime.Goexit",
				"invalidate 1 in write", "write 1: cache: the transaction has panicked, or called runtime.Goexit",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.call(); err != nil {
				t.Error(err)
			}
			to.want(t, test.want...)
		})
	}
	if err := cache.Write(r.ctx, tx, c.Changes(1, 2), other.Changes(7)); err != nil {
		t.Error(err)
	}
	to.want(t, write...)
	toOther.want(t, "hold 7 in write", "invalidate 7 in write")
	err := cache.Write(r.ctx, func(ctx context.Context) error { return cache.Also(ctx, c.Changes(5)) }, c.Changes()) // all keys by Also
	if err != nil {
		t.Error(err)
	}
	to.want(t, "hold 5 in tx", "tx  in write", "invalidate 5 in write", "write ")
	if !slices.Equal(inTx, []string{"write", "tx"}) {
		t.Errorf("the context of tx comes from that of %q", inTx)
	}
	if n := c.Stats().WriteTime.Count(); n != 15 { // 5 Writes with keys by two, and 5 other calls
		t.Errorf("%d exchanges with Redis are noted, want 15", n)
	}
	if n := c.Stats().NotInvalidated; n != 0 {
		t.Errorf("%d are counted as not confirmed", n)
	}
}

// An SLO of writers wants the calls that were not confirmed, not the keys that wait.
func TestCallsThatRedisDidNotConfirmAreCounted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real", local: true})
	c := open(r, newRows(r, 1).source())
	server.Kill()
	none := func(context.Context) error { return nil }
	for i, call := range []func() error{
		func() error { return c.Invalidate(r.ctx, 1) },
		func() error { return c.Set(r.ctx, 1, "v1") },
		func() error { return c.Announce(r.ctx, 3) },
		func() error { return c.Write(r.ctx, []int64{1}, none) },
		func() error { return c.Write(r.ctx, []int64{1}, func(context.Context) error { return errBroken }) },
		func() error { return c.Clear(r.ctx) },
	} {
		if err := call(); err == nil {
			t.Error("no error")
		}
		if n := c.Stats().NotInvalidated; n != uint64(i+1) {
			t.Errorf("call %d: %d are counted", i+1, n)
		}
	}
	server.Restart()
}

// A hook of the user's stands in the way of readers, who must not suffer from it.
func TestAHookThatPanicsHurtsNobody(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source := newRows(r, 1, 2)
	var log redistest.Log
	begins := func(context.Context, cache.Op) (context.Context, func(cache.Outcome)) { panic("begin") }
	ends := func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
		return ctx, func(cache.Outcome) { panic("end") }
	}
	for i, hook := range []cache.Hook{begins, ends} {
		c := open(r, source.source(), logged(&log), func(o *cache.Options) {
			o.Hooks = cache.Hooks{Read: hook, FlightWait: hook, Rebuild: hook, LeaseWait: hook, Load: hook, Write: hook}
		})
		c.gives(r, int64(i+1), "v1")
		c.gives(r, int64(i+1), "v1")
		if err := c.Write(r.ctx, []int64{int64(i + 1)}, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	log.Await(t, "a hook panicked")
}

// The flight of callers who came late follows on another one. If its context were made
// from that of the other one, the contexts of a hot key would grow without end.
func TestHooksDoNotMakeAChainOfContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cell{redis: "none"}, nil)
		var to told
		c := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) {
			time.Sleep(10 * time.Millisecond)
			return "v", nil
		}}, to.hooks)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { c.gives(r, 1, "v") })
			time.Sleep(3 * time.Millisecond)
		}
		all.Wait()
		if loads := c.Stats().Loads; loads < 5 {
			t.Errorf("%d loads are no chain of flights", loads)
		}
		if to.depth != 2 {
			t.Errorf("contexts are nested %d deep, want a load in a rebuild", to.depth)
		}
	})
}

// Options has one Hooks, so those of a tracer took the place of a user's own.
func TestJoinedHooksAreAllTold(t *testing.T) {
	var events []string
	type begun struct{}
	load := func(name string) cache.Hooks {
		return cache.Hooks{Load: func(ctx context.Context, op cache.Op) (context.Context, func(cache.Outcome)) {
			outer, _ := ctx.Value(begun{}).(string)
			events = append(events, name+" begins in "+outer)
			return context.WithValue(ctx, begun{}, outer+name), func(o cache.Outcome) { events = append(events, name+" ends: "+o.Err.Error()) }
		}}
	}
	silent := cache.Hooks{Load: func(context.Context, cache.Op) (context.Context, func(cache.Outcome)) { return nil, nil }}
	panics := cache.Hooks{Load: func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
		return ctx, func(cache.Outcome) { panic("hook") }
	}}
	alone := cache.Hooks{Rebuild: func(ctx context.Context, _ cache.Op) (context.Context, func(cache.Outcome)) {
		return ctx, func(cache.Outcome) { events = append(events, "rebuilt") }
	}}
	hooks := cache.JoinHooks(load("a"), silent, alone, load("b"), panics, cache.Hooks{})
	c := redistest.Must(cache.New(nil, func(ctx context.Context, _ int64) (string, error) {
		within, _ := ctx.Value(begun{}).(string)
		events = append(events, "loads in "+within)
		return "", errBroken
	}, cache.Options{Name: "test", Hooks: hooks, Logger: slog.New(slog.DiscardHandler)}))
	defer c.Close()
	_, _ = c.Get(t.Context(), 1)
	want := []string{"a begins in ", "b begins in a", "loads in ab", "b ends: the source is broken", "a ends: the source is broken", "rebuilt"}
	if !slices.Equal(events, want) {
		t.Errorf("got  %q,\nwant %q", events, want)
	}
}
