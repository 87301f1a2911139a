package lock

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// Check tests whether locks can be kept in this Redis, for the start of a service; let no
// readiness probe depend on it, unless nothing works without a lock: whether it answers, as a master of version 6.2 or later, accepts the
// client's password and database, lets it run every script of a mutex, has the replicas
// for Options.Replicas, and does not evict locks. It takes and gives back a lock of its
// own, without calling Options.Hooks; of a cluster it tries one node. Without the right
// to INFO, Check cannot see the eviction policy.
//
// The error matches ErrUnavailable if Redis cannot be used and ErrNotReplicated if too
// few replicas answer. ErrConfig says that the server evicts locks. Check takes some
// milliseconds; if Redis does not answer, some seconds, or until ctx ends.
func (l *Locker) Check(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	found := redisconn.Check(ctx, l.shared.redis.prompt.Client(), redisconn.Scripts)
	if found.Broken != nil {
		return unavailable(found.Broken)
	}
	quiet := *l.o
	quiet.Hooks = Hooks{}
	if err := l.With(quiet).tryScripts(ctx); err != nil {
		return err
	}
	if found.Weak != nil {
		return badConfig("%v", found.Weak)
	}
	return nil
}

// tryScripts runs each script of a mutex under a name of its own.
func (l *Locker) tryScripts(ctx context.Context) error {
	name := "levee-check-" + rand.Text()
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
	return errors.Join(failed, unseen, lease.Check(ctx), l.shared.redis.leave(ctx, &t, name), lease.Unlock(ctx))
}
