package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// Check tests whether a shared filter can work with its Redis: whether Redis replies, as a
// master of version 6.2 or later, accepts the client's password and database, allows every
// command and message of a filter, and does not evict the filter. Call it when a service
// starts; let no readiness probe depend on it, since a filter without Redis lets every id
// pass. Check tries the commands on a key of its own, which it deletes again. Without the
// right to INFO it cannot see the eviction policy. It does not say whether the filter
// abstains; see Stats.
//
// The error matches ErrUnavailable if Redis cannot be used, and ErrParameters if the
// stored filter has another Secret; any other error says what weakens the filter. Check takes
// some milliseconds; if Redis does not reply, some seconds, or until ctx ends. For a filter
// in one process it returns nil.
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
	if errors.Is(err, errGap) { // it can be read, whatever it has
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
