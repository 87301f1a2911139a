package lock

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"

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
	o, err := s.check()
	if err != nil {
		return nil, err
	}
	t := s.target(&o, s.stripe(key))
	return s.l.shared.lock(ctx, &t, &o, true)
}

// LockAny takes the lock of a free stripe, or waits for the one with the shortest queue,
// and returns its number. It leaves out the stripes skip, such as those that the caller
// found empty. It starts at a random stripe, and each stripe that it tries is a round
// trip. With every stripe in skip the error is ErrConfig.
func (s *Striped) LockAny(ctx context.Context, skip ...int) (*Lease, int, error) {
	o, err := s.check()
	if err != nil {
		return nil, -1, err
	}
	var best target
	shortest, number, own := int(^uint(0)>>1), -1, false
	start := rand.IntN(s.n)
	for i := range s.n {
		stripe := (start + i) % s.n
		if slices.Contains(skip, stripe) {
			continue
		}
		t := s.target(&o, stripe)
		if heldBy(ctx, t.record()) {
			own = true // to wait for it would be to wait for oneself
			continue
		}
		lease, err := s.l.shared.lock(ctx, &t, &o, false)
		if err == nil {
			return lease, stripe, nil
		}
		var held *HeldError
		if !errors.As(err, &held) {
			return nil, -1, err
		}
		if held.Waiting < shortest {
			best, shortest, number = t, held.Waiting, stripe
		}
	}
	switch {
	case number < 0 && own:
		return nil, -1, ErrDeadlock
	case number < 0:
		return nil, -1, badConfig("skip leaves none of the %d stripes", s.n)
	}
	lease, err := s.l.shared.lock(ctx, &best, &o, true)
	if err != nil {
		return nil, -1, err
	}
	return lease, number, nil
}

func (s *Striped) check() (Options, error) {
	if s.n < 1 || s.n > maxStripes {
		return Options{}, badConfig("there must be 1 to %d stripes, got %d", maxStripes, s.n)
	}
	if err := checkName(s.name); err != nil {
		return Options{}, err
	}
	return s.l.options()
}

func (s *Striped) target(o *Options, stripe int) target {
	return newTarget(o.Prefix, keys.Stripe, keys.StripeName(s.name, stripe), exclusive)
}

// stripe must be the same in every process and every version.
func (s *Striped) stripe(key string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum64() % uint64(s.n)) //nolint:gosec // below n
}
