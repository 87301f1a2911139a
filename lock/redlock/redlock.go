package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/lock"
)

// A Quorum takes locks on a majority of its servers. It may be used concurrently.
type Quorum struct {
	nodes   []*lock.Locker
	o       lock.Options
	parts   lock.Options // the options of each node's Locker
	log     *logonce.Log
	timeout time.Duration // of one call to a server
	ending  sync.Once
	closed  chan struct{}
	calls   wait.Tasks // calls to servers that run
}

// New returns a Quorum of at least three servers that do not replicate each other. Their
// clients stay open when the Quorum is closed. It uses the keys of a [lock.Locker] with the
// Prefix "redlock", or o.Prefix and ":redlock", so o.Prefix has at most 120 bytes.
// Options.Replicas, Fsync and StrictFIFO must be zero. Options.Hooks are called for the
// Quorum's locks. New does not wait for Redis. Its error matches lock.ErrConfig.
func New(nodes []redis.UniversalClient, o lock.Options) (*Quorum, error) {
	if len(nodes) < 3 {
		return nil, fmt.Errorf("redlock: %w: nodes must be at least 3, got %d", lock.ErrConfig, len(nodes))
	}
	if o.Replicas != 0 || o.Fsync || o.StrictFIFO { // a disk may take longer than a server has for an answer
		return nil, fmt.Errorf("redlock: %w: Replicas, Fsync and StrictFIFO must be zero", lock.ErrConfig)
	}
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	q := &Quorum{o: o, log: logonce.New(o.Logger, "lock: "), timeout: min(max(o.Lease/10, 20*time.Millisecond), 500*time.Millisecond), closed: make(chan struct{})}
	if len(o.Prefix) > 120 {
		return nil, fmt.Errorf("redlock: %w: Prefix must have at most 120 bytes, got %.150q", lock.ErrConfig, o.Prefix)
	}
	if o.Prefix != "" {
		o.Prefix += ":"
	}
	o.Prefix += "redlock"
	o.Hooks = lock.Hooks{}
	q.parts = o
	for i, rdb := range nodes {
		if rdb == nil { // else the node's locks would be in this process
			_ = q.Close()
			return nil, fmt.Errorf("redlock: nodes[%d]: %w: the redis client is nil", i, lock.ErrConfig)
		}
		o := o
		o.Logger = o.Logger.With("server", i)
		node, err := lock.New(rdb, o)
		if err != nil {
			_ = q.Close()
			return nil, fmt.Errorf("redlock: nodes[%d]: %w", i, err)
		}
		q.nodes = append(q.nodes, node)
	}
	return q, nil
}

// TryLock takes the lock name if a majority of the servers grants it at once. It takes two
// round trips to all servers. The error matches lock.ErrNotAcquired if another caller has the
// lock or tries at the same time, and lock.ErrUnavailable if too few servers reply; otherwise
// it is an error of [lock.Locker.TryLock].
func (q *Quorum) TryLock(ctx context.Context, name string) (*Lease, error) {
	return q.try(ctx, name, time.Now(), false)
}

// Lock takes the lock name. It tries, at random intervals, until it has the lock, ctx ends, or
// too few servers reply. It returns the same errors as [lock.Locker.Lock].
func (q *Quorum) Lock(ctx context.Context, name string) (*Lease, error) {
	if q.heldBy(ctx, name) {
		return nil, lock.ErrDeadlock
	}
	begin := time.Now()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		lease, err := q.try(ctx, name, begin, pause > 10*time.Millisecond)
		if !isHeld(err) {
			return lease, err
		}
		timer := time.NewTimer(rand.N(pause) + time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, notAcquired(ctx)
		case <-q.closed:
			timer.Stop()
			return nil, lock.ErrClosed
		}
	}
}

// try is TryLock for a caller that has waited since begin; contended is for the hook.
func (q *Quorum) try(ctx context.Context, name string, begin time.Time, contended bool) (*Lease, error) {
	l := q.newLease(ctx, name)
	votes := poll(ctx, q, len(q.nodes), func(votes []vote[*lock.Lease]) bool {
		return granted(votes) >= q.majority() || count(votes, isHeld) >= q.blocking()
	}, func(ctx context.Context, i int) (*lock.Lease, error) {
		part, err := q.nodes[i].TryLock(ctx, name)
		if err == nil {
			l.granted(i, part)
		}
		return part, err
	})
	if granted(votes) >= q.majority() && l.begin(q.raise(ctx, l, votes)) {
		if q.o.Hooks.Acquired != nil {
			q.tell(func() { q.o.Hooks.Acquired(name, time.Since(begin), contended) })
		}
		return l, nil
	}
	// Release the granted locks before the caller tries anything else.
	_ = q.giveBack(context.WithoutCancel(ctx), l.end())
	return nil, q.refusal(ctx, name, votes)
}

// raise writes the highest fence of the granted locks to all servers that granted one, and
// returns it. Where that fails, the server's vote becomes the error.
func (q *Quorum) raise(ctx context.Context, l *Lease, votes []vote[*lock.Lease]) (top int64) {
	var on []int
	for i, v := range votes {
		if v.err == nil {
			on, top = append(on, i), max(top, v.reply.Fence())
		}
	}
	raised := poll(ctx, q, len(on), q.enough, func(ctx context.Context, n int) (struct{}, error) {
		return struct{}{}, l.raise(ctx, on[n], votes[on[n]].reply, top)
	})
	for n, v := range raised {
		votes[on[n]].err = v.err
	}
	return top
}

// tell calls a hook, and logs its panic.
func (q *Quorum) tell(hook func()) {
	contain.Call(func() error { hook(); return nil }, func(err error) {
		if err != nil {
			q.log.Warn("a hook panicked", "error", err)
		}
	})
}

// giveBack unlocks parts. It returns nil if a majority of all servers confirms that its lock was
// held until then.
func (q *Quorum) giveBack(ctx context.Context, parts []*lock.Lease) error {
	return q.verdict(q.each(ctx, parts, func(ctx context.Context, part *lock.Lease) error { return part.Unlock(ctx) }))
}

// each calls do for leases on several servers, until it has succeeded for a majority of all servers.
func (q *Quorum) each(ctx context.Context, parts []*lock.Lease, do func(context.Context, *lock.Lease) error) []vote[struct{}] {
	return poll(ctx, q, len(parts), q.enough,
		func(ctx context.Context, i int) (struct{}, error) { return struct{}{}, do(ctx, parts[i]) })
}

// enough reports whether a call has succeeded for a majority of all servers.
func (q *Quorum) enough(votes []vote[struct{}]) bool { return granted(votes) >= q.majority() }

// verdict returns nil if a call has succeeded for a majority of all servers, the error of a
// lost lease if the others are no majority any more, and otherwise ErrUnavailable.
func (q *Quorum) verdict(votes []vote[struct{}]) error {
	switch lost := count(votes, isLost); {
	case granted(votes) >= q.majority():
		return nil
	case lost > len(votes)-q.majority():
		return first(votes, isLost)
	}
	return errNoMajority
}

// refusal returns the error of a lock that was not taken.
func (q *Quorum) refusal(ctx context.Context, name string, votes []vote[*lock.Lease]) error {
	if ctx.Err() != nil {
		return notAcquired(ctx)
	}
	for _, why := range []error{lock.ErrClosed, lock.ErrConfig, lock.ErrConflict} {
		if is := matches(why); count(votes, is) >= q.blocking() {
			return first(votes, is)
		}
	}
	if held := count(votes, isHeld); len(votes)-granted(votes)-held >= q.blocking() {
		return errNoMajority
	}
	busy := lock.HeldError{Name: name}
	for _, v := range votes {
		var held *lock.HeldError
		if errors.As(v.err, &held) {
			busy.Remaining = max(busy.Remaining, held.Remaining)
		}
	}
	return &busy
}

func (q *Quorum) majority() int { return len(q.nodes)/2 + 1 }

// blocking returns how many servers make a majority of the others impossible.
func (q *Quorum) blocking() int { return len(q.nodes) - q.majority() + 1 }

// Close releases all held locks and stops the Quorum's goroutines, as [lock.Locker.Close]
// does.
func (q *Quorum) Close() error {
	idle := q.calls.Close()
	q.ending.Do(func() { close(q.closed) })
	errs := make([]error, len(q.nodes))
	var all sync.WaitGroup
	for i, node := range q.nodes {
		all.Go(func() { errs[i] = node.Close() })
	}
	all.Wait()
	<-idle
	return errors.Join(errs...)
}
