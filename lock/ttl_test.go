package lock_test

import (
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A lock of each kind is handed on by a token, and each key has a TTL after each call.
//
// Defect: a set that loses its last member loses its TTL, and the heir's has none.
func TestEachKeyEndsThoughALockIsHandedOn(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	l := open(t, s.Client(t), lock.Options{})
	for name, take := range map[string]func() (*lock.Lease, error){
		"mutex":     func() (*lock.Lease, error) { return l.Lock(t.Context(), "order:1") },
		"writer":    func() (*lock.Lease, error) { return l.RW("order:2").Lock(t.Context()) },
		"reader":    func() (*lock.Lease, error) { return l.RW("order:3").RLock(t.Context()) },
		"semaphore": func() (*lock.Lease, error) { return l.Semaphore("order:4", 2).Acquire(t.Context()) },
		"striped":   func() (*lock.Lease, error) { return l.Striped("order:5", 3).LockKey(t.Context(), "a") },
		"several":   func() (*lock.Lease, error) { return l.LockAll(t.Context(), "order:6", "order:7") },
	} {
		t.Run(name, func(t *testing.T) {
			ends := func(when string) {
				t.Helper()
				for _, key := range rdb.Keys(t.Context(), "*").Val() {
					if ttl := rdb.PTTL(t.Context(), key).Val(); ttl == -1 {
						t.Errorf("%s %q has no TTL", when, key)
					}
				}
			}
			lease, err := take()
			if err != nil {
				t.Fatal(err)
			}
			ends("once it is held")
			token, err := lease.Detach(t.Context(), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			ends("after Detach")
			lease, err = l.Attach(t.Context(), token)
			if err != nil {
				t.Fatal(err)
			}
			ends("after Attach")
			if err := lease.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			ends("after Unlock")
		})
	}
}
