package cache_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// checked is the error of Check of a cache over rdb.
func checked(t *testing.T, rdb redis.UniversalClient, changes ...func(*cache.Options)) error {
	t.Helper()
	o := cache.Options{Name: "product", Logger: slog.New(slog.DiscardHandler)}
	for _, change := range changes {
		change(&o)
	}
	c, err := cache.New(rdb, func(context.Context, int64) (int64, error) { return 0, nil }, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Check(t.Context())
}

// A service that starts with a Redis or a client that cannot work hears the cause, and
// not that Redis "does not answer".
func TestCheckSaysWhatIsWrong(t *testing.T) {
	s := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "secret")
	host, port, _ := net.SplitHostPort(s.Addr())
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	nodes := redistest.Cluster(t)
	_, tlsAddr, config := redistest.TLS(t)
	dead := redistest.Start(t)
	dead.Kill()
	change := func(s *redistest.Server, do func(*redis.Options)) redis.UniversalClient { return s.Client(t, do) }
	for _, test := range []struct {
		name string
		rdb  redis.UniversalClient
		want string // "": all is well
	}{
		{"all is well", s.Client(t), ""},
		{"protocol 2", change(s, func(o *redis.Options) { o.Protocol = 2 }), ""},
		{"a cluster", nodes.Client(t), ""},
		{"TLS", change(s, func(o *redis.Options) { o.Addr, o.TLSConfig = tlsAddr, config }), ""},
		{"a wrong password", change(secret, func(o *redis.Options) { o.Password = "wrong" }), "WRONGPASS"},
		{"no password", secret.Client(t), "NOAUTH"},
		{"a database that does not exist", change(s, func(o *redis.Options) { o.DB = 99 }), "DB index is out of range"},
		{"a replica", replica.Client(t), "is a replica"},
		{"a lone node of a cluster", nodes.Nodes[0].Client(t), "use redis.NewClusterClient"},
		{"nobody listens", dead.Client(t), "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // one waits for five seconds
			err := checked(t, test.rdb)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want == "":
			case err == nil || !strings.Contains(err.Error(), test.want):
				t.Errorf("got %v, want %q in it", err, test.want)
			case !errors.Is(err, cache.ErrUnavailable):
				t.Errorf("%v is not ErrUnavailable", err)
			case !strings.HasPrefix(err.Error(), "cache: ") || !strings.Contains(err.Error(), `"product"`) ||
				strings.Contains(err.Error(), "levee:") || strings.Contains(err.Error(), "mutexrebuild"):
				t.Errorf("%v names a package that nobody has met, or not the cache", err)
			}
		})
	}
}

// What weakens a promise, and leaves the cache at work.
func TestCheckSaysWhatWeakensAPromise(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy string
		bad    bool
	}{{"noeviction", false}, {"volatile-lru", false}, {"allkeys-lru", true}} {
		s := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", test.policy)
		err := checked(t, s.Client(t))
		if (err != nil) != test.bad || err != nil && (errors.Is(err, cache.ErrUnavailable) || !strings.Contains(err.Error(), test.policy)) {
			t.Errorf("%s: %v", test.policy, err)
		}
	}
	alone := redistest.Start(t)
	err := checked(t, alone.Client(t), func(o *cache.Options) { o.Rebuild.WaitReplicas = 1 })
	if err == nil || errors.Is(err, cache.ErrUnavailable) || !strings.Contains(err.Error(), "WaitReplicas: too few replicas: 0 of 1") {
		t.Errorf("no replica: %v", err)
	}
}

// A replica may not be asked for: that is told, and named. It leaves no key but the clears.
func TestCheckTellsThatReplicasMayNotBeAskedFor(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client(t)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "cache", "reset", "on", ">x", "~*", "&*", "+@all", "-wait").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "cache", "x" })
	err := checked(t, rdb, func(o *cache.Options) { o.Rebuild.WaitReplicas = 1 })
	if err == nil || errors.Is(err, cache.ErrUnavailable) || !strings.Contains(err.Error(), "'wait'") {
		t.Errorf("without WAIT: %v", err)
	}
	if left := admin.Keys(t.Context(), "*").Val(); !slices.Equal(left, []string{keys.OfCache("product").Clears()}) {
		t.Errorf("the keys %q are left", left)
	}
}

func TestCheckWithoutRedisAndAfterClose(t *testing.T) {
	if err := checked(t, nil); err != nil {
		t.Error(err)
	}
	c := redistest.Must(cache.New(nil, func(context.Context, int64) (int64, error) { return 0, nil }, cache.Options{Name: "product"}))
	_ = c.Close()
	if err := c.Check(t.Context()); !errors.Is(err, cache.ErrClosed) {
		t.Error(err)
	}
}

// A server or a proxy that does not know HELLO, by which Check asks what it is, works all the same.
func TestCheckAsksForNothingThatIsNotNeeded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--rename-command", "HELLO", "")
	if err := checked(t, s.Client(t)); err != nil {
		t.Errorf("without HELLO: %v", err)
	}
	replica := redistest.Start(t, "--rename-command", "HELLO", "")
	if err := replica.Client(t).Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := checked(t, replica.Client(t)); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a replica without HELLO: %v", err)
	}
}

// A server that takes no more connections says so, and closes.
func TestCheckTellsWhatAServerSaysAtTheDoor(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	admin := s.Client(t)
	if err := admin.ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := checked(t, rdb); err == nil || !strings.Contains(err.Error(), "max number of clients reached") {
		t.Errorf("at maxclients: %v", err)
	}
}
