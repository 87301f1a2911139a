package redisconn

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
)

// A Conn is one Redis, and the time that an operation may take. It may be used
// concurrently. Make it with Open or New.
type Conn struct {
	Client  redis.UniversalClient
	Outage  *Outage // nil: none is ever declared
	timeout time.Duration
	runner  *Runner
	// onCaller has the connections of Client, and keeps to timeout and to a context's
	// deadline. nil: there is no such client.
	onCaller *redis.Client
	release  func()
}

// Open returns a Conn for operations of at most timeout, of which at most limit
// wait for an answer at a time. All Conns that Open returns for one client and
// timeout share one Outage; the log is that of the first. Each needs a Close.
func Open(rdb redis.UniversalClient, timeout time.Duration, limit int, log *logonce.Log) *Conn {
	c := New(rdb, timeout, limit)
	c.Outage, c.release = openOutage(rdb, timeout, c.onCaller, log)
	return c
}

// New is Open for callers who ask Redis in any case: the Conn has no Outage and needs
// no Close.
func New(rdb redis.UniversalClient, timeout time.Duration, limit int) *Conn {
	return &Conn{Client: rdb, timeout: timeout, runner: NewRunner(timeout, limit), onCaller: Punctual(rdb, timeout), release: func() {}}
}

// WithTimeout returns a Conn of the same client and Outage for operations that may
// take longer. It lives as long as c and needs no Close.
func (c *Conn) WithTimeout(timeout time.Duration, limit int) *Conn {
	with := New(c.Client, timeout, limit)
	with.Outage = c.Outage
	return with
}

// Close gives the Outage up, which ends when all its Conns are closed. It is called
// once.
func (c *Conn) Close() { c.release() }

// Punctual returns a client with the connections of rdb that keeps to timeout and to
// a context's deadline, nil if it can make none. Both are needed: a read timeout alone
// starts only after the wait for a connection. The user's client does not change, as a
// copy has Options of its own. A cluster client cannot be made punctual: it looks up
// nodes and commands first, and no option bounds that.
func Punctual(rdb redis.UniversalClient, timeout time.Duration) *redis.Client {
	client, ok := rdb.(*redis.Client)
	switch {
	case !ok:
		return nil
	case client.Options().ContextTimeoutEnabled:
		return client // a copy would lose hooks that are added later
	}
	client = client.WithTimeout(timeout)
	client.Options().ContextTimeoutEnabled = true
	return client
}

// Do runs op within the Conn's time, on a goroutine that the caller leaves behind
// when ctx or the time ends; see [Run]. During an outage it returns ErrOutage at
// once.
func Do[T any](ctx context.Context, c *Conn, op func(context.Context) (T, error), late func(T, error)) (T, error) {
	if c.Outage.Down() {
		var none T
		return none, ErrOutage
	}
	return Run(ctx, c.runner, op, late)
}

// MayUseCaller reports whether DoOnCaller may be used with ctx: the client keeps to
// its time, ctx has at least that time left, and no operation has cost a connection
// within the last second.
func (c *Conn) MayUseCaller(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return c.onCaller != nil && ctx.Err() == nil && (!ok || time.Until(deadline) >= c.timeout) && c.Outage.mayDropConn()
}

// DoOnCaller runs op on the caller's own goroutine, which saves the way to another one
// and back. op does not notice when ctx is cancelled, so DoOnCaller may return later
// than ctx ends, by the Conn's time at most. An operation that times out costs its
// connection: its reply may still come, and the next operation must not take it for its
// own. During an outage DoOnCaller returns ErrOutage at once.
func DoOnCaller[T any](ctx context.Context, c *Conn, op func(context.Context, redis.Cmdable) (T, error)) (T, error) {
	var none T
	switch {
	case c.Outage.Down():
		return none, ErrOutage
	case !c.runner.Enter():
		return none, ErrBusy
	}
	defer c.runner.Leave()
	opCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	value, err := op(opCtx, c.onCaller)
	if err != nil && opCtx.Err() != nil && ctx.Err() == nil { // an end of the caller's own costs no connection
		c.Outage.droppedConn()
	}
	return value, err
}

// GetRange reads up to longest bytes of key, and one more if the value is longer. It is
// not a GET: somebody else may have put hundreds of megabytes there, and go-redis makes
// room for all that a server announces. A value of another type reads as none.
func GetRange(ctx context.Context, rdb redis.Cmdable, key string, longest int) ([]byte, error) {
	return Bytes(rdb.GetRange(ctx, key, 0, int64(longest)))
}

// Bytes is the answer to a GETRANGE, which may be one of a pipeline.
func Bytes(reply *redis.StringCmd) ([]byte, error) {
	data, err := reply.Bytes()
	if err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil
	}
	return data, err
}

// Asked reports whether err says something about Redis: the operation that ended with
// it was begun, and its caller has not left.
func Asked(caller context.Context, err error) bool {
	return caller.Err() == nil && !errors.Is(err, ErrOutage) && !errors.Is(err, ErrBusy)
}
