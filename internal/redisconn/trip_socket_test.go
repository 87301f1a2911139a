package redisconn_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// The schedule: the user has the only connection for 16.15 s; a trip waits for it, whose caller has left. Its
// time is up between 16 s and 18 s, so it has 1.85 s for its read. Catches a trip that gives up waiting later
// than its deadline: it gets the connection, cannot use it any more, and closes it.
func TestATripThatIsLateBreaksNoConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Minute })
	rdb.Set(t.Context(), "k", "v", 0)
	c := redisconn.New(rdb, 8*time.Second, 1)
	held := rdb.Conn()
	if err := held.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if data, err := c.Read(ctx, "k", 10); err == nil {
		t.Fatalf("got %q without a connection", data)
	}
	time.Sleep(16100 * time.Millisecond)
	if err := held.Close(); err != nil { // gives it back
		t.Error(err)
	}
	time.Sleep(200 * time.Millisecond)
	if stats := rdb.PoolStats(); stats.StaleConns > 0 || stats.TotalConns != 1 {
		t.Errorf("the trip broke the connection: %+v", stats)
	}
}
