package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// A seen is a hook that counts commands, and puts a prefix to their keys.
type seen struct {
	commands atomic.Int64
	prefix   string
}

func (s *seen) see(cmd redis.Cmder) {
	key := map[string]int{"getrange": 1, "eval": 3, "evalsha": 3}[cmd.Name()]
	if key == 0 {
		return
	}
	s.commands.Add(1)
	if name := cmd.Args()[key].(string); !strings.HasPrefix(name, s.prefix) { // it may be sent twice
		cmd.Args()[key] = s.prefix + name
	}
}

// Without the detour a lone operation goes over a copy of the client, which has no hooks;
// and without keepInnermost one that is added later sees nothing.
func TestHooksSeeEveryOperation(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, options := range map[string]func(*redis.Options){
		"default options":  func(*redis.Options) {},
		"keeps to context": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := s.Client(t, options)
			var hooks []*seen
			add := func() {
				hooks = append(hooks, &seen{})
				rdb.AddHook(redistest.EachCommand(hooks[len(hooks)-1].see))
			}
			add()
			c := redisconn.New(rdb, opTimeout, 10)
			other := redisconn.New(rdb, 10*time.Second, 10) // for many at a time
			for range 3 {
				for _, h := range hooks {
					h.commands.Store(0)
				}
				const callers = 100
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() { _ = read(t.Context(), other, fmt.Sprint("k", i)) }) // one key would be one read
				}
				all.Wait()
				_ = read(t.Context(), c, "k")
				c.ReadMany(t.Context(), []string{"a", "b"}, 1)
				_, _ = redisconn.Do(t.Context(), c, time.Second, func(ctx context.Context) (string, error) {
					return c.Client().GetRange(ctx, "k", 0, 0).Result()
				}, nil)
				for i, h := range hooks {
					if n := h.commands.Load(); n < callers+4 || n > 2*callers {
						t.Errorf("hook %d of %d saw %d commands, want %d", i+1, len(hooks), n, callers+4)
					}
				}
				add()
			}
		})
	}
}

// The user's own commands are not for the detour: a transaction of theirs stays one.
func TestTheDetourIsForOurCommandsOnly(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := redisconn.New(rdb, opTimeout, 1)
	if _, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Set(t.Context(), "k", "v", 0)
		return nil
	}); err != nil {
		t.Error(err)
	}
	_, err := redisconn.Do(t.Context(), c, time.Second, func(ctx context.Context) (int, error) {
		cmds, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Incr(ctx, "n")
			p.LPush(ctx, "n", "not a list")
			return nil
		})
		return len(cmds), err
	}, nil)
	if err == nil {
		t.Error("want WRONGTYPE")
	}
	if text := rdb.Info(t.Context(), "commandstats").Val(); !strings.Contains(text, "cmdstat_exec:calls=2") {
		t.Errorf("want two transactions, got %s", text)
	}
}

// A dialPanic panics instead of dialling, as long as on is set.
type dialPanic struct{ on atomic.Bool }

func (h *dialPanic) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if h.on.Load() {
			panic("the hook panics")
		}
		return next(ctx, network, addr)
	}
}
func (h *dialPanic) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *dialPanic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The link dials on goroutines of its own, where a panic of a user's hook would end the
// process. It counts as a connection that failed.
func TestAPanickingHookDoesNotEndTheLink(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, hook := s.Client(t), &dialPanic{}
	hook.on.Store(true)
	rdb.AddHook(hook)
	var failed atomic.Int64
	l := open(t, rdb)
	l.Subscribe("a", redisconn.Subscriber{Failed: func(error) { failed.Add(1) }})
	redistest.Eventually(t, 10*time.Second, "connections fail", func() bool { return failed.Load() > 2 })
	hook.on.Store(false)
	redistest.Eventually(t, 10*time.Second, "the link is live", l.Live)
}

// A first is a hook that lets only the pipeline through that has a key.
type first struct{ key string }

func (h first) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h first) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h first) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if args := cmd.Args(); len(args) > 1 && args[1] == h.key {
				return next(ctx, cmds)
			}
		}
		return errRefused
	}
}

var errRefused = errors.New("refused")

// Of more keys than one trip takes, each has the error of its own trip. Catches a part
// whose errors are given to the keys of another.
func TestEachKeyOfManyTripsHasTheErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	c := redisconn.New(rdb, 10*time.Second, 10)
	keys := make([]string, 600)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	rdb.AddHook(first{keys[300]})
	_, errs := c.ReadMany(t.Context(), keys, 1)
	for i, err := range errs {
		if second := i >= 256 && i < 512; second && err != nil || !second && !errors.Is(err, errRefused) {
			t.Fatalf("key %d: %v", i, err)
		}
	}
}
