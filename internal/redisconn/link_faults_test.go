package redisconn_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// After Close a user frees what its subscriber uses. So Close waits for a call that
// runs, and none comes later.
func TestCloseWaitsForTheCallThatRuns(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		h := redisconn.OpenLink(m.Client(t))
		begun, closed := make(chan struct{}), atomic.Bool{}
		h.Subscribe("news", redisconn.Subscriber{
			Gap: func() {
				close(begun)
				time.Sleep(time.Second)
				if closed.Load() {
					t.Error("Close returned while a call was running")
				}
			},
			Live: func(bool) {
				if closed.Load() {
					t.Error("a call came after Close")
				}
			},
		})
		<-begun
		h.Close()
		closed.Store(true)
		time.Sleep(10 * time.Second)
	})
}

// A link that stays in the registry after its last Close is deaf for good.
func TestALinkIsOpenedAgainAfterItsLastClose(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t)
		first := redisconn.OpenLink(rdb)
		first.Close()
		second := open(t, rdb)
		if second == first {
			t.Error("a closed link was handed out")
		}
		l, _ := listen(t, second, "news")
		l.await(10*time.Second, 1, "live")
	})
}

// fragile makes a client whose connections can be refused and cut.
func fragile(t *testing.T, m *redistest.MiniServer) (rdb *redis.Client, refuse func(bool), cut func()) {
	var refused atomic.Bool
	var mu sync.Mutex
	var conns []net.Conn // guarded by mu
	rdb = m.Client(t, func(o *redis.Options) {
		dial := o.Dialer
		o.MaxRetries, o.DialerRetries = -1, 1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if refused.Load() {
				return nil, errors.New("refused")
			}
			conn, err := dial(ctx, network, addr)
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn)
			return conn, err
		}
	})
	return rdb, refused.Store, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		conns = nil
	}
}

// Without growing pauses a process makes a hundred attempts a second, and a fleet keeps
// a server that comes back from doing so. A link that breaks after it has worked is
// opened again at once.
func TestThePauseBetweenAttemptsGrowsUntilOneSucceeds(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, refuse, cut := fragile(t, m)
		refuse(true)
		h := open(t, rdb)
		var failed atomic.Int32
		h.Subscribe("news", redisconn.Subscriber{Failed: func(error) { failed.Add(1) }})
		time.Sleep(time.Minute)
		if n := failed.Load(); n < 60 || n > 70 { // 10, 20, 40 … 640 ms, then each second
			t.Errorf("%d attempts in a minute, want 60 to 70", n)
		}
		refuse(false)
		l, _ := listen(t, h, "news")
		l.await(10*time.Second, 1, "live")
		cut()
		began := time.Now()
		l.await(10*time.Second, 2, "gap")
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the channel was subscribed again after %v, want at most 100ms", took)
		}
	})
}

// A silent connection is replaced every three seconds. If the old ones stayed open, the
// server would run out of connections.
func TestAReplacedConnectionIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		h := open(t, m.Client(t))
		var failed atomic.Int32
		h.Subscribe("news", redisconn.Subscriber{Failed: func(error) { failed.Add(1) }})
		m.Before(func(command string, args []string) {
			if command == "PUBLISH" { // the heartbeats get lost
				args[0] = "nobody"
			}
		})
		time.Sleep(time.Minute)
		if failed.Load() < 10 {
			t.Fatalf("%d connections failed in a minute, want 10 and more", failed.Load())
		}
		if n := m.CurrentConnectionCount(); n > 3 {
			t.Errorf("%d connections are open, want at most the link's and two for heartbeats", n)
		}
	})
}

// The connection is reset and the server's host takes no new ones, so go-redis dials until
// its DialTimeout, and a dialler of the user's for longer. Meanwhile messages are lost.
//
// Catches a link that stays live until the dialler has given up.
func TestALinkIsNotLiveWhileItsConnectionIsDialled(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb, _, cut := fragile(t, m)
		var hangs atomic.Bool
		up := make(chan struct{})
		dial := rdb.Options().Dialer
		rdb.Options().Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if hangs.Load() {
				<-up
			}
			return dial(ctx, network, addr)
		}
		h := open(t, rdb)
		l, _ := listen(t, h, "news")
		l.await(10*time.Second, 1, "live")
		dead := make(chan time.Time, 10)
		h.Subscribe("news", redisconn.Subscriber{Live: func(live bool) {
			if !live {
				dead <- time.Now()
			}
		}})
		time.Sleep(1500 * time.Millisecond)
		hangs.Store(true)
		cut()
		began := time.Now()
		select { // no await: the bubble's time stands still while the old PubSub's mutex is waited for
		case at := <-dead:
			if took := at.Sub(began); took > 3*time.Second {
				t.Errorf("it was live for %v after its connection had ended", took)
			}
		case <-time.After(30 * time.Second):
			t.Error("it is live 30s after its connection has ended")
		}
		hangs.Store(false)
		close(up)
		l.await(10*time.Second, 2, "live")
	})
}

// To subscribe on a connection that go-redis is replacing takes as long as that.
//
// Catches heartbeats that wait for it: the next connection gets none, and is not live either.
func TestASubscriptionThatHangsDoesNotEndTheHeartbeats(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var hangs atomic.Bool
	up := make(chan struct{})
	h := open(t, s.Client(t, func(o *redis.Options) {
		o.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
			if hangs.CompareAndSwap(true, false) {
				<-up
			}
			return net.Dial(network, addr)
		}
	}))
	t.Cleanup(func() { close(up) })
	l, _ := listen(t, h, "news")
	l.await(30*time.Second, 1, "live")
	hangs.Store(true)
	do(t, s, "CLIENT", "KILL", "TYPE", "pubsub")
	redistest.Eventually(t, 30*time.Second, "the link connects again", func() bool { return !hangs.Load() })
	more, _ := listen(t, h, "more")
	more.await(20*time.Second, 1, "live")
}
