package lock

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
)

// In a bubble an hour takes no time, and the moments are exact.
func TestARenewedLeaseOutlivesItsLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		l := open(t, m.Client(t), Options{})
		shares := []*Lease{must(t)(l.RW("a").RLock(t.Context())), must(t)(l.Semaphore("a", 2).Acquire(t.Context()))}
		err := l.Do(t.Context(), "a", func(ctx context.Context, lease *Lease) error {
			time.Sleep(time.Hour)
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
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		l := open(t, m.Client(t), Options{Lease: 10 * time.Second, NoRenewal: true})
		begin := time.Now()
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		<-lease.Context().Done()
		if took := time.Since(begin); took != 9900*time.Millisecond { // a hundredth earlier
			t.Errorf("it ended after %v", took)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, ErrExpired) {
			t.Error(err)
		}
	})
}

// A holder that is stuck but alive would hold the lock for ever without MaxHold.
func TestMaxHoldEndsAStuckHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		l := open(t, m.Client(t), Options{MaxHold: time.Minute})
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
		if !errors.Is(lease.Err(), ErrExpired) {
			t.Errorf("the first: %v", lease.Err())
		}
		_ = next.Unlock(t.Context())
		_ = lease.Unlock(t.Context())
	})
}

// The work gets time to unwind when its caller gives up, but not for ever.
func TestACancelledDoKeepsTheLockForOneLeaseMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		l := open(t, m.Client(t), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		err := l.Do(ctx, "a", func(ctx context.Context, lease *Lease) error {
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
		if !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		if took := time.Since(begin) - time.Minute; took < 9*time.Second || took > 11*time.Second {
			t.Errorf("the lease ended %v after the caller", took)
		}
	})
}

// A watchdog that gives up at the first error would lose the lease here.
func TestThreeFailedRenewalsAreSurvived(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	var failed, good atomic.Int32
	l := open(t, p.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }), Options{Lease: 3 * time.Second, Hooks: Hooks{
		Renewed: func(_ string, _ time.Duration, err error) {
			if err != nil {
				failed.Add(1)
			} else {
				good.Add(1)
			}
		},
	}})
	redistest.Eventually(t, 5*time.Second, "the subscription stands", l.c.push)
	lease, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_ = lease.Check(t.Context()) // loads the script
	p.CutReplies(6, "EVALSHA "+renewScript.Hash())
	redistest.Eventually(t, 4*time.Second, "it is renewed", func() bool { return good.Load() > 0 })
	if failed.Load() < 3 {
		t.Errorf("%d renewals failed", failed.Load())
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNothingIsRenewedAfterUnlock(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	l := open(t, s.Client(t), Options{Lease: 100 * time.Millisecond})
	for i := range redistest.Pick(40, 3000) {
		lease, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i%5)*300*time.Microsecond + 32*time.Millisecond) // around the first renewal
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	unlock(t, must(t)(l.Lock(t.Context(), "a"))) // the next renewal was due in 33 ms
	before := s.Calls("evalsha")
	time.Sleep(300 * time.Millisecond)
	if got := s.Calls("evalsha") - before; got != 0 {
		t.Errorf("%d scripts after the last Unlock", got)
	}
	if got := rdb.HGet(t.Context(), keys.Lock("", keys.Mutex, "a")[0], "o").Val(); got != "" {
		t.Errorf("held by %q", got)
	}
}

// One goroutine and few round trips, however many leases.
func TestManyLeasesAreRenewedTogether(t *testing.T) {
	s := redistest.Start(t)
	var lost atomic.Int32
	var writes atomic.Int64
	counting := func(o *redis.Options) { o.Dialer = countingDialer(&writes) }
	l := open(t, s.Client(t, counting), Options{Lease: 3 * time.Second, Hooks: Hooks{Lost: func(string, error) { lost.Add(1) }}})
	n := redistest.Pick(2000, 10_000)
	leases := make([]*Lease, n)
	for i := range leases {
		var err error
		if leases[i], err = l.Lock(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	scripts, sent, begin := s.Calls("evalsha"), writes.Load(), time.Now()
	time.Sleep(3 * time.Second)
	took := time.Since(begin).Seconds()
	renewed := float64(s.Calls("evalsha")-scripts) / took
	trips := float64(writes.Load()-sent) / took
	t.Logf("%d leases of 3s: %.0f renewals/s in %.0f writes/s, %d lost", n, renewed, trips, lost.Load())
	if most := float64(n); renewed > 1.2*most || renewed < 0.6*most {
		t.Errorf("%.0f renewals/s", renewed)
	}
	if trips > renewed/4 {
		t.Errorf("%.0f writes/s for %.0f renewals", trips, renewed)
	}
	if lost.Load() != 0 {
		t.Errorf("%d lost", lost.Load())
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
