package clients

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
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
	return []never{
		{clientRow("a wrong Password", secret, func(o *redis.Options) { o.Password = "wrong" }), "WRONGPASS"},
		{clientRow("no Password", secret), "uthenticat"}, // NOAUTH Authentication required, or of a command with many arguments, unauthenticated
		{clientRow("a DB that does not exist", s, func(o *redis.Options) { o.DB = 99 }), "DB index is out of range"},
		{clientRow("a read-only replica", replica), "READONLY"},
		{row{"ReplicaOnly", func(t *testing.T) redis.UniversalClient {
			return sentinel.Client(t, func(o *redis.FailoverOptions) { o.ReplicaOnly = true })
		}}, "READONLY"},
		{clientRow("a node of a cluster", nodes.Nodes[0]), "MOVED"},
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

// "a client that is closed" by its owner, under the cache: the source answers.
func TestAClientThatIsClosedUnderTheCache(t *testing.T) {
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
