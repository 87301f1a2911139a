package lock_test

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A pair of a free lock is as cheap as it can be: what comes back here, such as a
// deadline that is set twice, costs every user of every lock.
func TestAFreeLockTakesTheShortWays(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{})
	l.AskOnce()
	pair := func() { unlock(t, must(t)(l.Lock(t.Context(), "a"))) }
	pair()
	commands := map[string]int64{"evalsha": 2, "time": 2, "hmget": 2, "hset": 2, "pexpire": 1, "exists": 0, "zcard": 0, "zadd": 0, "zrem": 0}
	before := map[string]int64{}
	for name := range commands {
		before[name] = s.Calls(name)
	}
	const pairs = 20
	for range pairs {
		pair()
	}
	for name, want := range commands {
		if got := s.Calls(name) - before[name]; got != pairs*want {
			t.Errorf("%d %s for %d pairs, want %d", got, name, pairs, pairs*want)
		}
	}
}

// Some 32 of these are go-redis' for two scripts.
func TestAFreeLockAllocatesLittle(t *testing.T) {
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{})
	pair := func() { unlock(t, must(t)(l.Lock(t.Context(), "a"))) }
	pair()
	least := testing.AllocsPerRun(100, pair)
	for range 4 { // a garbage collection empties go-redis' pools, and the next calls allocate more
		least = min(least, testing.AllocsPerRun(100, pair))
	}
	if least > 52 {
		t.Errorf("%.0f allocations for Lock and Unlock", least)
	}
}

// What a lock has left when it was given back does not depend on the way: its fence
// is remembered for ten minutes at least, and a lease of a day does not make it days.
func TestALockThatWasGivenBackIsRememberedForMinutes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, lease := range []time.Duration{10 * time.Second, 5 * time.Minute, time.Hour, 24 * time.Hour} {
		l := open(t, s.Client(t), lock.Options{Lease: lease})
		unlock(t, must(t)(l.Lock(t.Context(), "a")))
		ttl := rdb.PTTL(t.Context(), keys.Lock("", keys.Mutex, "a")[0]).Val()
		if ttl < 9*time.Minute || ttl > 20*time.Minute {
			t.Errorf("after a lease of %v: %v", lease, ttl)
		}
	}
}
