package lock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/lock"
)

// deposit adds to an account under its lock. The lock keeps the others waiting, so
// that there is no retry; the fence keeps a holder out who was paused, has lost the
// lock and does not know it.
//
//	CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)
func deposit(ctx context.Context, db *sql.DB, locker *lock.Locker, id, amount int64) error {
	return locker.Do(ctx, fmt.Sprint("account:", id), func(ctx context.Context, lease *lock.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		var balance int64
		err = tx.QueryRowContext(ctx, `UPDATE account SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING balance`,
			lease.Fence(), id).Scan(&balance)
		if errors.Is(err, sql.ErrNoRows) {
			return lock.ErrLost // somebody with a later lease has been here
		}
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = $2`, balance+amount, id); err != nil {
			return err
		}
		return tx.Commit() // inside the lock: the next holder must see it
	})
}

// Without Redis the locks are in this process, and Lockers of one Prefix share them: the two
// components of a service exclude each other in a test, as they do over Redis.
func ExampleNew_withoutRedis() {
	ctx := context.Background()
	checkout, err := lock.New(nil, lock.Options{Prefix: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer checkout.Close()
	imports, err := lock.New(nil, lock.Options{Prefix: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer imports.Close()

	err = checkout.Do(ctx, "stock:7", func(context.Context, *lock.Lease) error {
		_, err := imports.TryLock(ctx, "stock:7")
		fmt.Println(errors.Is(err, lock.ErrNotAcquired))
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// What the lock protects refuses an older fence than it has seen.
func ExampleLease_Fence() {
	_ = deposit // the whole of it, against a database

	locker, done := locker()
	defer done()
	ctx := context.Background()
	var seen int64
	write := func(lease *lock.Lease) bool { // UPDATE … SET fence = $1 WHERE … AND fence <= $1
		if lease.Fence() < seen {
			return false
		}
		seen = lease.Fence()
		return true
	}
	short := locker.With(lock.Options{Lease: time.Second, NoRenewal: true})
	paused, err := short.Lock(ctx, "account:7") // and it sleeps for too long
	if err != nil {
		fmt.Println(err)
		return
	}
	next, err := locker.Lock(ctx, "account:7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the next holder writes:", write(next))
	fmt.Println("the paused one wakes and writes:", write(paused))
	fmt.Println("it has lost the lock:", errors.Is(paused.Unlock(ctx), lock.ErrLost))
	_ = next.Unlock(ctx)
	// Output:
	// the next holder writes: true
	// the paused one wakes and writes: false
	// it has lost the lock: true
}

func ExampleLocker_Do() {
	locker, done := locker()
	defer done()
	err := locker.Do(context.Background(), "coupon:66", func(ctx context.Context, _ *lock.Lease) error {
		fmt.Println("one at a time")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// one at a time
	// <nil>
}

// Fail fast instead of waiting.
func ExampleLocker_TryLock() {
	locker, done := locker()
	defer done()
	ctx := context.Background()
	lease, err := locker.TryLock(ctx, "draw:user 7")
	if err != nil {
		return
	}
	_, err = locker.TryLock(ctx, "draw:user 7")
	fmt.Println("too frequent:", errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// too frequent: true
	// <nil>
}

// One request takes a lock and another one, perhaps in another process, gives it back.
func ExampleLease_Detach() {
	locker, done := locker()
	defer done()
	ctx := context.Background()
	lease, err := locker.Lock(ctx, "order:7")
	if err != nil {
		return
	}
	token, err := lease.Detach(ctx, time.Minute)
	if err != nil {
		return
	}
	header := http.Header{}
	header.Set("Lock-Token", string(token))
	// … later, elsewhere:
	fmt.Println(locker.Release(ctx, lock.Token(header.Get("Lock-Token"))))
	// Output: <nil>
}

// Buyers take any part of the stock that is free, and leave out those that are empty.
func ExampleStriped_LockAny() {
	locker, done := locker()
	defer done()
	ctx := context.Background()
	stock := []int{0, 1, 0}
	var empty []int
	for len(empty) < len(stock) {
		lease, part, err := locker.Striped("stock:10086", len(stock)).LockAny(ctx, empty...)
		if err != nil {
			fmt.Println(err)
			return
		}
		found := stock[part] > 0
		if found {
			stock[part]--
			fmt.Println("bought from part", part)
		}
		_ = lease.Unlock(ctx)
		if found {
			break
		}
		empty = append(empty, part)
	}
	// Output: bought from part 1
}

// locker stands for a Locker on your Redis.
func locker() (*lock.Locker, func()) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	_ = m.Start()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	l, err := lock.New(rdb, lock.Options{})
	if err != nil {
		panic(err)
	}
	return l, func() { _ = l.Close(); _ = rdb.Close(); m.Close() }
}
