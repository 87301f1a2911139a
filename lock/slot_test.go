package lock_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// While a slot lies between two nodes, a script with several keys is refused with TRYAGAIN
// as soon as one of them is elsewhere, or nowhere. A lock of one key goes on, and so does
// ours as long as nobody waits: it is renewed, checked, released and taken again, whether
// its record has been moved or not.
func TestALockGoesOnWhileItsSlotLiesBetweenTwoNodes(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	rdb := cluster.Client(t)
	ctx := t.Context()
	quiet := slog.New(slog.DiscardHandler)
	l := open(t, rdb, lock.Options{Lease: 3 * time.Second, Logger: quiet})
	renewOne := redis.NewScript("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], 60000)")
	for _, moved := range []bool{false, true} {
		name, fresh := "held", "fresh"
		if moved {
			name, fresh = "moved", "moved and fresh"
		}
		record := keys.Lock("", keys.Mutex, name)[0]
		held := must(t)(l.Lock(ctx, name))
		ofOneKey := record + ":one"
		if err := rdb.SetNX(ctx, ofOneKey, "me", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		moveKey := cluster.HalfMove(record)
		if moved {
			moveKey(record)
			moveKey(ofOneKey)
		}
		if err := renewOne.Run(ctx, rdb, []string{ofOneKey}, "me").Err(); err != nil {
			t.Fatalf("moved %v: a lock of one key is not renewed: %v", moved, err)
		}

		before := l.Stats()
		redistest.Eventually(t, 30*time.Second, "it is renewed", func() bool {
			now := l.Stats()
			return now.Renewals-before.Renewals >= 3 || held.Context().Err() != nil
		})
		if now := l.Stats(); held.Context().Err() != nil {
			t.Errorf("moved %v: renewals fail: %+v, %v", moved, now, context.Cause(held.Context()))
			continue
		}
		if err := held.Check(ctx); err != nil {
			t.Errorf("moved %v: Check: %v", moved, err)
		}
		if _, err := l.TryLock(ctx, name); err == nil {
			t.Errorf("moved %v: a lock is held twice", moved)
		}
		if err := held.Unlock(ctx); err != nil {
			t.Errorf("moved %v: Unlock: %v", moved, err)
		}
		again, err := l.Lock(ctx, name)
		if err != nil {
			t.Errorf("moved %v: a lock that is free: %v", moved, err)
			continue
		}
		if again.Fence() <= held.Fence() {
			t.Errorf("moved %v: fence %d after %d", moved, again.Fence(), held.Fence())
		}
		unlock(t, again)

		// A name that nobody has had yet.
		cluster.HalfMove(keys.Lock("", keys.Mutex, fresh)[0])
		first, err := l.Lock(ctx, fresh)
		if err != nil {
			t.Errorf("a new name: %v", err)
			continue
		}
		unlock(t, first)
	}
}

// A reader's and a permit's lease are two keys, which lie on one node for most of a move.
func TestASharedLeaseIsRenewedWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	l := open(t, cluster.Client(t), lock.Options{Lease: 3 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	permit := must(t)(l.Semaphore("a", 4).Acquire(t.Context()))
	reader := must(t)(l.RW("b").RLock(t.Context()))
	cluster.HalfMove(keys.Lock("", keys.Semaphore, "a")[0])
	cluster.HalfMove(keys.Lock("", keys.ReadWrite, "b")[0])
	before := l.Stats()
	redistest.Eventually(t, 30*time.Second, "both are renewed", func() bool {
		now := l.Stats()
		return now.Renewals-before.Renewals >= 6 || now.Losses > 0
	})
	if now := l.Stats(); now.Losses > 0 { // an error may be a time-out of a busy machine, and the next renewal does
		t.Errorf("renewals fail: %+v", now)
	}
	if err := errors.Join(permit.Check(t.Context()), reader.Check(t.Context())); err != nil {
		t.Error(err)
	}
}
