package lock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
)

// maxQueues is how many queues a LockAny waits in at a time.
const maxQueues = 64

// A stripeQueue is the queue of a stripe that is taken.
type stripeQueue struct{ stripe, length int }

// takeAny takes a free stripe; if there is none, it waits for the first that it is granted.
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
// in. After a node of a cluster has failed it tries no more stripes, since each may take as
// long to fail: it returns the queues of the rest, to wait in all of them at once.
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
			own = true // the caller would wait for itself
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
		case ofOneNode(err) && s.l.shared.store.clustered():
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

// ofOneNode reports whether err may concern only one node of a cluster.
func ofOneNode(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotReplicated)
}

// An outcome is how the wait for one of several locks ended.
type outcome struct {
	of        int // index of the lock in targets
	grant     *grant
	contended bool
	err       error
}

// takeFirst waits in the queues of several locks, takes the first lock that it is granted and
// leaves the other queues. Another lock that it is granted at the same moment is released.
// takeFirst fails when all its waits have failed. When it returns, it still leaves queues and
// releases locks in the background, and Close waits for that.
func (l *locker) takeFirst(ctx context.Context, targets []target, o *Options) (g *grant, of int, contended bool, err error) {
	waits, leave := context.WithCancel(ctx)
	defer leave()
	outcomes := make(chan outcome) // unbuffered: an outcome is received, or its grant is released
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
