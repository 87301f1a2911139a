package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// Types of users.
type (
	embedsClient  struct{ *redis.Client }
	embedsAny     struct{ redis.UniversalClient }
	embedsTwice   struct{ *embedsAny }
	embedsByValue struct{ embedsAny }
	opaque        struct {
		redis.Cmdable
		inner redis.UniversalClient
	}
)

func (o opaque) AddHook(h redis.Hook) { o.inner.AddHook(h) }
func (o opaque) Watch(ctx context.Context, fn func(*redis.Tx) error, keys ...string) error {
	return o.inner.Watch(ctx, fn, keys...)
}
func (o opaque) Do(ctx context.Context, args ...any) *redis.Cmd     { return o.inner.Do(ctx, args...) }
func (o opaque) Process(ctx context.Context, cmd redis.Cmder) error { return o.inner.Process(ctx, cmd) }
func (o opaque) AutoPipeline() (*redis.AutoPipeliner, error)        { return o.inner.AutoPipeline() }
func (o opaque) AsyncAutoPipeline() (*redis.AutoPipeliner, error)   { return o.inner.AsyncAutoPipeline() }
func (o opaque) Subscribe(ctx context.Context, ch ...string) *redis.PubSub {
	return o.inner.Subscribe(ctx, ch...)
}
func (o opaque) PSubscribe(ctx context.Context, ch ...string) *redis.PubSub {
	return o.inner.PSubscribe(ctx, ch...)
}
func (o opaque) SSubscribe(ctx context.Context, ch ...string) *redis.PubSub {
	return o.inner.SSubscribe(ctx, ch...)
}
func (o opaque) Close() error                { return o.inner.Close() }
func (o opaque) PoolStats() *redis.PoolStats { return o.inner.PoolStats() }
func (o opaque) AutoPipelineWithOptions(c *redis.AutoPipelineOptions) (*redis.AutoPipeliner, error) {
	return o.inner.AutoPipelineWithOptions(c)
}
func (o opaque) AsyncAutoPipelineWithOptions(c *redis.AutoPipelineOptions) (*redis.AutoPipeliner, error) {
	return o.inner.AsyncAutoPipelineWithOptions(c)
}

// client makes clients of a server that nobody asks.
func client(t *testing.T, changes ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1}
	for _, change := range changes {
		change(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func cluster(t *testing.T, o redis.ClusterOptions) *redis.ClusterClient {
	o.Addrs = []string{"127.0.0.1:1"}
	c := redis.NewClusterClient(&o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func failoverCluster(t *testing.T, o redis.FailoverOptions) *redis.ClusterClient {
	o.SentinelAddrs = []string{"127.0.0.1:1"}
	c := redis.NewFailoverClusterClient(&o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func cached(o *redis.Options) { o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{} }

// A client whose reads go-redis answers from a cache or a replica gives what has been
// invalidated, and a Ring ends the process. Each is refused by an error that names the
// option, also inside a user's type.
func TestClientsThatCannotKeepThePromiseAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	pipeliner, err := client(t).AutoPipeline()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipeliner.Close() })
	var none *redis.Client
	both, reads := []redisconn.Use{redisconn.Scripts, redisconn.Reads}, []redisconn.Use{redisconn.Reads}
	for _, test := range []struct {
		rdb  redis.UniversalClient
		uses []redisconn.Use // that it is refused for
		want string          // "": for none
	}{
		{client(t), nil, ""},
		{cluster(t, redis.ClusterOptions{}), nil, ""},
		{failoverCluster(t, redis.FailoverOptions{}), nil, ""},
		{&embedsTwice{&embedsAny{client(t)}}, nil, ""},
		{opaque{inner: client(t)}, nil, ""},

		{client(t, cached), reads, "ClientSideCacheConfig"},
		{client(t, func(o *redis.Options) { o.ClientSideCache = redis.NewLocalCache(redis.CacheConfig{}) }), reads, "ClientSideCacheConfig"},
		{cluster(t, redis.ClusterOptions{ReadOnly: true}), reads, "the option ReadOnly"},
		{cluster(t, redis.ClusterOptions{RouteByLatency: true}), reads, "RouteByLatency"},
		{cluster(t, redis.ClusterOptions{RouteRandomly: true}), reads, "RouteRandomly"},
		{failoverCluster(t, redis.FailoverOptions{RouteRandomly: true}), reads, "RouteRandomly"},
		{failoverCluster(t, redis.FailoverOptions{ReplicaOnly: true}), reads, "ReplicaOnly"},
		{embedsClient{client(t, cached)}, reads, "ClientSideCacheConfig"},
		{&embedsTwice{&embedsAny{client(t, cached)}}, reads, "ClientSideCacheConfig"},
		{&embedsByValue{embedsAny: embedsAny{client(t, cached)}}, reads, "ClientSideCacheConfig"},

		{ring, both, "*redis.Ring"},
		{embedsAny{ring}, both, "*redis.Ring"},
		{pipeliner, both, "*redis.AutoPipeliner"},
		{nil, both, "is nil"},
		{none, both, "is a nil *redis.Client"},
		{(*redis.ClusterClient)(nil), both, "is a nil *redis.ClusterClient"},
		{(*embedsTwice)(nil), both, "is a nil *redisconn_test.embedsTwice"},
		{embedsClient{}, both, "is a nil *redis.Client"},
		{embedsAny{}, both, "is nil"},
		{&redis.Client{}, both, "was not made by"},
	} {
		for _, use := range both {
			err := redisconn.CheckClient(test.rdb, use)
			refused := false
			for _, u := range test.uses {
				refused = refused || u == use
			}
			switch {
			case refused && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%T, use %d: %v, want an error with %q", test.rdb, use, err, test.want)
			case !refused && err != nil:
				t.Errorf("%T, use %d: %v", test.rdb, use, err)
			}
		}
	}
}

// A redis.Conn, Tx and Pipeline cannot be given to levee at all.
func TestWhatIsNoClientDoesNotCompile(t *testing.T) {
	for _, v := range []any{(*redis.Conn)(nil), (*redis.Tx)(nil), (*redis.Pipeline)(nil), (*redis.SentinelClient)(nil)} {
		if _, ok := v.(redis.UniversalClient); ok {
			t.Errorf("%T is a redis.UniversalClient now: decide what CheckClient says", v)
		}
	}
}

// Fifty caches of one client make one line. Without the memory of clients there would
// be one for each.
func TestSettingsThatHurtAreLoggedOncePerClient(t *testing.T) {
	for _, test := range []struct {
		rdb  redis.UniversalClient
		want string // "": nothing
	}{
		{client(t), ""},
		{client(t, func(o *redis.Options) { o.PoolSize = 1 }), "PoolSize 1"},
		{embedsAny{client(t, func(o *redis.Options) { o.PoolSize = 2 })}, "PoolSize 2"},
		{cluster(t, redis.ClusterOptions{PoolSize: 10, ReadTimeout: time.Second}), ""},
		{cluster(t, redis.ClusterOptions{PoolSize: 10, ContextTimeoutEnabled: true}), ""},
		{cluster(t, redis.ClusterOptions{PoolSize: 10}), "ReadTimeout 5s without ContextTimeoutEnabled"},
		{cluster(t, redis.ClusterOptions{PoolSize: 10, ReadTimeout: -1}), "ReadTimeout 0s"},
		{opaque{inner: client(t)}, "cannot be seen"},
	} {
		var text redistest.Log
		for range 50 {
			redisconn.Advise(test.rdb, logonce.New(text.Logger(), "levee: "))
			if _, hidden := test.rdb.(opaque); hidden {
				break // it has no options to tell one from another by
			}
		}
		if test.want == "" {
			if got := text.String(); got != "" {
				t.Errorf("%T: %s", test.rdb, got)
			}
			continue
		}
		text.Await(t, test.want)
		if n := text.Count("level="); n != 1 {
			t.Errorf("%T: %d lines, want 1:\n%s", test.rdb, n, text.String())
		}
	}
}

// Catches a Check that dials "FailoverClient", the address of a client of Sentinel in its options,
// and reports a missing port.
func TestCheckNamesSentinelsThatAreGone(t *testing.T) {
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}, MaxRetries: -1, DialerRetries: 1,
	})
	defer rdb.Close()
	if err := redisconn.Check(t.Context(), rdb, redisconn.Reads).Broken; err == nil || !strings.Contains(err.Error(), "sentinels") {
		t.Errorf("got %v", err)
	}
}

// What a server or a proxy says of a command that it does not have is not what it says for a while.
func TestRefusedTellsACommandThatIsMissingFromTrouble(t *testing.T) {
	for text, want := range map[string]bool{
		"ERR unknown command 'EVAL', with args beginning with: 'return 1' '0' ":                            true,
		"ERR unknown command `evalsha`, with args beginning with: ":                                        true, // 6.2
		"ERR Unknown Redis command called from script script: 4ca238, on @user_script:1.":                  true,
		"ERR command eval not support for your account":                                                    true,
		"ERR 'EVAL' is not supported":                                                                      true,
		"unsupported command 'eval'":                                                                       true,
		"OOM command not allowed when used memory > 'maxmemory'.":                                          false,
		"LOADING Redis is loading the dataset in memory":                                                   false,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":           false,
		"NOSCRIPT No matching script. Please use EVAL.":                                                    false,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": false,
		"CLUSTERDOWN The cluster is down":                                                                  false,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                          false,
	} {
		if got := redisconn.Refused(fmt.Errorf("wrapped: %w", serverError(text))); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	if redisconn.Refused(nil) || redisconn.Refused(errors.New("unknown command, says nobody")) {
		t.Error("what no server has said is a refusal")
	}
}
