package lock_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func TestATokenHandsALockOver(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		a, b := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		for name, take := range map[string]func() (*lock.Lease, error){
			"mutex":  func() (*lock.Lease, error) { return a.Lock(ctx, "a") },
			"all":    func() (*lock.Lease, error) { return a.LockAll(ctx, "x", "y{}", "z\xff") },
			"write":  func() (*lock.Lease, error) { return a.RW("a").Lock(ctx) },
			"read":   func() (*lock.Lease, error) { return a.RW("a").RLock(ctx) },
			"permit": func() (*lock.Lease, error) { return a.Semaphore("a", 1).Acquire(ctx) },
		} {
			lease := must(t)(take())
			token, err := lease.Detach(ctx, time.Minute)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if lease.Err() == nil || lease.Context().Err() == nil || !errors.Is(lease.Unlock(ctx), lock.ErrNotHeld) {
				t.Errorf("%s: the old lease stands", name)
			}
			if strings.Trim(string(token), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
				t.Errorf("%s: token %q", name, token)
			}
			taken := must(t)(b.Attach(ctx, token))
			if taken.Fence() != lease.Fence() {
				t.Errorf("%s: fence %d became %d", name, lease.Fence(), taken.Fence())
			}
			if err := taken.Check(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, l := range []*lock.Locker{a, b} {
				if _, err := l.Attach(ctx, token); !errors.Is(err, lock.ErrNotHeld) {
					t.Errorf("%s: attached twice: %v", name, err)
				}
			}
			if err := a.Release(ctx, token); !errors.Is(err, lock.ErrNotHeld) {
				t.Errorf("%s: released what was attached: %v", name, err)
			}
			token, err = taken.Detach(ctx, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time nobody has had it since
				if err := a.Release(ctx, token); err != nil {
					t.Errorf("%s: Release: %v", name, err)
				}
			}
			next := must(t)(take())
			if err := a.Release(ctx, token); !errors.Is(err, lock.ErrNotHeld) && name != "read" && name != "permit" {
				t.Errorf("%s: an old token: %v", name, err)
			}
			if err := next.Check(ctx); err != nil {
				t.Errorf("%s: an old token took the next one's lock: %v", name, err)
			}
			unlock(t, next)
		}
	})
}

// A lease is lost here, and Redis has not heard of that yet: its renewals took effect, and their
// replies were lost. Its job begins anew and attaches the same token. Catches a second lease with
// the owner of the first, whose Unlock then releases the lock under the second.
func TestATokenIsAttachedOnceAlsoIfItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, other := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{})
		token, err := must(t)(other.Lock(ctx, "a")).Detach(ctx, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		first := must(t)(l.Attach(ctx, token))
		first.Shift(func(at time.Time) time.Time { return at.Add(-time.Minute) })
		if err := first.Err(); !errors.Is(err, lock.ErrExpired) {
			t.Fatalf("the first lease: %v", err)
		}
		second, err := l.Attach(ctx, token)
		if !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("attached twice: %v", err)
		}
		_ = first.Unlock(ctx)
		if _, err := other.TryLock(ctx, "a"); err == nil && second != nil && second.Err() == nil {
			t.Error("two have the lock")
		}
	})
}

func TestADetachedLockEndsByItself(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{})
		lease := must(t)(l.Lock(ctx, "a"))
		begin := time.Now()
		token, err := lease.Detach(ctx, 200*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		next := must(t)(l.Lock(ctx, "a"))
		if took := time.Since(begin); took < 198*time.Millisecond || took > slack {
			t.Errorf("it took %v", took)
		}
		if _, err := l.Attach(ctx, token); !errors.Is(err, lock.ErrNotHeld) {
			t.Error(err)
		}
		unlock(t, next)
		if _, err := must(t)(l.Lock(ctx, "b")).Detach(ctx, time.Millisecond); !errors.Is(err, lock.ErrConfig) {
			t.Error(err)
		}
	})
}

func TestABadTokenIsRefused(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{})
		token, err := must(t)(l.Lock(ctx, "a")).Detach(ctx, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		before := s.dump(t)
		good := string(token)
		for _, bad := range []string{"", "x", "l1.", "l0." + good[3:], "l2." + good[3:], good + "A", good[:len(good)-1], good[:20] + "A" + good[21:]} {
			_, err1 := l.Attach(ctx, lock.Token(bad))
			for _, err := range []error{err1, l.Release(ctx, lock.Token(bad))} {
				if !errors.Is(err, lock.ErrBadToken) {
					t.Errorf("%q: %v", bad, err)
				}
			}
		}
		if after := s.dump(t); after != before {
			t.Errorf("%s became %s", before, after)
		}
	})
}

func TestOnlyAHandleLetsTheHolderInAgain(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{})
		lease := must(t)(l.Lock(ctx, "a"))
		if _, err := l.Lock(lease.Context(), "a"); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("got %v", err)
		}
		if _, err := l.TryLock(lease.Context(), "a"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("got %v", err)
		}
		inner := must(t)(lease.Reenter())
		unlock(t, lease)
		if err := inner.Err(); err != nil {
			t.Error(err)
		}
		if err := inner.Context().Err(); err != nil {
			t.Error(err)
		}
		if _, err := l.TryLock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("got %v", err)
		}
		unlock(t, inner)
		unlock(t, must(t)(l.Lock(context.WithoutCancel(lease.Context()), "a"))) // no deadlock any more
		if _, err := lease.Reenter(); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("got %v", err)
		}
		w := must(t)(l.RW("a").Lock(ctx))
		if _, err := l.RW("a").RLock(w.Context()); !errors.Is(err, lock.ErrDeadlock) {
			t.Errorf("got %v", err)
		}
		unlock(t, w)
	})
}

func TestOnceRunsOnce(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		var runs, tried atomic.Int32
		var all sync.WaitGroup
		mine := errors.New("mine")
		for i := range 100 {
			all.Go(func() {
				ran, err := ls[i%2].Once(t.Context(), "a", time.Minute, func(context.Context) error {
					if tried.Add(1) == 1 {
						return mine
					}
					runs.Add(1)
					time.Sleep(10 * time.Millisecond)
					return nil
				})
				if err != nil && !(ran && errors.Is(err, mine)) {
					t.Error(ran, err)
				}
			})
		}
		all.Wait()
		if runs.Load() != 1 || tried.Load() != 2 {
			t.Errorf("%d runs of %d", runs.Load(), tried.Load())
		}
		begin := time.Now()
		if ran, err := ls[0].Once(t.Context(), "a", time.Minute, nil); ran || err != nil {
			t.Error(ran, err)
		}
		if took := time.Since(begin); took > slack {
			t.Errorf("it took %v", took)
		}
		for range 2 { // what was done counts for as long as was asked
			ran, err := ls[0].Once(t.Context(), "b", 50*time.Millisecond, func(context.Context) error { return nil })
			if !ran || err != nil {
				t.Error(ran, err)
			}
			time.Sleep(60 * time.Millisecond)
		}
		if _, err := ls[0].Once(t.Context(), "a", 0, nil); !errors.Is(err, lock.ErrConfig) {
			t.Error(err)
		}
		s.everyKeyEnds(t)
	})
}

func TestCloseGivesBackWhatIsHeldAndEndsWaits(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, other := s.open(t, lock.Options{}), s.open(t, lock.Options{})
		lease := must(t)(l.Lock(ctx, "a"))
		b := must(t)(other.Lock(ctx, "b"))
		waits := make(chan error)
		for range 3 {
			go func() { _, err := l.Lock(context.Background(), "b"); waits <- err }()
		}
		waiting(t, other, keys.Mutex, "b", 1)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := <-waits; !errors.Is(err, lock.ErrClosed) {
				t.Error(err)
			}
		}
		if lease.Context().Err() == nil || !errors.Is(lease.Err(), lock.ErrClosed) {
			t.Errorf("the lease: %v", lease.Err())
		}
		unlock(t, must(t)(other.TryLock(ctx, "a")), b)
		unlock(t, must(t)(other.TryLock(ctx, "b")))
		if _, err := l.TryLock(ctx, "a"); !errors.Is(err, lock.ErrClosed) {
			t.Error(err)
		}
		_ = l.Close()
	})
}

// A lock is granted to a call that is under way while the Locker is closed, and that does not
// want it any more. Catches a Close that waits for nothing by then: nobody gives the lock back
// before its lease ends.
func TestCloseWaitsForCallsThatAreGrantedALock(t *testing.T) {
	t.Parallel()
	acquire, release := "EVALSHA "+lock.AcquireScript.Hash(), "EVALSHA "+lock.ReleaseScript.Hash()
	for name, grant := range map[string]func(t *testing.T, p *redistest.FaultProxy, l, other *lock.Locker) (goOn func()){
		"whose answer comes late": func(t *testing.T, p *redistest.FaultProxy, l, _ *lock.Locker) func() {
			held, letGo := p.HoldReply(acquire)
			ctx, leave := context.WithCancel(t.Context())
			go func() { _ = giveBack(l.RW("a").TryRLock(ctx)) }()
			<-held
			t.Cleanup(letGo)
			return leave
		},
		"beside a reader who has left": func(t *testing.T, p *redistest.FaultProxy, l, other *lock.Locker) func() {
			l = l.With(lock.Options{Lease: time.Minute, Replicas: 1}) // there is none: the first reader gives its share back
			gate := must(t)(other.RW("a").Lock(t.Context()))
			ctx, leave := context.WithCancel(t.Context())
			for i, ctx := range []context.Context{t.Context(), ctx} {
				go func() { _ = giveBack(l.RW("a").RLock(ctx)) }()
				redistest.Eventually(t, 30*time.Second, "it waits in the queue", func() bool { return l.InRooms() == i+1 && l.InQueue() })
			}
			held, letGo := p.HoldReply(acquire)
			unlock(t, gate)
			<-held
			leave()
			redistest.Eventually(t, 30*time.Second, "the second has left", func() bool { return l.InRooms() == 1 })
			held, goOn := p.HoldReply(release)
			letGo()
			<-held
			return goOn
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			p := redistest.Proxy(t, s.Addr())
			l, other := open(t, p.Client(t), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{})
			unlock(t, must(t)(l.RW("a").TryRLock(t.Context()))) // loads the scripts
			goOn := grant(t, p, l, other)
			closed := make(chan struct{})
			go func() { defer close(closed); _ = l.Close() }()
			select {
			case <-closed:
			case <-time.After(200 * time.Millisecond): // it may wait for a second
			}
			goOn()
			redistest.Eventually(t, 20*time.Second, "nobody has it", func() bool { return rwPair((*lock.RW).TryLock)(other) == nil })
			<-closed
		})
	}
}

func TestInspectAndLabels(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l := s.open(t, lock.Options{})
		if info, err := l.Inspect(ctx, "a"); err != nil || info != (lock.Info{}) {
			t.Errorf("%+v, %v", info, err)
		}
		lease := must(t)(l.With(lock.Options{Label: "host 7", Lease: 50 * time.Second}).Lock(ctx, "a"))
		info, err := l.Inspect(ctx, "a")
		if err != nil || !info.Held || info.Label != "host 7" || info.Fence != lease.Fence() || info.Remaining > 50*time.Second || info.Remaining < 25*time.Second {
			t.Errorf("%+v, %v", info, err)
		}
		unlock(t, lease)
		if info, _ := l.Inspect(ctx, "a"); info.Held || info.Label != "" || info.Fence != lease.Fence() {
			t.Errorf("%+v", info)
		}
	})
}

// Two locks of one Locker are handed to two who do not trust each other. Whoever could guess
// the owner of the other lock from his own token could give that lock back: owners were
// numbered once. Nor may a token speak for a waiter who has been granted a lock just now.
func TestATokenSaysNothingOfOtherLocks(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		owners := map[string]bool{}
		var good []byte
		for _, name := range []string{"a", "b", "c"} {
			token, err := must(t)(l.Lock(t.Context(), name)).Detach(t.Context(), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			good, err = base64.RawURLEncoding.DecodeString(strings.TrimPrefix(string(token), "l1."))
			if err != nil {
				t.Fatal(err)
			}
			var parts []struct {
				Owner string `json:"o"`
			}
			if err := json.Unmarshal(good[:len(good)-8], &parts); err != nil || len(parts) != 1 {
				t.Fatalf("%s: %v", good, err)
			}
			_, secret, _ := strings.Cut(parts[0].Owner, ":")
			if len(secret) < 26 || owners[secret] { // 26 characters of 5 bits
				t.Errorf("the owner is %q", parts[0].Owner)
			}
			owners[secret] = true
		}
		text := bytes.Replace(good[:len(good)-8], []byte(`"o":"`), []byte(`"o":"g:`), 1)
		text = fmt.Appendf(text, "%08x", crc32.ChecksumIEEE(text))
		forged := lock.Token("l1." + base64.RawURLEncoding.EncodeToString(text))
		if err := l.Release(t.Context(), forged); !errors.Is(err, lock.ErrBadToken) {
			t.Errorf("a token of a lock that is not taken up: %v", err)
		}
	})
}

// Close cannot find a lease that an Attach brings when it is over: nobody would renew it, and
// its context would never end.
func TestAnAttachBesideCloseGivesTheLockBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	other := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	token, err := must(t)(other.Lock(t.Context(), "a")).Detach(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, p.Client(t), lock.Options{Lease: time.Minute})
	held, release := p.HoldReply("EVALSHA " + lock.RenewScript.Hash())
	done := make(chan error)
	go func() { _, err := l.Attach(context.Background(), token); done <- err }()
	<-held
	_ = l.Close()
	release()
	if err := <-done; !errors.Is(err, lock.ErrClosed) {
		t.Errorf("Attach: %v", err)
	}
	if n := l.Kept(); n != 0 {
		t.Errorf("%d things are left", n)
	}
	unlock(t, must(t)(other.TryLock(t.Context(), "a")))
}
