package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/levee-go/levee/lock"
)

// A locker takes locks for one process.
type locker interface {
	// Lock waits for a lock until ctx ends. unlock works beyond that.
	Lock(ctx context.Context, name string) (unlock func() error, err error)
	Close()
}

const (
	lockLease = 10 * time.Second       // of all contenders; nobody here holds a lock for long
	lockRetry = 100 * time.Millisecond // of those that wait by trying again: redislock's README has it
)

func openLocker(contender, addr string) (locker, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	switch contender {
	case "levee":
		l, err := lock.New(rdb, lock.Options{})
		return leveeLocker{l, rdb}, err
	case "redislock":
		return bsmLocker{redislock.New(rdb), rdb}, nil
	case "redsync":
		return redsyncLocker{redsync.New(goredis.NewPool(rdb)), rdb}, nil
	case "BLPOP":
		_ = rdb.Close()
		rdb = redis.NewClient(&redis.Options{Addr: addr, PoolSize: 200}) // each who waits has a connection
		return popLocker{rdb}, rdb.Eval(context.Background(), "if redis.call('SET', KEYS[1], 1, 'NX') then redis.call('LPUSH', KEYS[2], 1) end return 1",
			[]string{"there", "lock"}).Err()
	case "rueidislock":
		_ = rdb.Close()
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
			KeyMajority:  1, // there is one server
			KeyValidity:  lockLease,
		})
		return rueidisLocker{l}, err
	}
	return nil, errors.Join(fmt.Errorf("there is no lock %q", contender), rdb.Close())
}

type leveeLocker struct {
	*lock.Locker
	rdb *redis.Client
}

func (l leveeLocker) Lock(ctx context.Context, name string) (func() error, error) {
	lease, err := l.Locker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return func() error { return lease.Unlock(context.WithoutCancel(ctx)) }, nil
}

func (l leveeLocker) Close() {
	_ = l.Locker.Close()
	_ = l.rdb.Close()
}

type bsmLocker struct {
	*redislock.Client
	rdb *redis.Client
}

func (l bsmLocker) Lock(ctx context.Context, name string) (func() error, error) {
	held, err := l.Obtain(ctx, name, lockLease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(lockRetry)})
	if err != nil {
		return nil, err
	}
	return func() error { return held.Release(context.WithoutCancel(ctx)) }, nil
}

func (l bsmLocker) Close() { _ = l.rdb.Close() }

// redsyncLocker waits between two tries as redsync does by default, and tries as often as it takes.
type redsyncLocker struct {
	*redsync.Redsync
	rdb *redis.Client
}

func (l redsyncLocker) Lock(ctx context.Context, name string) (func() error, error) {
	m := l.NewMutex(name, redsync.WithExpiry(lockLease), redsync.WithTries(1<<30))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error { _, err := m.UnlockContext(context.WithoutCancel(ctx)); return err }, nil
}

func (l redsyncLocker) Close() { _ = l.rdb.Close() }

type rueidisLocker struct{ rueidislock.Locker }

func (l rueidisLocker) Lock(ctx context.Context, name string) (func() error, error) {
	_, cancel, err := l.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return func() error { cancel(); return nil }, nil
}

// popLocker is the floor: a token in a list, without an end when its holder dies, and so no lock for use.
type popLocker struct{ rdb *redis.Client }

func (l popLocker) Lock(ctx context.Context, name string) (func() error, error) {
	if err := l.rdb.BLPop(ctx, 0, name).Err(); err != nil {
		return nil, err
	}
	return func() error { return l.rdb.LPush(context.WithoutCancel(ctx), name, 1).Err() }, nil
}

func (l popLocker) Close() { _ = l.rdb.Close() }
