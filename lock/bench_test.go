package lock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

func BenchmarkUncontendedPair(b *testing.B) {
	s := redistest.Start(b)
	l := open(b, s.Client(b), Options{})
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
