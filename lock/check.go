package lock

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// Check tests whether locks can be kept in this Redis: whether it replies, as a master of
// version 6.2 or later, accepts the client's password and database, allows every command and
// message of locks, has the replicas for Options.Replicas, and does not evict locks. Call it
// when a service starts; let no readiness probe depend on it, unless nothing works without a
// lock. Check takes and releases a lock of its own, without calling Options.Hooks; in a
// cluster it tries one node. Without the right to INFO it cannot see the eviction policy.
//
// The error matches ErrUnavailable if Redis cannot be used, ErrNotReplicated if too few
// replicas reply, and ErrConfig if the server evicts locks, does not say what its replicas
// have, or refuses messages, without which waiters poll. The error names each right that the
// user lacks. Check takes some milliseconds; if Redis does not reply, some seconds, or until
// ctx ends. Without Redis there is nothing to miss, and Check returns nil.
func (l *Locker) Check(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	name := "levee-check-" + rand.Text()
	quiet := *l.o
	quiet.Hooks = Hooks{}
	rdb := l.shared.rdb
	if rdb == nil {
		return l.With(quiet).tryScripts(ctx, name)
	}
	found := redisconn.Check(ctx, rdb, redisconn.Scripts)
	if found.Broken != nil {
		return unavailable(found.Broken)
	}
	channel := keys.LockChannels + l.shared.process
	rights := redisconn.Rights(ctx, rdb, checkScript, redisconn.Call{
		Keys: keys.Lock(l.o.Prefix, keys.Mutex, name)[:1], Args: []any{channel},
	}, channel, keys.Heartbeat(name))
	if rights.Broken != nil {
		return unavailable(errors.Join(rights.Broken, rights.Weak))
	}
	err := l.With(quiet).tryScripts(ctx, name)
	if weak := errors.Join(found.Weak, rights.Weak); weak != nil {
		err = errors.Join(err, badConfig("%v", weak))
	}
	return err
}

// tryScripts runs each script of a mutex under a name that nobody else has.
func (l *Locker) tryScripts(ctx context.Context, name string) error {
	lease, err := l.TryLock(ctx, name)
	if err != nil {
		return err
	}
	_, failed := l.TryLock(ctx, name)
	if errors.Is(failed, ErrNotAcquired) {
		failed = nil
	}
	_, unseen := l.Inspect(ctx, name)
	t, _ := l.target(keys.Mutex, name, exclusive)
	return errors.Join(failed, unseen, lease.Check(ctx), l.shared.store.leave(ctx, &t, name), lease.Unlock(ctx))
}
