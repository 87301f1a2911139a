package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/lock"
)

var (
	errNoAnswerYet = fmt.Errorf("redlock: %w: no answer yet", lock.ErrUnavailable)
	errTooSlow     = fmt.Errorf("redlock: %w: no answer in time", lock.ErrUnavailable)
	errNoMajority  = fmt.Errorf("redlock: %w: a majority of the servers did not answer", lock.ErrUnavailable)
)

// A vote is the reply of one server, or its error.
type vote[R any] struct {
	reply R
	err   error
}

// poll calls n servers, all at the same time, and returns their votes. When decided reports
// that the votes so far are enough, poll waits for the others only as long again, not for the
// whole timeout, so that a server that hangs costs little. Calls still running go on until the
// timeout, also if ctx ends after poll has returned.
func poll[R any](ctx context.Context, q *Quorum, n int, decided func([]vote[R]) bool, call func(ctx context.Context, i int) (R, error)) []vote[R] {
	votes := make([]vote[R], n)
	if !q.calls.Begin() {
		for i := range votes {
			votes[i].err = lock.ErrClosed
		}
		return votes
	}
	begin, timeout := time.Now(), q.timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, deadline.Sub(begin))
	}
	inner, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), timeout, errTooSlow)
	defer context.AfterFunc(ctx, cancel)()
	type numbered struct {
		i int
		vote[R]
	}
	arriving := make(chan numbered, n)
	var under sync.WaitGroup
	for i := range n {
		votes[i].err = errNoAnswerYet
		under.Go(func() {
			reply, err := call(inner, i)
			arriving <- numbered{i, vote[R]{reply, err}}
		})
	}
	go func() {
		under.Wait()
		cancel()
		q.calls.End()
	}()
	var hurry <-chan time.Time
	for range n {
		select {
		case v := <-arriving:
			votes[v.i] = v.vote
		case <-hurry:
			return votes
		}
		if hurry == nil && decided(votes) {
			hurry = time.After(max(time.Since(begin), 10*time.Millisecond))
		}
	}
	return votes
}

// count returns how many votes are errors of a kind.
func count[R any](votes []vote[R], is func(error) bool) (n int) {
	for _, v := range votes {
		if is(v.err) {
			n++
		}
	}
	return n
}

// first returns the first error of a kind, nil if there is none.
func first[R any](votes []vote[R], is func(error) bool) error {
	for _, v := range votes {
		if is(v.err) {
			return v.err
		}
	}
	return nil
}

func granted[R any](votes []vote[R]) int {
	return count(votes, func(err error) bool { return err == nil })
}

func matches(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func isLost(err error) bool { return errors.Is(err, lock.ErrLost) }

// isHeld reports whether somebody else has the lock.
func isHeld(err error) bool {
	var held *lock.HeldError
	return errors.As(err, &held)
}

// notAcquired returns the error of a caller whose ctx has ended.
func notAcquired(ctx context.Context) error {
	return fmt.Errorf("%w: %w", lock.ErrNotAcquired, wait.Ended(ctx))
}
