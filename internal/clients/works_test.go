package clients

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// clientRow is a row of *redis.Client.
func clientRow(name string, s *redistest.Server, changes ...func(*redis.Options)) row {
	return row{name, func(t *testing.T) redis.UniversalClient { return s.Client(t, changes...) }}
}

// hooked is a client with a hook.
func hooked(name string, s *redistest.Server, h redis.Hook) row {
	return row{name, func(t *testing.T) redis.UniversalClient {
		c := s.Client(t)
		c.AddHook(h)
		return c
	}}
}

// A hook calls before in front of each command, pipeline and dial.
type hook struct{ before func() error }

func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := h.before(); err != nil {
			return nil, err
		}
		return next(ctx, network, addr)
	}
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.before(); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.before(); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

var errHook = errors.New("the hook fails")

// often is true for one call in n.
func often(n int) bool { return rand.IntN(n) == 0 }

// A limiter lets everything through, as long as it is asked.
type limiter struct{}

func (limiter) Allow() error       { return nil }
func (limiter) ReportResult(error) {}

// Types of users that embed a client.
type (
	wrapped    struct{ *redis.Client }
	wrappedAny struct{ redis.UniversalClient }
)

func TestOneServerWithAnyClient(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "secret")
	_, tlsAddr, config := redistest.TLS(t)
	works(t, []row{
		clientRow("redis.NewClient", s),
		clientRow("PoolSize: 1", s, func(o *redis.Options) { o.PoolSize = 1 }),
		clientRow("MaxActiveConns", s, func(o *redis.Options) { o.MaxActiveConns = 4 }),
		clientRow("ContextTimeoutEnabled", s, func(o *redis.Options) { o.ContextTimeoutEnabled = true }),
		clientRow("no ReadTimeout", s, func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 }),
		clientRow("Protocol: 2", s, func(o *redis.Options) { o.Protocol = 2 }),
		clientRow("Password", secret, func(o *redis.Options) { o.Password = "secret" }),
		clientRow("DB", s, func(o *redis.Options) { o.DB = 3 }),
		clientRow("TLSConfig", s, func(o *redis.Options) { o.Addr, o.TLSConfig = tlsAddr, config }),
		clientRow("Limiter", s, func(o *redis.Options) { o.Limiter = limiter{} }),
		hooked("a hook that delays", s, hook{func() error { time.Sleep(5 * time.Millisecond); return nil }}),
		hooked("a hook that fails", s, hook{func() error {
			if often(20) {
				return errHook
			}
			return nil
		}}),
		{"a type that embeds a client", func(t *testing.T) redis.UniversalClient { return wrapped{s.Client(t)} }},
		{"a type that embeds a UniversalClient", func(t *testing.T) redis.UniversalClient { return &wrappedAny{s.Client(t)} }},
	})
}

// A panic of a hook is an error of Redis, on a caller's goroutine too. A lock whose
// Unlock panicked would be renewed until its Locker is closed.
func TestAHookThatPanics(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	works(t, []row{hooked("a hook that panics", s, hook{func() error {
		if often(20) {
			panic(errHook)
		}
		return nil
	}})})
}

func TestSentinelsWithAnyClient(t *testing.T) {
	t.Parallel()
	s := redistest.Sentinel(t)
	works(t, []row{
		{"redis.NewFailoverClient", func(t *testing.T) redis.UniversalClient { return s.Client(t) }},
		{"redis.NewFailoverClusterClient", func(t *testing.T) redis.UniversalClient { return failoverCluster(t, s) }},
	})
}

func failoverCluster(t *testing.T, s *redistest.SentinelServers) redis.UniversalClient {
	o := &redis.FailoverOptions{MasterName: "levee", DisableIdentity: true}
	for _, sentinel := range s.Sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, sentinel.Addr())
	}
	c := redis.NewFailoverClusterClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAClusterWithAnyClient(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	c.Replicate()
	rows := []row{
		{"redis.NewClusterClient", func(t *testing.T) redis.UniversalClient { return c.Client(t) }},
		{"a type that embeds a ClusterClient", func(t *testing.T) redis.UniversalClient { return wrappedAny{c.Client(t)} }},
	}
	works(t, rows)
	t.Run("ReadOnly", func(t *testing.T) { routed(t, c, func(o *redis.ClusterOptions) { o.ReadOnly = true }) })
	t.Run("RouteRandomly", func(t *testing.T) { routed(t, c, func(o *redis.ClusterOptions) { o.RouteRandomly = true }) })
}

// racesByItself is why RouteByLatency is tried without the race detector.
const racesByItself = "a data race of go-redis v9.23.0: newClusterNodeWithNodeAddress (osscluster.go:550) starts updateLatency, which sends a PING, " +
	"before NewClusterClient's OnNewNode (osscluster.go:1416) writes the himport of the same client"

func TestAClusterByLatency(t *testing.T) {
	if race.Detector {
		t.Skip(racesByItself)
	}
	t.Parallel()
	c := redistest.Cluster(t)
	c.Replicate()
	routed(t, c, func(o *redis.ClusterOptions) { o.RouteByLatency = true })
}

// routed uses a client that sends reads to replicas too.
func routed(t *testing.T, c *redistest.ClusterServers, option func(*redis.ClusterOptions)) {
	open := func(t *testing.T) redis.UniversalClient { return c.Client(t, option) }
	t.Run("lock", func(t *testing.T) { lockExcludes(t, open) })
	t.Run("filter", func(t *testing.T) { filterKnows(t, open) })
}
