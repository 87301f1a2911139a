package redistest

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// A MiniServer is a Redis inside the test process. Besides Client it has
// miniredis' own methods, to look at keys and to inject errors.
type MiniServer struct{ *miniredis.Miniredis }

// Mini starts a server for the testing/synctest bubble that calls it. Its
// connections are in memory and its keys expire by the bubble's clock. Server and
// clients must be made inside the bubble, and end with its test.
//
// It is an imitation: it accepts a command whose keys lie in different slots and
// scripts that touch undeclared keys, has no memory limit, no INFO to speak of
// and no BITFIELD. What is promised about Redis is checked with Start. A
// subscriber that does not read holds up the whole server, with the bubble's time.
func Mini(t testing.TB) *MiniServer {
	m := &MiniServer{miniredis.NewMiniRedis()}
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	conn, err := m.Dial() // the first one starts the server, so that Before finds it
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	_ = conn.Close()
	return m
}

// Before makes the server call fn before it executes a command. While fn sleeps
// or waits on a channel, that connection's commands wait, and no others: so fn is
// the place for a slow or hanging Redis, or for something that has to happen just
// then. (To hang it with Lock does not work: a bubble's time stands still while
// anybody waits for a mutex.) It has to return before the test ends, takes the
// place of SetError, and is ended by nil.
func (m *MiniServer) Before(fn func(command string, args []string)) {
	if fn == nil {
		m.Server().SetPreHook(nil)
		return
	}
	m.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		fn(command, args)
		return false
	})
}

// Client returns a client of the server, like that of [Server.Client]. What changes
// put in the place of its Dialer has to pass on to that. Whatever they say, its pool is
// so large that nobody waits for a connection: go-redis keeps the timers of those who wait in
// a pool of the process, and a bubble that gets the timer of another one ends the process.
func (m *MiniServer) Client(t testing.TB, changes ...func(*redis.Options)) *redis.Client {
	// An IP literal, since to look up a name leaves the bubble.
	o := options("127.0.0.1:6379", slices.Concat([]func(*redis.Options){func(o *redis.Options) {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) {
			conn, err := m.Dial()
			if err != nil {
				return nil, err
			}
			return buffered(conn), nil
		}
	}}, changes, []func(*redis.Options){func(o *redis.Options) { o.PoolSize = 10_000 }}))
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
