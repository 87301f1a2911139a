package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/lock"
)

// A writer whose lease has ended unlocks while a reader holds the lock for an hour. Catches that the record
// is forgotten with the writer's lease, and the next writer let in beside the reader.
func TestALateUnlockOfAWriterLeavesTheReadersTheirTime(t *testing.T) {
	inBubbles(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{})
		late := must(t)(l.With(lock.Options{Lease: time.Second, NoRenewal: true}).RW("x").Lock(ctx))
		time.Sleep(2 * time.Second)
		token, err := must(t)(l.RW("x").RLock(ctx)).Detach(ctx, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := late.Unlock(ctx); !errors.Is(err, lock.ErrExpired) {
			t.Errorf("the writer: %v", err)
		}
		time.Sleep(30 * time.Minute)
		for range 3 {
			unlock(t, must(t)(l.Lock(ctx, "another")))
		}
		if _, err := l.RW("x").TryLock(ctx); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("beside the reader: %v", err)
		}
		unlock(t, must(t)(l.Attach(ctx, token)))
	})
}

// Catches a LockAll that looks at two old records, however many new ones it makes.
func TestLockAllOfNewNamesIsForgotten(t *testing.T) {
	inBubbles(t, func(t *testing.T, s *backend) {
		if s.memory == nil {
			return // Redis forgets by itself
		}
		l := s.open(t, lock.Options{})
		for i := range 200 {
			names := make([]string, 10)
			for j := range names {
				names[j] = string(rune('a'+j)) + time.Duration(i).String()
			}
			unlock(t, must(t)(l.LockAll(t.Context(), names...)))
			time.Sleep(time.Minute)
		}
		if n := s.memory.Records(); n > 100 {
			t.Errorf("%d names are remembered", n)
		}
	})
}
