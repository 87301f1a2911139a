package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// mute starts a server with a user who may do everything but use a channel, as each new
// user of Redis 7 and later, and gives what opens a client of that user.
func mute(t *testing.T) func() *redis.Client {
	t.Helper()
	s := redistest.Start(t)
	if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">x", "resetchannels", "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	return func() *redis.Client {
		return s.Client(t, func(o *redis.Options) { o.Username, o.Password = "mute", "x" })
	}
}

// A message only tells of a change that is made already. If the server refuses it, the caller
// is told what has been done all the same, and who waits finds out by asking.
func TestANotificationThatIsRefusedUndoesNothing(t *testing.T) {
	client := mute(t)
	var log redistest.Log
	a, b := open(t, client(), lock.Options{}), open(t, client(), lock.Options{Logger: log.Logger()})
	ctx := t.Context()
	for _, kind := range []struct {
		name string
		kind keys.LockKind
		lock func(*lock.Locker, context.Context) (*lock.Lease, error)
		free func(context.Context) (bool, error) // ForceUnlock
	}{
		{"mutex", keys.Mutex, func(l *lock.Locker, ctx context.Context) (*lock.Lease, error) { return l.Lock(ctx, "1") },
			func(ctx context.Context) (bool, error) { return b.ForceUnlock(ctx, "1") }},
		{"writers", keys.ReadWrite, func(l *lock.Locker, ctx context.Context) (*lock.Lease, error) { return l.RW("1").Lock(ctx) },
			b.RW("1").ForceUnlock},
		{"permits", keys.Semaphore, func(l *lock.Locker, ctx context.Context) (*lock.Lease, error) {
			return l.Semaphore("1", 1).Acquire(ctx)
		},
			b.Semaphore("1", 1).ForceUnlock},
	} {
		t.Run(kind.name, func(t *testing.T) {
			// behind has b wait behind a, frees the lock in a's way and sees b get it.
			behind := func(what string, free func(held *lock.Lease) error) {
				t.Helper()
				held := must(t)(kind.lock(a, ctx))
				got := make(chan *lock.Lease)
				go func() {
					lease, err := kind.lock(b, ctx)
					if err != nil {
						t.Errorf("who waits gets %v", err)
					}
					got <- lease
				}()
				waiting(t, a, kind.kind, "1", 1)
				if err := free(held); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				unlock(t, <-got)
			}
			behind("Unlock", func(held *lock.Lease) error { return held.Unlock(ctx) })
			behind("ForceUnlock", func(*lock.Lease) error {
				forced, err := kind.free(ctx)
				if !forced {
					t.Error("ForceUnlock: nobody had it")
				}
				return err
			})
			behind("Detach and Release", func(held *lock.Lease) error {
				token, err := held.Detach(ctx, time.Minute)
				if err != nil {
					return err
				}
				return a.Release(ctx, token)
			})
		})
	}

	t.Run("once", func(t *testing.T) {
		began, others := make(chan struct{}), make(chan error)
		go func() {
			<-began
			_, err := b.Once(ctx, "1", time.Minute, func(context.Context) error { return nil })
			others <- err
		}()
		ran, err := a.Once(ctx, "1", time.Minute, func(context.Context) error {
			close(began)
			waiting(t, b, keys.Once, "1", 1)
			log.Await(t, "no messages from Redis")
			return nil
		})
		if !ran || err != nil {
			t.Errorf("Once: %v, %v", ran, err)
		}
		if err := <-others; err != nil {
			t.Errorf("who waits gets %v", err)
		}
	})
}
