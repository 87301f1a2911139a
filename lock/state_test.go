package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// dump is everything in the server, but for how long it lives.
func dump(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	var all string
	names, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		all += fmt.Sprintf("%s=%q\n", name, rdb.Dump(t.Context(), name).Val())
	}
	return all
}

// A script that wrote before it had looked at all its keys would leave half of its
// work here: Lua is not rolled back.
func TestAForeignValueIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	l, other := open(t, s.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{})
	for i := range 4 {
		kind, take := keys.Mutex, func(l *lock.Locker) (*lock.Lease, error) { return l.Lock(ctx, "a") }
		if i == 3 { // a mutex has no shares
			kind, take = keys.ReadWrite, func(l *lock.Locker) (*lock.Lease, error) { return l.RW("a").Lock(ctx) }
		}
		for name, put := range map[string]func(key string){
			"string": func(key string) { rdb.Set(ctx, key, "10086", 0) },
			"list":   func(key string) { rdb.RPush(ctx, key, "x") },
			"hash":   func(key string) { rdb.HSet(ctx, key, "field", "x") },
		} {
			rdb.FlushAll(ctx)
			key := keys.Lock("", kind, "a")[i]
			if i == 0 { // nothing of ours can stand before it
				put(key)
				before := dump(t, rdb)
				for _, call := range []func() error{
					func() error { _, err := l.Lock(ctx, "a"); return err },
					func() error { _, err := l.TryLock(ctx, "a"); return err },
				} {
					if err := call(); !errors.Is(err, lock.ErrConflict) {
						t.Errorf("%s at %s: %v", name, key, err)
					}
				}
				if after := dump(t, rdb); after != before {
					t.Errorf("%s at %s: %s became %s", name, key, before, after)
				}
				continue
			}
			held, err := take(l)
			if err != nil {
				t.Fatal(err)
			}
			put(key)
			before := dump(t, rdb)
			if _, err := take(other); !errors.Is(err, lock.ErrConflict) {
				t.Errorf("%s at %s: %v", name, key, err)
			}
			if after := dump(t, rdb); after != before {
				t.Errorf("%s at %s: %s became %s", name, key, before, after)
			}
			if err := held.Unlock(ctx); err != nil && !(kind == keys.ReadWrite && errors.Is(err, lock.ErrConflict)) {
				t.Errorf("%s at %s: Unlock: %v", name, key, err)
			}
		}
	}
}

func TestTheUsersOwnKeyOfTheSameNameIsNotTouched(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	rdb.Set(t.Context(), "stock:10086", "100", 0)
	l := open(t, s.Client(t), lock.Options{})
	for range 100 {
		if err := l.Do(t.Context(), "stock:10086", func(context.Context, *lock.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if got := rdb.Get(t.Context(), "stock:10086").Val(); got != "100" {
		t.Errorf("got %q", got)
	}
}

func TestWhatHappensToTheRecordIsReported(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	record := keys.Lock("", keys.Mutex, "a")[0]
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	var last int64
	for name, test := range map[string]struct {
		do   func()
		want error
	}{
		"flush":   {func() { rdb.FlushAll(ctx) }, lock.ErrStateLost},
		"delete":  {func() { rdb.Del(ctx, record) }, lock.ErrStateLost},
		"type":    {func() { rdb.Set(ctx, record, "x", 0) }, lock.ErrExpired},
		"taken":   {func() { rdb.HSet(ctx, record, "o", "somebody:1") }, lock.ErrTakenOver},
		"ended":   {func() { rdb.HSet(ctx, record, "x", "1") }, lock.ErrExpired},
		"scripts": {func() { rdb.ScriptFlush(ctx) }, nil},
	} {
		rdb.Del(ctx, record)
		locker := l
		if name == "type" { // renewals fail, and may do so for as long as the lease is
			locker = l.With(lock.Options{Lease: time.Second})
		}
		lease, err := locker.Lock(ctx, "a")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if lease.Fence() <= last {
			t.Errorf("%s: fence %d after %d", name, lease.Fence(), last)
		}
		last = lease.Fence()
		test.do()
		before := l.Stats().Renewals
		l.RenewAll()
		if test.want == nil {
			redistest.Eventually(t, 20*time.Second, "it is renewed", func() bool { return l.Stats().Renewals > before })
			if err := errors.Join(lease.Err(), lease.Check(ctx), lease.Unlock(ctx)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		select {
		case <-lease.Context().Done():
		case <-time.After(15 * time.Second): // it is to be renewed after 20
			t.Fatalf("%s: not reported", name)
		}
		if err := context.Cause(lease.Context()); !errors.Is(err, lock.ErrLost) || !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: Unlock: %v", name, err)
		}
	}
}

// The lease is in the record, so that a key that lost its TTL is still freed.
func TestAPersistedRecordStillEnds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	dead, err := lock.New(s.Client(t), lock.Options{Lease: time.Second, NoRenewal: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	inTime(t, func() (*lock.Lease, error) { return dead.Lock(t.Context(), "a") })
	rdb.Persist(t.Context(), keys.Lock("", keys.Mutex, "a")[0])
	l := open(t, s.Client(t), lock.Options{})
	begin := time.Now()
	lease, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > slack {
		t.Errorf("it took %v", took)
	}
	_ = lease.Unlock(t.Context())
	lock.EveryKeyEnds(t, rdb)
}

// The naive DEL of an expired holder would free the lock of the next one.
func TestALateUnlockLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		a := s.open(t, lock.Options{Lease: time.Second, NoRenewal: true})
		b := s.open(t, lock.Options{})
		late := inTime(t, func() (*lock.Lease, error) { return a.Lock(ctx, "a") })
		next, err := b.Lock(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := late.Err(); !errors.Is(err, lock.ErrExpired) {
			t.Errorf("the first: %v", err)
		}
		if err := late.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if err := next.Check(ctx); err != nil {
			t.Errorf("the next: %v", err)
		}
		if _, err := a.TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("a third: %v", err)
		}
		_ = next.Unlock(ctx)
	})
}

// A server that evicts or has no memory left: no half-written state, and what is
// held can be given back.
func TestAFullRedisCanStillBeUnlocked(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	l := open(t, s.Client(t), lock.Options{Lease: 5 * time.Second})
	other := open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is checked again", l.Hears)
	held, err := l.Lock(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	shared := must(t)(l.RW("a").RLock(ctx))
	queued := must(t)(l.Lock(ctx, "q")) // with somebody behind: the long way
	waits, leave := context.WithCancel(ctx)
	defer leave()
	behind := make(chan error, 1)
	go func() { behind <- other.Do(waits, "q", func(context.Context, *lock.Lease) error { return nil }) }()
	waiting(t, l, keys.Mutex, "q", 1)
	if err := rdb.ConfigSet(ctx, "maxmemory", "1mb").Err(); err != nil {
		t.Fatal(err)
	}
	before := dump(t, rdb)
	if _, err := other.TryLock(ctx, "b"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if after := dump(t, rdb); after != before {
		t.Errorf("%s became %s", before, after)
	}
	so := l.Stats().Renewals
	redistest.Eventually(t, 30*time.Second, "what is held is renewed", func() bool { return l.Stats().Renewals > so })
	if err := held.Check(ctx); err != nil {
		t.Error(err)
	}
	for _, lease := range []*lock.Lease{held, shared, queued} {
		if err := lease.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"a", "q"} {
		if info, err := l.Inspect(ctx, name); err != nil || name == "a" && info.Held {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	rdb.ConfigSet(ctx, "maxmemory", "0")
	if err := <-behind; err != nil && !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
}
