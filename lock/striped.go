package lock

import (
	"context"
	"hash/fnv"

	"github.com/levee-go/levee/internal/keys"
)

const maxStripes = 1 << 16

// A Striped is n locks under one name: for keys that may share a lock with others, or
// for a stock that is kept in n parts so that n buyers can be served at a time. (A stock
// that is one number needs no lock: use one conditional update.)
type Striped struct {
	l    *Locker
	name string
	n    int
}

// Striped returns the locks name:0 to name:n-1. All callers must use the same n: with
// another n a key has another stripe. If n is not from 1 to 65,536, its methods
// fail with ErrConfig.
func (l *Locker) Striped(name string, n int) *Striped { return &Striped{l, name, n} }

// LockKey takes the lock of the stripe that key belongs to, as [Locker.Lock] does.
// Two keys may share a stripe, so a caller that holds one key must not wait for another.
func (s *Striped) LockKey(ctx context.Context, key string) (*Lease, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	t := s.target(s.stripe(key))
	return s.l.shared.lock(ctx, &t, s.l.o, true)
}

// LockAny takes the lock of whichever stripe is free first, and returns the stripe's number.
// It leaves out the stripes in skip, such as those that the caller found empty; if that
// leaves none, the error matches ErrConfig.
//
// It tries each stripe, beginning with a random one, with a round trip each. If all are
// taken, it waits in the queues of all stripes at once, or of the 64 with the shortest
// queues, as [Locker.Lock] does in one, and leaves the other queues when it is granted a
// stripe. In a cluster it goes on without the stripes of a node that fails, as long as
// there are others. It returns the same errors as Lock.
func (s *Striped) LockAny(ctx context.Context, skip ...int) (*Lease, int, error) {
	if err := s.check(); err != nil {
		return nil, -1, err
	}
	stripe := -1
	grants, err := s.l.shared.count(ctx, s.l.o, true, func() ([]*grant, bool, error) {
		g, taken, contended, err := s.takeAny(ctx, s.l.o, skip)
		stripe = taken
		return []*grant{g}, contended, err
	})
	if err != nil {
		return nil, -1, err
	}
	return s.l.shared.lease(ctx, grants), stripe, nil
}

func (s *Striped) check() error {
	if s.n < 1 || s.n > maxStripes {
		return badConfig("there must be 1 to %d stripes, got %d", maxStripes, s.n)
	}
	if err := checkName(s.name); err != nil {
		return err
	}
	return s.l.err
}

// numbered returns the stripe with this number, for Inspect and ForceUnlock.
func (s *Striped) numbered(stripe int) (target, error) {
	if err := s.check(); err != nil {
		return target{}, err
	}
	if stripe < 0 || stripe >= s.n {
		return target{}, badConfig("a stripe must be from 0 to %d, got %d", s.n-1, stripe)
	}
	return s.target(stripe), nil
}

func (s *Striped) target(stripe int) target {
	return newTarget(s.l.o.Prefix, keys.Stripe, keys.StripeName(s.name, stripe), exclusive)
}

// stripe returns the number of a key's stripe, the same in every process and every version.
func (s *Striped) stripe(key string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum64() % uint64(s.n)) //nolint:gosec // below n
}
