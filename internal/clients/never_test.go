package clients

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A never is a client that can never work, and what Redis says to it.
type never struct {
	row
	cause string
}

func nevers(t *testing.T) []never {
	s, secret := redistest.Start(t), redistest.Start(t, "--requirepass", "secret")
	host, port, _ := net.SplitHostPort(s.Addr())
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	sentinel, nodes := redistest.Sentinel(t), redistest.Cluster(t)
	noEval, noSHA := redistest.Start(t, "--rename-command", "EVAL", ""), redistest.Start(t, "--rename-command", "EVALSHA", "")
	if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "plain", "on", ">x", "~*", "&*", "+@all", "-eval").Err(); err != nil {
		t.Fatal(err)
	}
	proxy := redistest.Proxy(t, s.Addr())
	proxy.RewriteReplies(1_000_000, "EVALSHA", func([]byte) []byte { return []byte("-ERR command evalsha not support for your account\r\n") })
	return []never{
		{clientRow("a wrong Password", secret, func(o *redis.Options) { o.Password = "wrong" }), "WRONGPASS"},
		{clientRow("no Password", secret), "uthenticat"}, // NOAUTH Authentication required, or of a command with many arguments, unauthenticated
		{clientRow("a DB that does not exist", s, func(o *redis.Options) { o.DB = 99 }), "DB index is out of range"},
		{clientRow("a read-only replica", replica), "READONLY"},
		{row{"ReplicaOnly", func(t *testing.T) redis.UniversalClient {
			return sentinel.Client(t, func(o *redis.FailoverOptions) { o.ReplicaOnly = true })
		}}, "READONLY"},
		{clientRow("a node of a cluster", nodes.Nodes[0]), "MOVED"},
		{clientRow("a user without EVAL", s, func(o *redis.Options) { o.Username, o.Password = "plain", "x" }), "NOPERM"},
		{clientRow("a server without EVAL", noEval), "unknown command"},
		{clientRow("a server without EVALSHA", noSHA), "unknown command"},
		{row{"a proxy that refuses scripts", func(t *testing.T) redis.UniversalClient { return proxy.Client(t) }}, "not support"},
	}
}

// The source answers, the log says once at level Error what Redis says, and so does each
// error of Invalidate, also when Redis is not asked any more. Go-redis' own retries of
// what a replica refuses would hide that behind a timeout.
func TestAClientThatCanNeverWorkSaysWhy(t *testing.T) {
	for _, test := range nevers(t) {
		t.Run(test.name, func(t *testing.T) {
			var db source
			var log redistest.Log
			o := cache.Options{Name: "never", RedisTimeout: 5 * time.Second, Logger: log.Logger()} // a busy machine is no outage
			o.Local.MaxBytes = -1
			c, err := cache.New(test.open(t), db.load, o)
			if err != nil {
				t.Fatal(err)
			}
			refused := 0
			for key := range int64(200) {
				if _, err := c.Get(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				switch err := c.Invalidate(t.Context(), key); {
				case err == nil && test.cause == "MOVED": // it is this node's
				case err == nil || !strings.Contains(err.Error(), test.cause):
					t.Fatalf("Invalidate: %v, want %s", err, test.cause)
				default:
					refused++
				}
			}
			if refused < 100 {
				t.Errorf("%d Invalidates were refused", refused)
			}
			log.Await(t, "redis refuses what a cache needs")
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			line := `level=ERROR msg="levee: redis refuses what a cache needs" cache=never error="`
			if n := log.Count(line); n != 1 || !strings.Contains(log.String(), test.cause) {
				t.Errorf("%d lines that say so:\n%s", n, log.String())
			}
		})
	}
}

// A lock is not taken, with an error that has what Redis says. A filter lets every id pass, and the log says once at
// level Error what Redis says. Catches a filter that takes it for a server that does not reply.
func TestALockAndAFilterThatCanNeverWorkSayWhy(t *testing.T) {
	for _, test := range nevers(t) {
		t.Run(test.name, func(t *testing.T) {
			l := redistest.Must(lock.New(test.open(t), lock.Options{Logger: quiet}))
			defer l.Close()
			var log redistest.Log
			var asked atomic.Int64
			const filters = 5 // a node of a cluster has some names
			for i := range filters {
				lease, err := l.TryLock(t.Context(), fmt.Sprint("never", i))
				switch {
				case err == nil && test.cause == "MOVED":
					_ = lease.Unlock(t.Context())
				case !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), test.cause):
					t.Errorf("TryLock: %v, want ErrUnavailable and %s", err, test.cause)
				}
				rdb := test.open(t)
				rdb.AddHook(redistest.EachCommand(func(redis.Cmder) { asked.Add(1) }))
				f, err := bloom.Open(t.Context(), rdb, bloom.Options{Name: fmt.Sprint("never", i), Capacity: 100, MaxLag: 100 * time.Millisecond, Logger: log.Logger()})
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if !f.MayContain(t.Context(), "x") {
					t.Error("the filter denies an id")
				}
			}
			redistest.Eventually(t, 20*time.Second, "the filters ask again", func() bool { return asked.Load() > 8*filters })
			const line = `level=ERROR msg="bloom: redis refuses what a filter needs" filter=`
			if n := log.Count(line); n == 0 || n > filters || !strings.Contains(log.String(), test.cause) || strings.Contains(log.String(), "does not reply") {
				t.Errorf("%d lines that say so:\n%s", n, log.String())
			}
		})
	}
}

// "a client that is closed" by its owner, under the cache: the source answers.
func TestAClientThatIsClosedUnderTheCache(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var db source
	var log redistest.Log
	rdb := s.Client(t)
	c, err := cache.New(rdb, db.load, cache.Options{Name: "closed", Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Set(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Close(); err != nil {
		t.Fatal(err)
	}
	for key := range int64(200) {
		if got, err := c.Get(t.Context(), 100+key); err != nil || got != 0 {
			t.Fatalf("%d, %v", got, err)
		}
	}
	if err := c.Invalidate(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Invalidate: %v", err)
	}
	log.Await(t, "the redis client is closed")
}
