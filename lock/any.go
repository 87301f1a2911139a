package lock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
)

// maxQueues is in how many queues a LockAny stands at a time.
const maxQueues = 64

// A stripeQueue is that of a stripe, which somebody else has.
type stripeQueue struct{ stripe, length int }

// takeAny takes a stripe that is free, or else the first that it is granted.
func (s *Striped) takeAny(ctx context.Context, o *Options, skip []int) (g *grant, stripe int, contended bool, err error) {
	g, stripe, queues, err := s.tryEach(ctx, o, skip)
	if g != nil || err != nil {
		return g, stripe, false, err
	}
	slices.SortStableFunc(queues, func(a, b stripeQueue) int { return cmp.Compare(a.length, b.length) })
	queues = queues[:min(len(queues), maxQueues)]
	targets := make([]target, len(queues))
	for i, q := range queues {
		targets[i] = s.target(q.stripe)
	}
	g, i, contended, err := s.l.shared.takeFirst(ctx, targets, o)
	if err != nil {
		return nil, -1, contended, err
	}
	return g, queues[i].stripe, contended, nil
}

// tryEach takes the first stripe that is free. If there is none it returns the queues to wait
// in. After a failure of a cluster's node it tries no more of them, since each may take as
// long to fail: those that are left are waited for, all at once.
func (s *Striped) tryEach(ctx context.Context, o *Options, skip []int) (g *grant, stripe int, queues []stripeQueue, err error) {
	var failed error
	own := false
	start := rand.IntN(s.n)
	for i := range s.n {
		stripe := (start + i) % s.n
		if slices.Contains(skip, stripe) {
			continue
		}
		t := s.target(stripe)
		if heldBy(ctx, t.record()) {
			own = true // to wait for it would be to wait for oneself
			continue
		}
		if failed != nil {
			queues = append(queues, stripeQueue{stripe: stripe})
			continue
		}
		g, err := s.l.shared.takeNow(ctx, &t, o)
		var held *HeldError
		switch {
		case err == nil:
			return g, stripe, nil, nil
		case errors.As(err, &held):
			queues = append(queues, stripeQueue{stripe, held.Waiting})
		case ofOneNode(err) && s.l.shared.redis.prompt.Clustered():
			failed = err
		default:
			return nil, -1, nil, err
		}
	}
	switch {
	case len(queues) > 0:
		return nil, -1, queues, nil
	case failed != nil:
		return nil, -1, nil, failed
	case own:
		return nil, -1, nil, ErrDeadlock
	}
	return nil, -1, nil, badConfig("skip leaves none of the %d stripes", s.n)
}

// ofOneNode reports whether another node of a cluster may do better.
func ofOneNode(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotReplicated)
}

// An outcome is how the wait for one of several locks ended.
type outcome struct {
	of        int // the lock, among the targets
	grant     *grant
	contended bool
	err       error
}

// takeFirst stands in the queues of several locks, takes the first that it is granted and
// leaves the other queues. What it was granted besides, in the same moment, goes on to
// those behind. It fails when it can wait for none any more. What is left to do when it
// returns is done in the background, and Close waits for that.
func (l *locker) takeFirst(ctx context.Context, targets []target, o *Options) (g *grant, of int, contended bool, err error) {
	waits, leave := context.WithCancel(ctx)
	defer leave()
	outcomes := make(chan outcome) // without room: an outcome is received, or given back
	for i := range targets {
		l.background(func(life context.Context) error {
			g, contended, err := l.takeInTurn(waits, &targets[i], o)
			select {
			case outcomes <- outcome{i, g, contended, err}:
				return nil
			case <-waits.Done():
			}
			if g != nil {
				return l.release(life, g, 0)
			}
			return err
		})
	}
	for range targets {
		select {
		case t := <-outcomes:
			if t.err == nil || !ofOneNode(t.err) {
				return t.grant, t.of, t.contended, t.err
			}
			contended, err = contended || t.contended, t.err
		case <-ctx.Done():
			return nil, 0, true, notAcquired(ctx)
		case <-l.closed:
			return nil, 0, true, ErrClosed
		}
	}
	return nil, 0, contended, err
}
