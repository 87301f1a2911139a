package lock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/lock"
)

// Lock waits as long as its context lives. The lease has a context of its own, which ends when the lock is lost.
func ExampleLocker_Lock() {
	locker, done := locker()
	defer done()
	report := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // how long to wait, not how long to hold
		defer cancel()
		lease, err := locker.Lock(ctx, "report:2026-11")
		if err != nil {
			return err // errors.Is(err, lock.ErrNotAcquired): another caller holds it or is ahead in the queue
		}
		if err := write(lease.Context()); err != nil { // ends when the lock is lost
			return errors.Join(err, lease.Unlock(ctx))
		}
		return lease.Unlock(ctx) // lock.ErrLost: another may have worked at the same time
	}
	fmt.Println(report())
	// Output: <nil>
}

func write(ctx context.Context) error { return ctx.Err() }

// Readers hold the lock together, a writer holds it alone.
func ExampleLocker_RW() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	catalogue := locker.RW("catalogue")
	one, err := catalogue.RLock(ctx)
	if err != nil {
		return
	}
	two, err := catalogue.RLock(ctx) // beside the first
	if err != nil {
		return
	}
	_, err = catalogue.TryLock(ctx) // for writing: not while somebody reads
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(one.Unlock(ctx), two.Unlock(ctx))
	writer, err := catalogue.Lock(ctx)
	fmt.Println(err)
	_ = writer.Unlock(ctx)
	// Output:
	// true
	// <nil> <nil>
	// <nil>
}

// At most three exports run at a time, over all processes.
func ExampleLocker_Semaphore() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	exports := locker.Semaphore("exports", 3)
	for range 3 {
		permit, err := exports.Acquire(ctx) // waits for its turn
		if err != nil {
			return
		}
		defer permit.Unlock(ctx)
	}
	_, err := exports.TryAcquire(ctx)
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	// Output: true
}

// Ten million users need no ten million locks: users of one stripe wait for each other.
func ExampleStriped_LockKey() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	users := locker.Striped("user", 1024) // the same number everywhere
	lease, err := users.LockKey(ctx, "alice@example.com")
	fmt.Println(err)
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// <nil>
	// <nil>
}

// Every process calls Once each minute, and one of them sends the mails.
func ExampleLocker_Once() {
	locker, done := locker()
	defer done()
	ctx := context.Background()
	var sent atomic.Int32
	send := func(context.Context) error { sent.Add(1); return nil }

	for range 3 { // three processes
		ran, err := locker.Once(ctx, "newsletter:2026-11-22", 48*time.Hour, send)
		fmt.Println(ran, err)
	}
	fmt.Println(sent.Load())
	// Output:
	// true <nil>
	// false <nil>
	// false <nil>
	// 1
}

// LockAll takes all locks or none, in an order that is the same for all callers, so two transfers between the same
// accounts do not wait for each other for ever.
func ExampleLocker_LockAll() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	lease, err := locker.LockAll(ctx, "account:7", "account:3")
	if err != nil {
		return
	}
	_, err = locker.TryLock(ctx, "account:3")
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(lease.Unlock(ctx)) // both
	// Output:
	// true
	// <nil>
}

// A job goes from the process that accepted it to the one that does it, under one lock and one fence.
func ExampleLocker_Attach() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	accepted, err := locker.Lock(ctx, "video:7")
	if err != nil {
		return
	}
	fence := accepted.Fence()
	token, err := accepted.Detach(ctx, time.Minute) // not renewed any more: a minute to be picked up
	if err != nil {
		return
	}
	// The token is text: it travels in the job. The worker:
	lease, err := locker.Attach(ctx, token) // renewed again
	if err != nil {
		return
	}
	fmt.Println(lease.Fence() == fence)
	_, err = locker.Attach(ctx, token)
	fmt.Println("a second time:", errors.Is(err, lock.ErrNotHeld))
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// true
	// a second time: true
	// <nil>
}

// Code further down that locks for itself gets a handle of the same lease.
func ExampleLease_Reenter() {
	locker, done := locker()
	defer done()
	ctx := context.Background()
	outer, err := locker.Lock(ctx, "order:7")
	if err != nil {
		return
	}
	inner, err := outer.Reenter()
	if err != nil {
		return
	}
	fmt.Println(inner.Unlock(ctx)) // the outer one still holds it
	_, err = locker.TryLock(ctx, "order:7")
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(outer.Unlock(ctx))
	// Output:
	// <nil>
	// true
	// <nil>
}

// A holder that lives but is stuck loses the lock after MaxHold.
func ExampleLocker_With() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	imports := locker.With(lock.Options{Lease: 30 * time.Second, MaxHold: 10 * time.Minute, Label: "host-3, pid 4711"})
	lease, err := imports.Lock(ctx, "import")
	if err != nil {
		return
	}
	info, err := locker.Inspect(ctx, "import")
	fmt.Println(info.Held, info.Label, info.Fence == lease.Fence(), err)
	_ = lease.Unlock(ctx)
	// Output: true host-3, pid 4711 true <nil>
}

// An operator takes a lock away from a holder that is stuck. The holder's lease ends, and
// the next one has a larger fence.
func ExampleLocker_ForceUnlock() {
	locker, done := locker()
	defer done()
	ctx := context.Background()

	stuck, err := locker.Lock(ctx, "import")
	if err != nil {
		return
	}
	forced, err := locker.ForceUnlock(ctx, "import") // true: somebody held it
	fmt.Println(forced, err)
	next, err := locker.Lock(ctx, "import")
	if err != nil {
		return
	}
	fmt.Println(errors.Is(stuck.Unlock(ctx), lock.ErrLost), next.Fence() > stuck.Fence(), next.Unlock(ctx))
	// Output:
	// true <nil>
	// true true <nil>
}
