package redisconn_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// A server, a load balancer or a NAT has closed the connections of a pool while they were idle. The
// next operations lose nothing but a moment: such a connection says nothing about the server. go-redis
// finds those of TCP that were closed in order before it uses them, and none of TLS.
func TestConnectionsThatEndedWhileTheyWereIdleSayNothing(t *testing.T) {
	t.Parallel()
	const callers = 20
	socket := filepath.Join(t.TempDir(), "s")
	plain := redistest.Start(t, "--unixsocket", socket)
	secure, address, config := redistest.TLS(t)
	for name, server := range map[string]struct {
		*redistest.Server
		way func(*redis.Options)
	}{
		"TCP":  {plain, func(*redis.Options) {}},
		"TLS":  {secure, func(o *redis.Options) { o.Addr, o.TLSConfig = address, config }},
		"unix": {plain, func(o *redis.Options) { o.Network, o.Addr = "unix", socket }},
		"TLS, no retries": {secure, func(o *redis.Options) {
			o.Addr, o.TLSConfig, o.MaxRetries = address, config, -1
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := server.Client(t, server.way, func(o *redis.Options) { o.PoolSize = callers })
			c := openConn(t, rdb, 10*time.Second)
			admin := server.Client(t)
			for round := range 5 {
				var all sync.WaitGroup
				for range callers { // opens all connections
					all.Go(func() { _ = rdb.BLPop(t.Context(), 100*time.Millisecond, "none").Err() })
				}
				all.Wait()
				if err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
					t.Fatal(err)
				}
				var failed atomic.Int32
				var last atomic.Value
				for range callers {
					all.Go(func() {
						if err := read(t.Context(), c, "k"); err != nil {
							failed.Add(1)
							last.Store(err)
						}
					})
				}
				all.Wait()
				if n := failed.Load(); n > 0 && name != "TLS, no retries" {
					t.Errorf("round %d: %d of %d reads fail: %v", round, n, callers, last.Load())
				}
			}
			if n, down := c.Outages(); n > 0 || down {
				t.Errorf("%d outages of an idle Redis, down: %v", n, down)
			}
		})
	}
}

// OnConnect takes longer than an operation may, as where it fetches credentials. After all connections
// have broken, the client is used again all the same.
func TestAConnectionThatTakesLongerThanAnOperationIsMade(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var slow atomic.Bool
	rdb := s.Client(t, func(o *redis.Options) {
		o.OnConnect = func(ctx context.Context, _ *redis.Conn) error {
			if !slow.Load() {
				return nil
			}
			select {
			case <-time.After(1500 * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	})
	c := openConn(t, rdb, opTimeout)
	link := open(t, rdb)
	if err := read(t.Context(), c, "k"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, "messages arrive", link.Live)
	slow.Store(true)
	for _, kind := range []string{"normal", "pubsub"} {
		if err := s.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, 20*time.Second, "messages do not arrive", func() bool { return !link.Live() })
	redistest.Eventually(t, 20*time.Second, "it is read again", func() bool { return read(t.Context(), c, "k") == nil })
	redistest.Eventually(t, 20*time.Second, "messages arrive again", link.Live)
}

// Close does not wait for a connection that is being made, whatever the client's dialler does.
func TestCloseDoesNotWaitForADialler(t *testing.T) {
	dialling, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		once.Do(func() { close(dialling) })
		<-release
		return nil, errors.New("released")
	}})
	link := redisconn.OpenLink(rdb)
	<-dialling
	closed := make(chan struct{})
	go func() { link.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("Close waits for the dialler")
	}
	close(release)
	<-closed
	_ = rdb.Close()
}

// A hook of the user's that takes two seconds: one operation waits for it, on its caller's goroutine.
// Those after it leave it behind.
func TestAHookThatTakesLongHoldsUpOneOperation(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	var slow atomic.Bool
	over := make(chan struct{})
	defer close(over)
	rdb.AddHook(redistest.EachCommand(func(redis.Cmder) {
		if slow.Load() {
			select {
			case <-time.After(2 * time.Second):
			case <-over:
			}
		}
	}))
	c := redisconn.New(rdb, opTimeout, 100)
	if err := read(t.Context(), c, "k"); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	held := 0
	for range 5 {
		begin := time.Now()
		_ = read(t.Context(), c, "k")
		if time.Since(begin) >= 2*time.Second {
			held++
		}
		time.Sleep(1100 * time.Millisecond) // a pause after which operations run on their callers' goroutines again
	}
	if held > 1 {
		t.Errorf("%d of 5 operations wait for the hook", held)
	}
}

// At maxclients the server answers a connection before anything was asked, and closes it: operations end with EOF or a
// broken pipe. The log has the server's words.
func TestAnOutageAtMaxClientsSaysSo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client(t)
	if err := admin.ConfigSet(t.Context(), "maxclients", "1").Err(); err != nil { // admin's connection
		t.Fatal(err)
	}
	var log redistest.Log
	rdb := s.Client(t, func(o *redis.Options) { o.DialerRetries = 1 })
	c := redisconn.Open(rdb, time.Second, 100, logonce.New(log.Logger(), "levee: "))
	defer c.Close()
	defer admin.ConfigSet(t.Context(), "maxclients", "1000") // or go-redis goes on to dial for a while
	redistest.Eventually(t, 30*time.Second, "an outage is declared", func() bool {
		_ = read(t.Context(), c, "k")
		n, _ := c.Outages()
		return n > 0
	})

	log.Await(t, "max number of clients reached")
}
