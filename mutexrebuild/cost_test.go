package mutexrebuild_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A meter notes what goes over a client's connections, as the server sees it: each
// write is a round trip. A hook would not do, since those of a client are lost to
// its copies with other timeouts.
type meter struct {
	mu    sync.Mutex
	trips []string // guarded by mu
}

type meteredConn struct {
	net.Conn
	m *meter
}

func (c meteredConn) Write(b []byte) (int, error) {
	c.m.note(commands(b))
	return c.Conn.Write(b)
}

// commands returns the names of the commands in a write.
func commands(b []byte) (names []string) {
	for rest := string(b); strings.HasPrefix(rest, "*"); {
		head, after, _ := strings.Cut(rest, "\r\n")
		words, _ := strconv.Atoi(head[1:])
		for i := range words {
			head, after, _ = strings.Cut(after, "\r\n")
			size, _ := strconv.Atoi(head[1:])
			if i == 0 {
				names = append(names, strings.ToLower(after[:size]))
			}
			after = after[size+2:]
		}
		rest = after
	}
	return names
}

func (m *meter) note(names []string) {
	switch names[0] {
	case "hello", "publish", "subscribe", "unsubscribe":
		return // the handshake, the heartbeat, the messages
	}
	trip := names[0]
	if len(names) > 1 {
		trip += fmt.Sprintf("×%d", len(names))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trips = append(m.trips, trip)
}

func (m *meter) take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := strings.Join(m.trips, " ")
	m.trips = nil
	return taken
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// over makes a dialer whose connections are metered.
func (m *meter) over(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return meteredConn{conn, m}, nil
	}
}

// The round trips of each call. A second read after the lease is won, or
// an unlock of its own, fails here.
func TestRoundTrips(t *testing.T) {
	everywhere(t, func(r *rig) {
		var m meter
		o := *r.client().Options()
		o.Dialer = m.over(o.Dialer)
		metered := redis.NewClient(&o)
		defer metered.Close()
		g := r.with(metered, opts{})
		other := r.group(opts{})
		r.eventually("messages arrive", g.Live)
		r.want(other, "warm", "v", gives("v")) // the server knows the scripts
		r.must(other.Invalidate(r.ctx, "warm"))
		r.must(set(r.ctx, other, "warm", "v"))
		_, _ = rebuild(r.ctx, other, "cold", fails(errSource))
		endCold, err := other.Hold(r.ctx, "cold2")
		r.must(err)
		r.loads(other, "cold2", "v")
		r.must(endCold(r.ctx))
		want := func(what, trips string) {
			r.Helper()
			if got := m.take(); got != trips {
				r.Errorf("%s: %q, want %q", what, got, trips)
			}
		}
		m.take()

		r.finds(g, "warm", "v")
		want("a hit", "getrange")
		r.want(g, "x", "v", gives("v"))
		want("a miss", "getrange evalsha evalsha")
		_, _ = rebuild(r.ctx, g, "y", fails(errSource))
		want("a failed load", "getrange evalsha evalsha")
		_, _ = rebuild(r.ctx, g, "y", gives("v"))
		want("a held error", "")

		db, at := newSource(), newGate()
		db.write("z", "v")
		building := r.do(other, "z", db.gated("z", at), nil)
		<-at.reached
		waiting := r.do(g, "z", fails(errSource), nil)
		r.waits(g)
		close(at.open)
		building.mustBe(r, nil)
		waiting.mustBe(r, nil)
		if polls := g.Stats().Polls; polls == 0 || r.mini != nil {
			want("a waiter", "getrange evalsha getrange")
		} else {
			r.Logf("the machine is slow: %d polls", polls)
			m.take()
		}

		r.must(g.Invalidate(r.ctx, "x"))
		want("an invalidation", "evalsha")
		r.must(g.Invalidate(r.ctx, "x", "y", "z"))
		want("three", "evalsha×3")
		r.must(g.Invalidate(r.ctx))
		want("none", "")
		r.must(set(r.ctx, g, "x", "v"))
		want("a Set", "evalsha evalsha")
		end, err := g.Hold(r.ctx, "x")
		r.must(err)
		want("a hold", "evalsha")
		r.want(g, "x", "v", gives("v"))
		want("a load beside a hold", "getrange evalsha evalsha")
		r.must(end(r.ctx))
		want("the end of a hold", "evalsha")
	})
}
