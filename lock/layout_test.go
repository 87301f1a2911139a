package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A record whose fields mean something else, of another version of this library or of
// somebody else, is neither read as ours nor written to: Lua is not rolled back, so one
// write before the look at all fields would mix the two.
func TestARecordOfAnotherLayoutIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	l := open(t, s.Client(t), lock.Options{})
	patient, cancel := context.WithTimeout(ctx, time.Minute) // a record that looks held would be waited for
	defer cancel()
	record := keys.Lock("", keys.Mutex, "a")[0]
	shared := keys.Lock("", keys.ReadWrite, "a")[0]
	for name, fields := range map[string][]any{
		"other names":           {"owner", "x:1", "until", int64(1795271054637), "fence", 7},
		"a version":             {"v", "2"},
		"no fence":              {"o", "x:1", "x", int64(1795271054637), "l", 1000},
		"a fence of text":       {"o", "", "f", "7f-e2"},
		"an end of text":        {"o", "x:1", "x", "2026-11-21T16:00:00Z", "l", 1000, "f", 7, "b", 7},
		"a length of text":      {"o", "x:1", "x", int64(1795271054637), "l", "10s", "f", 7, "b", 7},
		"a birth of text":       {"o", "x:1", "x", int64(1795271054637), "l", 1000, "f", 7, "b", "{}"},
		"a done of text":        {"o", "x:1", "x", int64(1795271054637), "l", 1000, "f", 7, "b", 7, "d", "yes"},
		"a fence that is none":  {"o", "", "f", "nan", "b", "7"},
		"a fence without bound": {"o", "", "f", "inf", "b", "7"},
		"an end that is none":   {"o", "x:1", "x", "nan", "l", 1000, "f", 7, "b", 7},
	} {
		rdb.FlushAll(ctx)
		rdb.HSet(ctx, record, fields...)
		rdb.HSet(ctx, shared, fields...)
		before := dump(t, rdb)
		for call, do := range map[string]func() error{
			"Lock":    func() error { _, err := l.Lock(patient, "a"); return err },
			"TryLock": func() error { _, err := l.TryLock(patient, "a"); return err },
			"LockAll": func() error { _, err := l.LockAll(patient, "a", "b"); return err },
			"Do":      func() error { return l.Do(patient, "a", func(context.Context, *lock.Lease) error { return nil }) },
			"RLock":   func() error { _, err := l.RW("a").RLock(ctx); return err },
		} {
			if err := do(); !errors.Is(err, lock.ErrConflict) {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
		_ = rdb.Del(ctx, keys.Lock("", keys.Mutex, "b")...) // of LockAll
		if after := dump(t, rdb); after != before {
			t.Errorf("%s: %s became %s", name, before, after)
		}
	}
}

// The same under a lease that stands: it is lost, with an error, and nothing is written.
func TestALeaseWhoseRecordChangedItsLayoutIsLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	l := open(t, s.Client(t), lock.Options{})
	record := keys.Lock("", keys.Mutex, "a")[0]
	lease := must(t)(l.Lock(ctx, "a"))
	token, err := must(t)(l.Lock(ctx, "t")).Detach(ctx, lease.Remaining())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{record, keys.Lock("", keys.Mutex, "t")[0]} {
		rdb.Del(ctx, key)
		rdb.HSet(ctx, key, "owner", "x:1", "fence", 7)
	}
	before := dump(t, rdb)
	if err := l.Release(ctx, token); err == nil {
		t.Error("a token was released from a record of another layout")
	}
	if _, err := l.Attach(ctx, token); err == nil {
		t.Error("a token was attached to a record of another layout")
	}
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	if after := dump(t, rdb); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// The keys of another layout are others, which this one does not look at.
func TestLayoutsDoNotShareKeys(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	other := "levee:l2:m:{a}"
	rdb.HSet(ctx, other, "owner", "x:1")
	before := rdb.Dump(ctx, other).Val()
	l := open(t, s.Client(t), lock.Options{})
	for range 3 {
		unlock(t, must(t)(l.Lock(ctx, "a")))
	}
	if after := rdb.Dump(ctx, other).Val(); after != before || keys.LockLayout != "l1" {
		t.Errorf("%q became %q", before, after)
	}
}
