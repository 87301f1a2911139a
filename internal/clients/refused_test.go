package clients

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/lock/redlock"
	"github.com/levee-go/levee/mutexrebuild"
)

// Every package that is given a client looks at it, and says in its own name which option
// is in the way. What makes no difference to it is accepted.
func TestEveryPackageRefusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	s, nodes := redistest.Start(t), redistest.Cluster(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": s.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	pipeliner := redistest.Must(s.Client(t).AutoPipeline())
	t.Cleanup(func() { _ = pipeliner.Close() })
	for _, test := range []struct {
		name, says string
		rdb        redis.UniversalClient
		byScripts  bool // locks and filters refuse it too
	}{
		{"ReadOnly", "ReadOnly", nodes.Client(t, func(o *redis.ClusterOptions) { o.ReadOnly = true }), false},
		{"RouteByLatency", "RouteByLatency", nodes.Client(t, func(o *redis.ClusterOptions) { o.RouteByLatency = true }), false},
		{"RouteRandomly", "RouteRandomly", nodes.Client(t, func(o *redis.ClusterOptions) { o.RouteRandomly = true }), false},
		{"ClientSideCacheConfig", "ClientSideCacheConfig", s.Client(t, func(o *redis.Options) { o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{} }), false},
		{"redis.NewRing", "*redis.Ring", ring, true},
		{"AutoPipeline", "*redis.AutoPipeliner", pipeliner, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if race.Detector && test.name == "RouteByLatency" {
				t.Skip(racesByItself)
			}
			var db source
			c, err := cache.New(test.rdb, db.load, cache.Options{Name: "a", Logger: quiet})
			refuses(t, "cache: ", test.says, err, true, func() error { return c.Close() })
			g, err := mutexrebuild.New(test.rdb, mutexrebuild.Keyspace{Name: "a", Logger: quiet}, mutexrebuild.Options{})
			refuses(t, "mutexrebuild: ", test.says, err, true, func() error { g.Close(); return nil })
			l, err := lock.New(test.rdb, lock.Options{Logger: quiet})
			refuses(t, "lock: ", test.says, err, test.byScripts, func() error { return l.Close() })
			if err != nil && !errors.Is(err, lock.ErrConfig) {
				t.Errorf("%v is not ErrConfig", err)
			}
			q, err := redlock.New([]redis.UniversalClient{s.Client(t), s.Client(t), test.rdb}, lock.Options{Logger: quiet})
			refuses(t, "redlock: ", test.says, err, test.byScripts, func() error { return q.Close() })
			f, err := bloom.Open(t.Context(), test.rdb, bloom.Options{Name: "a", Capacity: 100, Logger: quiet})
			refuses(t, "bloom: ", test.says, err, test.byScripts, func() error { return f.Close() })
		})
	}
}

// refuses fails the test unless err is a refusal, or not, as expected.
func refuses(t *testing.T, prefix, says string, err error, want bool, shut func() error) {
	t.Helper()
	switch {
	case !want && err != nil:
		t.Error(err)
	case !want:
		_ = shut()
	case err == nil:
		_ = shut()
		t.Errorf("%saccepted", prefix)
	case !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), says):
		t.Errorf("got %v, want %s… %s", err, prefix, says)
	}
}

// go-redis' other types cannot be given to levee: these do not pass as clients.
func TestWhatDoesNotCompile(t *testing.T) {
	for name, v := range map[string]any{"redis.Conn": &redis.Conn{}, "redis.Tx": &redis.Tx{}, "redis.Pipeline": &redis.Pipeline{}} {
		if _, ok := v.(redis.UniversalClient); ok {
			t.Errorf("%s passes as a client now", name)
		}
	}
}
