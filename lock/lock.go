package lock

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/keys"
)

// A Locker takes locks for one process. It keeps one subscription per Redis
// client, one goroutine that renews all its leases, and nothing for a lock that
// is not in use. It may be used concurrently.
type Locker struct {
	c *core
	o Options
}

// New makes a Locker that keeps its locks in rdb, which stays the caller's. It
// does not wait for Redis. The error matches ErrConfig.
func New(rdb redis.UniversalClient, o Options) (*Locker, error) {
	if v := reflect.ValueOf(rdb); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, badConfig("rdb must not be nil")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Locker{c: newCore(rdb, o), o: o}, nil
}

// With returns a Locker with other settings that shares everything else with l:
// to close one closes both. Options that New would refuse make every call of it
// fail with ErrConfig.
func (l *Locker) With(o Options) *Locker { return &Locker{c: l.c, o: o} }

// options returns the settings of a call. They are checked here since With has no
// error to return.
func (l *Locker) options() (Options, error) { return l.o.withDefaults() }

// Lock takes the lock name, after those who asked before. It waits as long as ctx
// lives, and no longer whatever Redis does; ctx does not end the lease, whose own
// context has the values of ctx.
//
// The error matches ErrNotAcquired and the context's cause when ctx has ended,
// ErrUnavailable when Redis does not answer (a wait that has begun bears that for
// as long as a lease), ErrDeadlock when ctx is that of a lease on name, and
// ErrConflict, ErrNotReplicated, ErrConfig or ErrClosed.
func (l *Locker) Lock(ctx context.Context, name string) (*Lease, error) {
	return l.lock(ctx, keys.Mutex, name, exclusive, true)
}

// TryLock takes the lock name if nobody has it and nobody waits for it. Otherwise
// the error is a *HeldError, which matches ErrNotAcquired. It is one round trip.
func (l *Locker) TryLock(ctx context.Context, name string) (*Lease, error) {
	return l.lock(ctx, keys.Mutex, name, exclusive, false)
}

// Do runs fn while it holds the lock name, and gives the lock back when fn has
// returned, panicked or called runtime.Goexit. It returns fn's error, joined with
// an error that matches ErrLost if the lease was lost on the way: then another may
// have run at the same time. If the lock cannot be taken, fn does not run and the
// errors are those of Lock.
//
// The context of fn is that of the lease, and ends with ctx too. When ctx has
// ended the lease is renewed for the length of one lease more, for fn to unwind;
// it is not taken away under fn.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, lease *Lease) error) error {
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	return lease.do(ctx, 0, fn)
}

// do runs fn under a lease that it gives back, and has it count as done for keep
// if fn succeeds.
func (s *Lease) do(ctx context.Context, keep time.Duration, fn func(context.Context, *Lease) error) (err error) {
	inner, cancel := context.WithCancelCause(s.Context())
	stop := context.AfterFunc(ctx, func() {
		cancel(context.Cause(ctx))
		s.windDown()
	})
	returned := false
	defer func() { // also on a panic or Goexit of fn, which go on
		stop()
		cancel(nil)
		if err != nil || !returned {
			keep = 0
		}
		if lost := s.unlock(ctx, keep); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	if deadline, ok := ctx.Deadline(); ok {
		var done context.CancelFunc
		inner, done = context.WithDeadline(inner, deadline)
		defer done()
	}
	err = fn(inner, s)
	returned = true
	return err
}

// Close gives back what is held, ends all waits with ErrClosed and stops the
// Locker's goroutines. It takes up to a second if Redis does not answer; the
// leases end by themselves then.
func (l *Locker) Close() error {
	l.c.close()
	return nil
}

// lock takes a lock of any kind that one owner or several share.
func (l *Locker) lock(ctx context.Context, kind keys.LockKind, name string, m mode, wait bool) (*Lease, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	o, err := l.options()
	if err != nil {
		return nil, err
	}
	t := newTarget(o.Prefix, kind, name, m)
	return l.c.lock(ctx, &t, &o, wait)
}

func (c *core) lock(ctx context.Context, t *target, o *Options, wait bool) (*Lease, error) {
	if wait && c.keeper.holds(ctx, t.record()) {
		return nil, ErrDeadlock
	}
	h, err := c.take(ctx, t, o, wait)
	if err != nil {
		return nil, err
	}
	return c.lease(ctx, h), nil
}

// take takes a lock and has it renewed.
func (c *core) take(ctx context.Context, t *target, o *Options, wait bool) (*hold, error) {
	if c.isClosed() {
		return nil, ErrClosed
	}
	if ctx.Err() != nil {
		return nil, notAcquired(end(ctx))
	}
	begin := time.Now()
	var h *hold
	var contended bool
	var err error
	if wait {
		h, contended, err = c.wait(ctx, t, o)
	} else {
		h, err = c.try(ctx, t, o)
	}
	if err == nil || errors.Is(err, ErrNotReplicated) {
		c.advise(o)
	}
	if err != nil {
		return nil, err
	}
	if c.isClosed() { // it came too late for Close to find it
		_ = c.giveBack(ctx, h, 0)
		return nil, ErrClosed
	}
	if ctx.Err() != nil { // while it was granted: the caller does not want it any more
		c.background(func(ctx context.Context) error { return c.giveBack(ctx, h, 0) })
		return nil, notAcquired(end(ctx))
	}
	if o.Hooks.Acquired != nil {
		o.Hooks.Acquired(t.name, time.Since(begin), contended)
	}
	return h, nil
}

// try takes a lock if it can be had at once.
func (c *core) try(ctx context.Context, t *target, o *Options) (*hold, error) {
	b := o.bid()
	b.owners = []string{c.owner()}
	r, err := c.acquire(ctx, nil, t, o, b)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, notAcquired(end(ctx))
	case err != nil:
		return nil, err
	case r.what == "granted":
		return c.accept(ctx, t, o, b.owners[0], r)
	case r.what == "done":
		return nil, errDone
	}
	return nil, &HeldError{Name: t.name, Remaining: millis(r.n[0]), Waiting: int(r.n[1])}
}

// bid is what the options say about a bid.
func (o *Options) bid() bid {
	return bid{lease: o.Lease, label: o.Label, replicas: o.Replicas, timeout: o.ReplicaTimeout}
}

// acquire runs the script, and sees to it that nothing is held by nobody when its
// outcome is not known.
func (c *core) acquire(ctx context.Context, rm *room, t *target, o *Options, b bid) (reply, error) {
	r, err := c.store.acquire(ctx, t, b, func(r reply, err error) {
		switch {
		case err != nil || r.what == "granted":
			c.abandon(t, o, b.owners)
		case rm != nil && r.what == "busy":
			c.mu.Lock()
			c.unqueue(rm)
			c.mu.Unlock()
		}
	})
	if err != nil && !errors.Is(err, ErrConflict) {
		if o.Hooks.Orphan != nil {
			o.Hooks.Orphan(t.name)
		}
		c.abandon(t, o, b.owners)
	}
	return r, err
}

// accept makes the hold of what was granted, unless it is too late or too few
// replicas know of it: then it is given back.
func (c *core) accept(ctx context.Context, t *target, o *Options, owner string, r reply) (*hold, error) {
	h := newHold(t, o, owner, r)
	if r.acked < o.Replicas {
		err := c.giveBack(ctx, h, 0)
		return nil, errors.Join(ErrNotReplicated, err)
	}
	if left(h.deadline, time.Now()) <= 0 {
		_ = c.giveBack(ctx, h, 0)
		return nil, unavailable(errors.New("its answer took longer than the lease"))
	}
	c.keeper.add(h)
	return h, nil
}

// abandon refuses owners a lock they may have been given, in the background: if
// the command that asks for it is still under way, it will find them dead.
func (c *core) abandon(t *target, o *Options, owners []string) {
	until := time.Now().Add(o.Lease)
	for _, owner := range owners {
		c.background(func(ctx context.Context) error {
			return c.insist(ctx, until, func(ctx context.Context) error {
				_, err := c.store.release(ctx, t, owner, 0, 0, true, 0)
				return err
			})
		})
	}
}

// insist tries again until op succeeds, makes no sense, or it is too late.
func (c *core) insist(ctx context.Context, until time.Time, op func(context.Context) error) error {
	pause := 20 * time.Millisecond
	for {
		err := op(ctx)
		if err == nil || final(err) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

// background runs fn in a goroutine that Close waits for.
func (c *core) background(fn func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.start(fn)
}

// start is background for callers that hold core.mu.
func (c *core) start(fn func(ctx context.Context) error) {
	if c.ended {
		return
	}
	c.tasks.Add(1)
	go contain.Call(func() error { return fn(c.ctx) }, func(error) { c.tasks.Done() })
}

// end is why ctx has ended; it matches the context's error and its cause.
func end(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return &joined{err, cause}
}
