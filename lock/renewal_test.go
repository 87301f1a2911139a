package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// In a bubble ten minutes take no time, and the moments are exact.
func TestARenewedLeaseOutlivesItsLength(t *testing.T) {
	inBubbles(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		shares := []*lock.Lease{must(t)(l.RW("a").RLock(t.Context())), must(t)(l.Semaphore("a", 2).Acquire(t.Context()))}
		err := l.Do(t.Context(), "a", func(ctx context.Context, lease *lock.Lease) error {
			time.Sleep(redistest.Pick(10*time.Minute, time.Hour))
			for _, share := range shares { // their key ends by itself too
				if err := errors.Join(share.Err(), share.Check(ctx), share.Unlock(ctx)); err != nil {
					t.Error(err)
				}
			}
			if got := lease.Remaining(); got < 6*time.Second || got > 10*time.Second {
				t.Errorf("%v remain", got)
			}
			return errors.Join(ctx.Err(), lease.Check(ctx))
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestWithoutRenewalALeaseEndsBeforeTheServers(t *testing.T) {
	inBubbles(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{Lease: 10 * time.Second, NoRenewal: true})
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		<-lease.Context().Done()
		if took := time.Since(begin); took != 9900*time.Millisecond { // a hundredth earlier
			t.Errorf("it ended after %v", took)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrExpired) {
			t.Error(err)
		}
	})
}

// A holder that is stuck but alive would hold the lock for ever without MaxHold.
func TestMaxHoldEndsAStuckHolder(t *testing.T) {
	inBubbles(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{MaxHold: time.Minute})
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		next, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < 59*time.Second || took > 62*time.Second {
			t.Errorf("the next had it after %v", took)
		}
		if !errors.Is(lease.Err(), lock.ErrExpired) {
			t.Errorf("the first: %v", lease.Err())
		}
		_ = next.Unlock(t.Context())
		_ = lease.Unlock(t.Context())
	})
}

// The work gets time to unwind when its caller gives up, but not for ever.
func TestACancelledDoKeepsTheLockForOneLeaseMore(t *testing.T) {
	inBubbles(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		err := l.Do(ctx, "a", func(ctx context.Context, lease *lock.Lease) error {
			time.Sleep(time.Minute)
			cancel()
			synctest.Wait()
			if ctx.Err() == nil {
				t.Error("fn does not know")
			}
			time.Sleep(5 * time.Second)
			if err := lease.Check(context.WithoutCancel(ctx)); err != nil {
				t.Errorf("while it unwinds: %v", err)
			}
			<-lease.Context().Done()
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		if took := time.Since(begin) - time.Minute; took < 9*time.Second || took > 11*time.Second {
			t.Errorf("the lease ended %v after the caller", took)
		}
	})
}

// A watchdog that gives up at the first error would lose the lease here.
func TestThreeFailedRenewalsAreSurvived(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }), lock.Options{Lease: 6 * time.Second})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	lease, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_ = lease.Check(t.Context()) // loads the script
	p.CutReplies(6, "EVALSHA "+lock.RenewScript.Hash())
	l.RenewAll() // it need not wait until the lease is old
	redistest.Eventually(t, 20*time.Second, "it is renewed", func() bool { return l.Stats().Renewals > 0 })
	if n := l.Stats().RenewalErrors; n < 3 {
		t.Errorf("%d renewals failed", n)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNothingIsRenewedAfterUnlock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	l.AskOnce()
	for i := range redistest.Pick(200, 10_000) {
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		l.RenewAll() // as if it was time
		time.Sleep(time.Duration(i%5) * 100 * time.Microsecond)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	short := l.With(lock.Options{Lease: lock.MinLease})
	for { // the next renewal is due after a third of that
		if err := must(t)(short.Lock(t.Context(), "a")).Unlock(t.Context()); err == nil {
			break
		} else if !errors.Is(err, lock.ErrExpired) { // the machine is slow
			t.Fatal(err)
		}
	}
	before := s.Calls("evalsha")
	time.Sleep(3 * lock.MinLease)
	if got := s.Calls("evalsha") - before; got != 0 {
		t.Errorf("%d scripts after the last Unlock", got)
	}
	if got := rdb.HGet(t.Context(), keys.Lock("", keys.Mutex, "a")[0], "o").Val(); got != "" {
		t.Errorf("held by %q", got)
	}
}

// One goroutine and few round trips, however many leases.
func TestManyLeasesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var writes atomic.Int64
	counting := func(o *redis.Options) { o.Dialer = countingDialer(&writes) }
	l := open(t, s.Client(t, counting), lock.Options{})
	renewed := func() int { return int(l.Stats().Renewals) }
	n := redistest.Pick(500, 10_000)
	leases := make([]*lock.Lease, n)
	for i := range leases {
		var err error
		if leases[i], err = l.Lock(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	begin := leases[0].Taken()
	before, scripts, sent := renewed(), s.Calls("evalsha"), writes.Load()
	redistest.Eventually(t, time.Minute, "all are renewed", func() bool { return renewed() >= n })
	done, calls, trips := renewed()-before, s.Calls("evalsha")-scripts, writes.Load()-sent
	took := time.Since(begin)
	t.Logf("%d leases: in %v %d renewals by %d calls in %d writes, %d lost", n, took, renewed(), calls, trips, l.Stats().Losses)
	if most := (int64(took/(10*time.Second/3)) + 1) * int64(n) * 6 / 5; int64(renewed()) > most {
		t.Errorf("%d renewals in %v, more than %d", renewed(), took, most)
	}
	if trips > int64(done)/4 {
		t.Errorf("%d writes for %d renewals", trips, done)
	}
	if l.Stats().Losses != 0 {
		t.Errorf("%d lost", l.Stats().Losses)
	}
	for _, lease := range leases {
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}

func countingDialer(n *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return countingConn{conn, n}, err
	}
}
