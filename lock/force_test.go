package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// told waits until a lease is lost, and sees why.
func told(t *testing.T, what string, leases ...*lock.Lease) {
	t.Helper()
	for _, lease := range leases {
		select {
		case <-lease.Context().Done():
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the holder is not told", what)
		}
		if err := context.Cause(lease.Context()); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrTakenOver) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Without the message the holder would be told by its renewal, in twenty minutes; without
// the hand-over the waiter would have the lock in an hour.
func TestForceUnlockTakesTheLockAndTellsItsHolder(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		holder := s.open(t, lock.Options{Lease: time.Hour})
		waiter, operator := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		redistest.Eventually(t, 30*time.Second, "the holder hears", holder.Hears)
		type take = func(l *lock.Locker) (*lock.Lease, error)
		mutex := func(l *lock.Locker) (*lock.Lease, error) { return l.Lock(ctx, "a") }
		writer := func(l *lock.Locker) (*lock.Lease, error) { return l.RW("a").Lock(ctx) }
		reader := func(l *lock.Locker) (*lock.Lease, error) { return l.RW("a").RLock(ctx) }
		of3 := func(l *lock.Locker) (*lock.Lease, error) { return l.Semaphore("a", 3).Acquire(ctx) }
		stripe := func(l *lock.Locker) (*lock.Lease, error) { return l.Striped("a", 1).LockKey(ctx, "a") }
		for _, test := range []struct {
			name  string
			kind  keys.LockKind
			held  []take
			next  take
			force func() (bool, error)
		}{
			{"mutex", keys.Mutex, []take{mutex}, mutex, func() (bool, error) { return operator.ForceUnlock(ctx, "a") }},
			{"writer", keys.ReadWrite, []take{writer}, reader, func() (bool, error) { return operator.RW("a").ForceUnlock(ctx) }},
			{"readers", keys.ReadWrite, []take{reader, reader}, writer, func() (bool, error) { return operator.RW("a").ForceUnlock(ctx) }},
			{"permits", keys.Semaphore, []take{of3, of3, of3}, of3, func() (bool, error) { return operator.Semaphore("a", 3).ForceUnlock(ctx) }},
			{"stripe", keys.Stripe, []take{stripe}, stripe, func() (bool, error) { return operator.Striped("a", 1).ForceUnlock(ctx, 0) }},
		} {
			var held []*lock.Lease
			for _, take := range test.held {
				held = append(held, must(t)(take(holder)))
			}
			got := make(chan *lock.Lease, 1)
			go func() {
				lease, err := test.next(waiter)
				if err != nil {
					t.Error(err)
				}
				got <- lease
			}()
			name := "a"
			if test.kind == keys.Stripe {
				name = "a:0"
			}
			waiting(t, operator, test.kind, name, 1)
			if forced, err := test.force(); !forced || err != nil {
				t.Fatalf("%s: %v, %v", test.name, forced, err)
			}
			if n, err := operator.Waiting(ctx, test.kind, name); n != 0 || err != nil {
				t.Errorf("%s: it was not passed on", test.name) // the waiter would leave the queue when it asks again
			}
			told(t, test.name, held...)
			next := <-got
			if next == nil {
				return
			}
			for _, lease := range held {
				if next.Fence() <= lease.Fence()+15 { // it may have used these
					t.Errorf("%s: fence %d after %d", test.name, next.Fence(), lease.Fence())
				}
				if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
					t.Errorf("%s: Unlock: %v", test.name, err)
				}
				if _, err := lease.SendRelease(ctx); err != nil { // as a holder that was never told
					t.Error(err)
				}
			}
			if err := next.Check(ctx); err != nil {
				t.Errorf("%s: the next holder: %v", test.name, err)
			}
			unlock(t, next)
		}
		if n := holder.Stats(); n.Renewals != 0 || n.Losses != 8 || n.Held != 0 {
			t.Errorf("%+v", n)
		}
		s.everyKeyEnds(t)
	})
}

func TestForceUnlockOfAFreeLockChangesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l := open(t, s.Client(t), lock.Options{NoRenewal: true})
	force := map[string]func() (bool, error){
		"mutex":     func() (bool, error) { return l.ForceUnlock(ctx, "a") },
		"rw":        func() (bool, error) { return l.RW("a").ForceUnlock(ctx) },
		"semaphore": func() (bool, error) { return l.Semaphore("a", 3).ForceUnlock(ctx) },
		"stripe":    func() (bool, error) { return l.Striped("a", 4).ForceUnlock(ctx, 3) },
	}
	free := func(what string) {
		t.Helper()
		before := dump(t, rdb)
		for name, force := range force {
			if forced, err := force(); forced || err != nil {
				t.Errorf("%s, %s: %v, %v", what, name, forced, err)
			}
		}
		if after := dump(t, rdb); after != before {
			t.Errorf("%s: %s became %s", what, before, after)
		}
	}
	free("unknown")
	for _, take := range []func() (*lock.Lease, error){
		func() (*lock.Lease, error) { return l.Lock(ctx, "a") },
		func() (*lock.Lease, error) { return l.RW("a").RLock(ctx) },
		func() (*lock.Lease, error) { return l.Semaphore("a", 3).Acquire(ctx) },
	} {
		unlock(t, must(t)(take()))
	}
	free("given back")
	rdb.HSet(ctx, keys.Lock("", keys.Mutex, "a")[0], "o", "g:m:process:1", "x", int64(1e15), "l", 2000)
	rdb.ZAdd(ctx, keys.Lock("", keys.Semaphore, "a")[3], redis.Z{Member: "g:p:process:1", Score: 1e15}, redis.Z{Member: "dead:1", Score: 1})
	free("granted, not taken up")

	rdb.FlushAll(ctx)
	must(t)(l.RW("a").Lock(ctx)) // another lock than the mutex, the once and the semaphore of that name
	if _, err := l.Once(ctx, "a", time.Minute, func(context.Context) error {
		delete(force, "rw")
		free("others of that name")
		return nil
	}); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"no name":   second(l.ForceUnlock(ctx, "")),
		"no stripe": second(l.Striped("a", 4).ForceUnlock(ctx, 4)),
		"no permit": second(l.Semaphore("a", 0).ForceUnlock(ctx)),
	} {
		if !errors.Is(err, lock.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ bool, err error) error { return err }

// A holder that the message does not reach, and one that renews nothing, learn of it when
// they ask Redis, and harm nobody in between: their releases do not touch the next holder.
func TestAForcedHolderThatHearsNoMessageLearnsOfItWhenItAsks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx := t.Context()
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t), lock.Options{Lease: time.Hour})
	operator := open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is checked again", l.Hears)
	p.DropMessages(true)
	for name, ask := range map[string]func(held *lock.Lease) error{
		"a renewal": func(held *lock.Lease) error {
			l.RenewAll()
			told(t, "a renewal", held)
			return held.Err()
		},
		"Check":  func(held *lock.Lease) error { return held.Check(ctx) },
		"Unlock": func(held *lock.Lease) error { return held.Unlock(ctx) },
	} {
		held := must(t)(l.Lock(ctx, name))
		if forced, err := operator.ForceUnlock(ctx, name); !forced || err != nil {
			t.Fatal(forced, err)
		}
		next := must(t)(operator.TryLock(ctx, name))
		if err := held.Err(); err != nil {
			t.Fatalf("%s: the holder knows before it asks: %v", name, err)
		}
		if err := ask(held); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrTakenOver) {
			t.Errorf("%s: %v", name, err)
		}
		if err := next.Check(ctx); err != nil {
			t.Errorf("%s: the next holder: %v", name, err)
		}
		unlock(t, next)
	}
}

// A free lock's last release is the old holder's, as ForceUnlock leaves it. Its own Unlock
// took that for a copy of itself, which had given the lock back, and said nothing.
func TestTheUnlockOfAForcedHolderSaysThatTheLockWasLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx := t.Context()
	p := redistest.Proxy(t, s.Addr())
	l, operator := open(t, p.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is checked again", l.Hears)
	p.DropMessages(true)
	for name, call := range map[string]struct {
		take  func() (*lock.Lease, error)
		force func() (bool, error)
	}{
		"mutex":  {func() (*lock.Lease, error) { return l.Lock(ctx, "a") }, func() (bool, error) { return operator.ForceUnlock(ctx, "a") }},
		"reader": {func() (*lock.Lease, error) { return l.RW("a").RLock(ctx) }, func() (bool, error) { return operator.RW("a").ForceUnlock(ctx) }},
		"permit": {func() (*lock.Lease, error) { return l.Semaphore("a", 1).Acquire(ctx) }, func() (bool, error) { return operator.Semaphore("a", 1).ForceUnlock(ctx) }},
	} {
		held := must(t)(call.take())
		if forced, err := call.force(); !forced || err != nil {
			t.Fatal(name, forced, err)
		}
		if err := held.Unlock(ctx); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrTakenOver) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The name of a writer whose lease has ended stays in the record when readers come after it.
// ForceUnlock looked at that name alone, said that nobody had the lock, and left the readers.
func TestForceUnlockTakesTheLockFromReadersAfterADeadWriter(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		dead := s.open(t, lock.Options{Lease: lock.MinLease, NoRenewal: true})
		l, operator := s.open(t, lock.Options{Lease: time.Hour}), s.open(t, lock.Options{})
		inTime(t, func() (*lock.Lease, error) { return dead.RW("a").Lock(ctx) })
		reader := must(t)(l.RW("a").RLock(ctx))
		if forced, err := operator.RW("a").ForceUnlock(ctx); !forced || err != nil {
			t.Fatal(forced, err)
		}
		if err := reader.Check(ctx); !errors.Is(err, lock.ErrTakenOver) {
			t.Errorf("the reader: %v", err)
		}
		unlock(t, must(t)(operator.RW("a").TryLock(ctx)))
	})
}

// The token of a lease that nobody attaches keeps its lock for up to a day.
func TestForceUnlockTakesTheLockOfAToken(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, operator := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		token, err := must(t)(l.Lock(ctx, "a")).Detach(ctx, 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if forced, err := operator.ForceUnlock(ctx, "a"); !forced || err != nil {
			t.Fatal(forced, err)
		}
		next := must(t)(operator.TryLock(ctx, "a"))
		if _, err := l.Attach(ctx, token); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Attach: %v", err)
		}
		if err := l.Release(ctx, token); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Release: %v", err)
		}
		if err := next.Check(ctx); err != nil {
			t.Error(err)
		}
		unlock(t, next)
	})
}

// LockAll promises that its lease ends when any of its locks is lost.
func TestForceUnlockOfOneEndsALeaseOfAll(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, operator := s.open(t, lock.Options{Lease: time.Hour}), s.open(t, lock.Options{})
		redistest.Eventually(t, 30*time.Second, "the holder hears", l.Hears)
		held := must(t)(l.LockAll(ctx, "a", "b", "c"))
		if forced, err := operator.ForceUnlock(ctx, "b"); !forced || err != nil {
			t.Fatal(forced, err)
		}
		told(t, "LockAll", held)
		next := must(t)(operator.TryLock(ctx, "b"))
		if next.Fence() <= held.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), held.Fence())
		}
		for _, name := range []string{"a", "c"} {
			if _, err := operator.TryLock(ctx, name); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s before the Unlock: %v", name, err)
			}
		}
		if err := held.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		unlock(t, must(t)(operator.TryLock(ctx, "a")), must(t)(operator.TryLock(ctx, "c")), next)
	})
}

// recorded is a client that notes each run of a script, to be sent again.
func recorded(t *testing.T, s *redistest.Server, hash string) (rdb *redis.Client, again func() (replies []any)) {
	rdb = s.Client(t)
	var mu sync.Mutex
	var sent [][]any
	rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
		if args := cmd.Args(); cmd.Name() == "evalsha" && args[1] == hash {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, slices.Clone(args))
		}
	}))
	plain := s.Client(t)
	return rdb, func() (replies []any) {
		mu.Lock()
		defer mu.Unlock()
		for _, args := range sent {
			reply, err := plain.Do(t.Context(), args...).Slice()
			if err != nil {
				t.Fatal(err)
			}
			replies = append(replies, reply[0])
		}
		return replies
	}
}

// Copies of what ForceUnlock has sent come again, when nobody has the lock yet and when the
// next holder has it: a client repeats a command whose reply it did not get, and a network
// may hold one up.
func TestACopyOfForceUnlockSparesTheNextHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx := t.Context()
	l := open(t, s.Client(t), lock.Options{Lease: time.Hour})
	for name, call := range map[string]struct {
		take  func() (*lock.Lease, error)
		force func(operator *lock.Locker) (bool, error)
	}{
		"mutex":  {func() (*lock.Lease, error) { return l.Lock(ctx, "a") }, func(o *lock.Locker) (bool, error) { return o.ForceUnlock(ctx, "a") }},
		"reader": {func() (*lock.Lease, error) { return l.RW("a").RLock(ctx) }, func(o *lock.Locker) (bool, error) { return o.RW("a").ForceUnlock(ctx) }},
		"permit": {func() (*lock.Lease, error) { return l.Semaphore("a", 1).Acquire(ctx) }, func(o *lock.Locker) (bool, error) { return o.Semaphore("a", 1).ForceUnlock(ctx) }},
	} {
		client, again := recorded(t, s, lock.ForceScript.Hash())
		operator := open(t, client, lock.Options{})
		for range 2 {
			must(t)(call.take())
			if forced, err := call.force(operator); !forced || err != nil {
				t.Fatal(name, forced, err)
			}
			if said := again(); said[len(said)-1] != "forced" {
				t.Errorf("%s: asked again: %v", name, said)
			}
		}
		next := must(t)(call.take())
		again()
		if err := next.Check(ctx); err != nil {
			t.Errorf("%s: the next holder: %v", name, err)
		}
		unlock(t, next)
	}
}

// A copy of the bid by which the old holder got the lock would give it back to a holder who
// has been told that it is lost.
func TestALateCopyOfAForcedHoldersBidIsInVain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx := t.Context()
	client, again := recorded(t, s, lock.AcquireScript.Hash())
	l, operator := open(t, client, lock.Options{}), open(t, s.Client(t), lock.Options{})
	must(t)(l.Lock(ctx, "a"))
	if forced, err := operator.ForceUnlock(ctx, "a"); !forced || err != nil {
		t.Fatal(forced, err)
	}
	for _, said := range again() {
		if said != "gone" {
			t.Errorf("it says %v", said)
		}
	}
	if info, err := operator.Inspect(ctx, "a"); err != nil || info.Held {
		t.Errorf("%+v, %v", info, err)
	}
}

// The lock goes from one holder to the next all the time, and whoever has it when it is
// taken away is told. Each has a larger fence than the one before.
func TestForceUnlockAmongManyHolders(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		var stop atomic.Bool
		var last, lost atomic.Int64
		ended := make(chan error, 9)
		var processes []*lock.Locker
		for range 3 {
			processes = append(processes, s.open(t, lock.Options{Lease: time.Hour}))
		}
		for i := range cap(ended) { // three of each process, who pass the lock on among themselves too
			l := processes[i%3]
			go func() {
				for !stop.Load() {
					err := l.Do(ctx, "a", func(_ context.Context, lease *lock.Lease) error {
						before := last.Load()
						for before < lease.Fence() && !last.CompareAndSwap(before, lease.Fence()) {
							before = last.Load()
						}
						if before >= lease.Fence() && lease.Check(ctx) == nil {
							return fmt.Errorf("fence %d after %d", lease.Fence(), before)
						}
						return nil
					})
					switch {
					case err == nil:
					case errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrUnavailable): // the latter: it asked again for what it had got and lost
						lost.Add(1)
					default:
						ended <- err
						return
					}
				}
				ended <- nil
			}()
		}
		operator := s.open(t, lock.Options{})
		var forced int64
		for n := 0; n < 200 || forced < 20 && len(ended) == 0; n++ { // within the process 200 may be over before a holder has begun
			took, err := operator.ForceUnlock(ctx, "a")
			if err != nil {
				t.Error(err)
			}
			if took {
				forced++
			}
		}
		stop.Store(true)
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		t.Logf("%d taken away, %d lost", forced, lost.Load())
		if forced == 0 || lost.Load() < forced {
			t.Errorf("%d taken away, %d lost", forced, lost.Load())
		}
		s.everyKeyEnds(t)
	})
}

// An evicted record has no fence, and the readers who share the lock go on. Catches a force
// that takes the question for the fence, 0, for its own answer: it said that it had forced
// the lock, and did nothing, for as long as the record lived.
func TestForceUnlockOfALockWhoseRecordWasEvicted(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l, op := open(t, s.Client(t), lock.Options{Lease: time.Hour}), open(t, s.Client(t), lock.Options{})
	for round := range 2 {
		reader := must(t)(l.RW("a").RLock(ctx))
		if round == 0 {
			rdb.Del(ctx, keys.Lock("", keys.ReadWrite, "a")[0])
		}
		if forced, err := op.RW("a").ForceUnlock(ctx); !forced || err != nil {
			t.Errorf("round %d: %v, %v", round, forced, err)
		}
		if info, err := op.RW("a").Inspect(ctx); info.Held || err != nil {
			t.Errorf("round %d: %+v, %v", round, info, err)
		}
		_ = reader.Unlock(ctx)
	}
}
