package bench

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/levee-go/levee/lock"
)

// ttl is the lease of every contender's locks. Nothing here holds one for long.
const ttl = 10 * time.Second

// A contender is one of the locks compared.
type contender struct {
	name string
	// open connects one process. Contenders that wait by trying again do so every retry.
	open func(addr string, retry time.Duration) (locker, error)
	// sends are the commands a client of it sends, which INFO commandstats counts together with those inside of scripts.
	sends []string
}

// A locker takes locks for one process.
type locker interface {
	Lock(ctx context.Context, name string) (unlock func() error, err error)
	Close()
}

var contenders = []contender{
	{"levee", openLevee, []string{"evalsha", "eval"}},
	{"redislock", openRedislock, []string{"evalsha", "eval"}},
	{"redsync", openRedsync, []string{"set", "evalsha", "eval"}},
	{"rueidislock", openRueidislock, []string{"evalsha", "eval"}},
}

func find(name string) contender {
	for _, c := range contenders {
		if c.name == name {
			return c
		}
	}
	panic("no contender " + name)
}

func client(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
}

type levee struct {
	*lock.Locker
	rdb *redis.Client
}

func openLevee(addr string, _ time.Duration) (locker, error) {
	rdb := client(addr)
	l, err := lock.New(rdb, lock.Options{Lease: ttl})
	return &levee{l, rdb}, err
}

func (l *levee) Lock(ctx context.Context, name string) (func() error, error) {
	lease, err := l.Locker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return func() error { return lease.Unlock(ctx) }, nil
}

func (l *levee) Close() {
	_ = l.Locker.Close()
	_ = l.rdb.Close()
}

type bsm struct {
	*redislock.Client
	rdb   *redis.Client
	retry time.Duration
}

func openRedislock(addr string, retry time.Duration) (locker, error) {
	rdb := client(addr)
	return &bsm{redislock.New(rdb), rdb, retry}, nil
}

func (l *bsm) Lock(ctx context.Context, name string) (func() error, error) {
	held, err := l.Obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(l.retry)})
	if err != nil {
		return nil, err
	}
	return func() error { return held.Release(ctx) }, nil
}

func (l *bsm) Close() { _ = l.rdb.Close() }

type sync4 struct {
	*redsync.Redsync
	rdb   *redis.Client
	retry time.Duration
}

func openRedsync(addr string, retry time.Duration) (locker, error) {
	rdb := client(addr)
	return &sync4{redsync.New(goredis.NewPool(rdb)), rdb, retry}, nil
}

func (l *sync4) Lock(ctx context.Context, name string) (func() error, error) {
	m := l.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30), redsync.WithRetryDelay(l.retry))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error { _, err := m.UnlockContext(ctx); return err }, nil
}

func (l *sync4) Close() { _ = l.rdb.Close() }

type rueidian struct{ rueidislock.Locker }

// openRueidislock leaves NoLoopTracking off, as is its default: with it, a delay at the wrong moment makes it wait for ever for a free lock.
func openRueidislock(addr string, _ time.Duration) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
		KeyMajority:  1, KeyValidity: ttl, // there is one server
	})
	return &rueidian{l}, err
}

func (l *rueidian) Lock(ctx context.Context, name string) (func() error, error) {
	_, cancel, err := l.WithContext(ctx, name)
	if err != nil {
		return nil, err
	}
	return func() error { cancel(); return nil }, nil
}
