package redisconn

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// One way to Redis
//
// Every operation of a Conn goes through the user's client, so that the user's hooks see
// each of them. If some operations went around them, a hook that rewrites keys would turn one
// key into two: a lock granted under one of them would be free under the other.
//
// But with go-redis' default options an operation ignores its context's deadline, and is
// repeated after a timeout. A copy of the client with other options shares its connections,
// but has none of its hooks: WithTimeout drops them. So a *redis.Client is used with a
// detour: the operation passes through the client's hooks, and the innermost, ours, sends it
// by the copy; see [detour]. The user's own commands do not take the detour.
//
// Any other client is used as it is: a cluster client looks up nodes and commands first,
// which no option bounds, and of an unknown type we cannot say whose connections it uses.
// Operations of such clients run on goroutines that can be left behind.

// maxUnnoticed is how long a lone operation may ignore its caller's cancellation.
const maxUnnoticed = 250 * time.Millisecond

type client struct {
	user    redis.UniversalClient
	plain   *redis.Client // user, nil if that is of another type
	bare    *redis.Client // a copy of plain that keeps to deadlines, repeats nothing, and has no hooks
	detour  *detour
	timeout time.Duration
}

func newClient(rdb redis.UniversalClient, timeout time.Duration) client {
	c := client{user: rdb, timeout: timeout}
	if c.plain, _ = rdb.(*redis.Client); c.plain != nil {
		c.bare = c.plain.WithTimeout(c.longest())
		c.bare.Options().ContextTimeoutEnabled, c.bare.Options().MaxRetries = true, 0
		c.detour = detourOf(c.plain)
	}
	return c
}

// brief returns how long an operation may take on its caller's goroutine, where it ignores
// cancellations.
func (c *client) brief() time.Duration { return min(c.timeout, maxUnnoticed) }

// mayBeLone returns how many operations may run on their callers' goroutines at a time: as many
// as leave connections for trips, and none if the client is no *redis.Client.
func (c *client) mayBeLone() int {
	if c.plain == nil {
		return 0
	}
	return max(1, min(maxLone, c.connections()-maxTrips))
}

// connections returns how many connections the client opens at most.
func (c *client) connections() int {
	o := c.plain.Options()
	if o.MaxActiveConns > 0 {
		return min(o.PoolSize, o.MaxActiveConns)
	}
	return o.PoolSize
}

// limited reports whether the user has set a Limiter, which may refuse the client's commands.
func (c *client) limited() bool { return c.plain != nil && c.plain.Options().Limiter != nil }

// by returns a copy of ctx whose deadline the client's operations keep to.
func (c *client) by(ctx context.Context) context.Context {
	if c.plain == nil {
		return ctx
	}
	return context.WithValue(ctx, byBare{}, c.bare)
}

// get returns the client for an operation whose context comes from by or bind.
func (c *client) get() redis.UniversalClient {
	if c.detour != nil {
		c.detour.keepInnermost(c.plain)
	}
	return c.user
}

// attempts returns how often an operation is sent if its connections turn out to be closed. All of the
// pool's connections may be closed, which says nothing about the server; one more attempt opens a new one.
func (c *client) attempts() int {
	if c.plain == nil || c.plain.Options().MaxRetries <= 0 {
		return 1 // the user's client repeats it, or the user does not want that
	}
	return 2 + c.connections()
}

// hasIdle reports whether the client has a connection that is not in use.
func (c *client) hasIdle() bool { return c.plain.PoolStats().IdleConns > 0 }

// late notes that an operation has run out of time. A connection that was being opened for it is lost,
// because our copy of the client ends the dialling at the operation's deadline.
func (c *client) late() {
	if c.detour != nil {
		c.detour.late.Add(1)
	}
}

// tookLate returns how many operations have run out of time since the last call of tookLate.
func (c *client) tookLate() int {
	if c.detour == nil {
		return 0
	}
	return int(c.detour.late.Swap(0))
}

// longest returns how long a trip may take in all: it goes on after its callers have left, so
// that a late reply does not cost its connection.
func (c *client) longest() time.Duration { return c.timeout + max(c.timeout, time.Second) }

// LongestTrip returns how long an operation may be under way, also after its caller has left.
func (c *Conn) LongestTrip() time.Duration { return c.client.longest() }

// lacksSockets reports whether an operation may be waiting for a connection: all are in
// use, or one is being opened.
func (c *client) lacksSockets() bool {
	switch {
	case c.plain == nil:
		return true // we cannot tell
	case c.refused():
		return false
	}
	stats := c.plain.PoolStats()
	return c.detour.dialing.Load() > 0 || int(stats.TotalConns-stats.IdleConns) >= c.connections()
}

// refused reports whether the server refused the last connection. go-redis pauses between its
// attempts, so an operation whose time ends during a pause has not waited for a socket.
func (c *client) refused() bool { return c.detour != nil && c.detour.refused.Load() }
