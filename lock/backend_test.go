package lock_test

import (
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A backend is where a test keeps its locks: a Redis, or this process.
type backend struct {
	*redistest.Server // nil: the locks are in memory, or in mini
	mini              *redistest.MiniServer
	memory            *lock.Memory
}

// overBoth runs a test over Redis and within the process: lockers of one test exclude each
// other, and those of two tests do not.
func overBoth(t *testing.T, test func(t *testing.T, s *backend)) {
	t.Run("over Redis", func(t *testing.T) { test(t, &backend{Server: redistest.Start(t)}) })
	t.Run("within the process", func(t *testing.T) { test(t, &backend{memory: lock.NewMemory()}) })
}

// inBubbles is overBoth for tests that let hours pass.
func inBubbles(t *testing.T, test func(t *testing.T, s *backend)) {
	t.Run("over Redis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, &backend{mini: redistest.Mini(t)}) })
	})
	t.Run("within the process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, &backend{memory: lock.NewMemory()}) })
	})
}

// open makes a Locker that is closed with the test.
func (s *backend) open(t testing.TB, o lock.Options) *lock.Locker {
	t.Helper()
	if s.memory == nil {
		return open(t, s.client(t), o)
	}
	l, err := lock.NewIn(s.memory, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (s *backend) client(t testing.TB) *redis.Client {
	if s.mini != nil {
		return s.mini.Client(t)
	}
	return s.Client(t)
}

// scripts is how many scripts Redis has run.
func (s *backend) scripts() int64 {
	if s.Server == nil {
		return 0
	}
	return s.Calls("evalsha")
}

// dump is everything that is kept, but for how long it lives.
func (s *backend) dump(t *testing.T) string {
	t.Helper()
	if s.memory != nil {
		return s.memory.Dump()
	}
	return dump(t, s.client(t))
}

// everyKeyEnds sees that each key in the server has a TTL.
func (s *backend) everyKeyEnds(t *testing.T) {
	t.Helper()
	if s.memory == nil {
		lock.EveryKeyEnds(t, s.Client(t))
	}
}
