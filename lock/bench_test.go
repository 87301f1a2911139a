package lock_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func BenchmarkUncontendedPair(b *testing.B) {
	s := redistest.Start(b)
	l := open(b, s.Client(b), lock.Options{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		lease, err := l.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// Without Redis.
func BenchmarkUncontendedPairWithinTheProcess(b *testing.B) {
	l := open(b, nil, lock.Options{Prefix: b.Name()})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		lease, err := l.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// Locks that are free, together: one script, and one for each to give them back.
func BenchmarkUncontendedLockAll(b *testing.B) {
	s := redistest.Start(b)
	l := open(b, s.Client(b), lock.Options{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		lease, err := l.LockAll(ctx, "a", "b", "c", "d", "e")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// The least that two scripts can cost: what the lock adds to it is its own.
func BenchmarkTwoBareScripts(b *testing.B) {
	s := redistest.Start(b)
	rdb := s.Client(b)
	ctx := context.Background()
	take := redis.NewScript(`if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0`)
	give := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	b.ReportAllocs()
	for b.Loop() {
		if err := take.Run(ctx, rdb, []string{"a"}, "me", 10000).Err(); err != nil {
			b.Fatal(err)
		}
		if err := give.Run(ctx, rdb, []string{"a"}, "me").Err(); err != nil {
			b.Fatal(err)
		}
	}
}

// What go-redis alone takes for two scripts with as many keys and arguments as ours.
func BenchmarkTwoScriptsOfThisShape(b *testing.B) {
	s := redistest.Start(b)
	rdb := s.Client(b)
	ctx := context.Background()
	take, give := redis.NewScript(`return {'granted', 1795271044637463, 1795271054637, 0}`), redis.NewScript(`return 'ok'`)
	names := []string{"{a}", "{a}:q", "{a}:w", "{a}:s"}
	owner, entry := "4UEBU6WFLUJ3IFEM4KSB27YEGE:1", "m:4UEBU6WFLUJ3IFEM4KSB27YEGE:1"
	b.ReportAllocs()
	for b.Loop() {
		if err := take.Run(ctx, rdb, names, "m", 1, "levee:l1:c:", owner, entry, 0, "0", 10000, "", owner).Err(); err != nil {
			b.Fatal(err)
		}
		if err := give.Run(ctx, rdb, names, "m", 1, "levee:l1:c:", owner, int64(1795271044637463), int64(1795271054637), "0", 0).Err(); err != nil {
			b.Fatal(err)
		}
	}
}
