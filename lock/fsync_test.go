package lock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A server that cannot tell what is on its disk, be it too old or without an append-only
// file, is the user's mistake and no outage, and nobody holds the lock afterwards.
func TestFsyncOnAServerWithoutAFileIsAnError(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, other := open(t, s.Client(t), lock.Options{Fsync: true}), open(t, s.Client(t), lock.Options{})
	for name, call := range map[string]func() error{
		"Lock":    func() error { _, err := l.Lock(t.Context(), "a"); return err },
		"TryLock": func() error { _, err := l.TryLock(t.Context(), "a"); return err },
		"LockAll": func() error { _, err := l.LockAll(t.Context(), "a", "b"); return err },
		"Check":   func() error { return l.Check(t.Context()) },
	} {
		if err := call(); !errors.Is(err, lock.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
		redistest.Eventually(t, 30*time.Second, "nobody holds it", func() bool {
			lease, err := other.TryLock(t.Context(), "a")
			if err == nil {
				unlock(t, lease)
			}
			return err == nil
		})
	}
}

// A lock counts once it is on the disk, and not when it may be there some time. Catches an
// option that asks the replicas alone.
func TestFsyncWaitsForTheDisk(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	rdb := s.Client(t)
	if err := rdb.Do(t.Context(), "WAITAOF", 0, 0, 1).Err(); err != nil && strings.Contains(err.Error(), "unknown command") {
		t.Skip("this server has no WAITAOF")
	}
	l := open(t, s.Client(t), lock.Options{Fsync: true})
	if err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
	lease := must(t)(l.Lock(t.Context(), "a"))
	redistest.Eventually(t, 30*time.Second, "the renewal is on the disk too", func() bool {
		l.RenewAll()
		return l.Stats().Renewals > 0
	})
	unlock(t, lease)
	rdb.ConfigSet(t.Context(), "appendfsync", "no")
	if _, err := l.Lock(t.Context(), "a"); !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("a disk that nobody waits for: %v", err)
	}
	unlock(t, must(t)(l.With(lock.Options{}).Lock(t.Context(), "a")))
}
