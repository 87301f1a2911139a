package redisconn

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// One way to Redis
//
// Every operation of a Conn goes through the user's client, so that the user's hooks see
// each of them. With a second way, a hook that rewrites keys would make two keys of one: a
// lock that was granted over the one would be free over the other.
//
// But with go-redis' default options an operation keeps to no context's deadline, and is
// repeated when it timed out. A copy of the client with other options has the same
// connections, and none of its hooks: WithTimeout drops them. So a *redis.Client is used
// with a detour: the operation passes through the client's hooks, and the innermost, ours,
// sends it by the copy; see [detour]. The user's own commands pass it by.
//
// Any other client is used as it is: a cluster client looks up nodes and commands first,
// which no option bounds, and of a type that we do not know we cannot say whose
// connections it has. Their operations run on goroutines that can be left behind.

// maxUnnoticed is how long a caller's cancellation may go unnoticed.
const maxUnnoticed = 250 * time.Millisecond

type client struct {
	user    redis.UniversalClient
	plain   *redis.Client // the user's, nil if it is of another type
	bare    *redis.Client // the copy of plain: it keeps to deadlines, repeats nothing, and has no hooks
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

// brief returns how long an operation may last on its caller's goroutine, where a
// cancellation goes unnoticed.
func (c *client) brief() time.Duration { return min(c.timeout, maxUnnoticed) }

// mayBeLone returns how many operations may run there: as many as leave connections for others.
func (c *client) mayBeLone() int {
	if c.plain == nil {
		return 0
	}
	return max(1, min(maxLone, c.connections()-maxTrips))
}

// connections returns how many the client opens at most.
func (c *client) connections() int {
	o := c.plain.Options()
	if o.MaxActiveConns > 0 {
		return min(o.PoolSize, o.MaxActiveConns)
	}
	return o.PoolSize
}

// limited reports whether a function of the user's may refuse the client's commands.
func (c *client) limited() bool { return c.plain != nil && c.plain.Options().Limiter != nil }

// by returns a context with which the client's operations keep to its deadline.
func (c *client) by(ctx context.Context) context.Context {
	if c.plain == nil {
		return ctx
	}
	return context.WithValue(ctx, byBare{}, c.bare)
}

// get returns the client for an operation with a context of by.
func (c *client) get() redis.UniversalClient {
	if c.detour != nil {
		c.detour.keepInnermost(c.plain)
	}
	return c.user
}

// attempts returns how often an operation is sent whose connections turn out to be closed. All that the
// client has may be closed, and say nothing about the server; then one is made.
func (c *client) attempts() int {
	if c.plain == nil || c.plain.Options().MaxRetries <= 0 {
		return 1 // the user's client repeats it, or the user does not want that
	}
	return 2 + c.connections()
}

// hasIdle reports whether the client has a connection that nobody uses.
func (c *client) hasIdle() bool { return c.plain.PoolStats().IdleConns > 0 }

// late notes that an operation has run out of time. A connection that was being made for it is lost: by
// our copy of the client that has to be done before the operation's deadline.
func (c *client) late() {
	if c.detour != nil {
		c.detour.late.Add(1)
	}
}

// tookLate returns how many operations have run out of time since the last call.
func (c *client) tookLate() int {
	if c.detour == nil {
		return 0
	}
	return int(c.detour.late.Swap(0))
}

// longest returns how long an operation may last that its callers have left, so that a
// late reply does not cost its connection.
func (c *client) longest() time.Duration { return c.timeout + max(c.timeout, time.Second) }

// lacksSockets reports whether an operation may be waiting for a connection: others have
// all of them, or one is being opened.
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

// refused reports whether the server takes no connections: between its attempts go-redis
// waits, and an operation whose time ends then has not waited for a socket.
func (c *client) refused() bool { return c.detour != nil && c.detour.refused.Load() }
