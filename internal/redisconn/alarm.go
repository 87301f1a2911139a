package redisconn

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// An alarm bounds operations without a timer for each: all operations that start within
// an eighth of the timeout share one.
//
// While go-redis reads or writes with our copy of a client, it looks only at the context's
// deadline, see [client]. It waits for the context's end only while it waits for a connection.
type alarm struct {
	timeout time.Duration
	next    atomic.Pointer[bell]
}

type bell struct {
	rings time.Time
	rung  chan struct{} // closed when it has rung
}

// at returns a bell that rings timeout after now, or up to an eighth later.
func (a *alarm) at(now time.Time) *bell {
	for {
		b := a.next.Load()
		if b != nil && !b.rings.Before(now.Add(a.timeout)) {
			return b
		}
		life := a.timeout + a.timeout/8
		fresh := &bell{now.Add(life), make(chan struct{})}
		if a.next.CompareAndSwap(b, fresh) {
			time.AfterFunc(life, func() { close(fresh.rung) })
			return fresh
		}
	}
}

// A boundContext is a context with a deadline of its own and the values of another context.
type boundContext struct {
	context.Context
	deadline time.Time
	bell     *bell         // nil: it ends with Context
	bare     *redis.Client // see byBare
}

// bind returns a context with the values of ctx for a lone operation that starts now and may take as long as
// lasts: the usual time of lone operations, or until the deadline of ctx.
func (c *Conn) bind(ctx context.Context, now time.Time, lasts time.Duration) *boundContext {
	var b *bell
	if lasts == c.alarm.timeout {
		b = c.alarm.at(now)
	}
	return &boundContext{ctx, now.Add(lasts), b, c.client.bare}
}

// bindTrip returns a context with the values of ctx for a trip that starts now. Its deadline is when its bell
// rings: with an earlier one, a trip that waits for a connection could get one too late, and break it.
func (c *Conn) bindTrip(ctx context.Context, now time.Time) *boundContext {
	b := c.forTrips.at(now)
	return &boundContext{ctx, b.rings, b, c.client.bare}
}

func (c *boundContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *boundContext) Done() <-chan struct{} {
	if c.bell == nil {
		return c.Context.Done()
	}
	return c.bell.rung
}

func (c *boundContext) Value(key any) any {
	if key == (byBare{}) {
		return c.bare
	}
	return c.Context.Value(key)
}

func (c *boundContext) Err() error {
	if c.bell == nil {
		return c.Context.Err()
	}
	select {
	case <-c.bell.rung:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
