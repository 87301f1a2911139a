package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// Check tests whether a shared filter can work with its Redis, for the start of a service;
// let no readiness probe depend on it, since a filter without Redis lets every id pass:
// whether it answers, as a master of version 6.2 or later, accepts
// the client's password and database, lets it run every command of a filter and hear other
// processes' messages, and does not evict the filter. It tries the commands on a key of its own, which
// it takes away again. Without the right to INFO, Check cannot see the eviction policy.
// It does not say whether the filter abstains; see Stats.
//
// The error matches ErrUnavailable if Redis cannot be used, and ErrParameters if the
// stored filter has another Secret; any other says what weakens the filter. Check takes some
// milliseconds; if Redis does not answer, some seconds, or until ctx ends. In one process
// it returns nil.
func (f *Filter) Check(ctx context.Context) error {
	if f == nil {
		return nil
	}
	s, ok := f.impl.(*shared)
	if !ok {
		return nil
	}
	return s.check(ctx)
}

func (s *shared) check(ctx context.Context) error {
	found := redisconn.Check(ctx, s.rdb, redisconn.Scripts)
	if found.Broken != nil {
		return unavailable(ctx, "Check of "+s.quoted, found.Broken)
	}
	rights := redisconn.Rights(ctx, s.rdb, checkScript, redisconn.Call{
		Keys: []string{s.store.names.Pieces("levee-check-" + rand.Text())}, Args: []any{s.store.names.Channel()},
	}, s.store.names.Channel(), keys.Heartbeat(rand.Text()))
	if rights.Broken != nil {
		return unavailable(ctx, "Check of "+s.quoted, errors.Join(rights.Broken, rights.Weak))
	}
	rec, last, err := s.store.ensure(ctx, false)
	if err == nil {
		_, err = s.store.tail(ctx, rec, last)
	}
	if errors.Is(err, errGap) { // it can be read, whatever stands there
		err = nil
	}
	if err != nil {
		return unavailable(ctx, "Check of "+s.quoted, err)
	}
	if weak := errors.Join(found.Weak, rights.Weak); weak != nil {
		return fmt.Errorf("bloom: Check of %s: %w", s.quoted, weak)
	}
	return nil
}
