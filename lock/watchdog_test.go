package lock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A renewal that is under way when the lock is given back must not bring it to life
// again, nor go on for ever. A million times the first renewal is due just then: had
// one of them had an effect, the next TryLock would find the lock taken.
func TestChaosUnlocksRaceRenewals(t *testing.T) {
	more := redistest.Quota(t, 1_000_000)
	s := redistest.Start(t)
	var total, raced atomic.Int64
	var all sync.WaitGroup
	for worker := range 8 {
		l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
		all.Go(func() {
			for i := 0; more(); i++ {
				lease, err := l.TryLock(t.Context(), fmt.Sprint(worker))
				if err != nil {
					t.Error(err)
					return
				}
				l.RenewAll() // as if it was time
				if underWay(lease) {
					raced.Add(1)
				}
				for range i % 50 {
					runtime.Gosched()
				}
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				total.Add(1)
			}
			if n := l.Kept(); n != 0 {
				t.Errorf("%d leases are still cared for", n)
			}
		})
	}
	all.Wait()
	t.Logf("%d unlocks, %d with a renewal under way", total.Load(), raced.Load())
	if raced.Load() == 0 {
		t.Error("there was no race")
	}
}

// underWay waits for a moment until a lease is being renewed.
func underWay(lease *lock.Lease) bool {
	for begin := time.Now(); time.Since(begin) < 5*time.Millisecond; runtime.Gosched() {
		if lease.IsRenewing() {
			return true
		}
	}
	return false
}

// leases holds so many leases until it is told to go, with a busy machine, and says
// how many it has lost.
func leases(p *redistest.Parent, args []string) error {
	n, _ := strconv.Atoi(args[1])
	var lost atomic.Int64
	rdb, l, err := child(args[0], lock.Options{Hooks: lock.Hooks{
		Lost: func(_ string, err error) {
			if !errors.Is(err, lock.ErrClosed) {
				lost.Add(1)
			}
		},
	}})
	if err != nil {
		return err
	}
	defer rdb.Close()
	defer l.Close()
	var all sync.WaitGroup
	var failed atomic.Int64
	for w := range 8 {
		all.Go(func() {
			for i := w; i < n; i += 8 {
				if _, err := l.Lock(context.Background(), fmt.Sprint("many", i)); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	var stop atomic.Bool
	for range max(runtime.GOMAXPROCS(0)/2, 1) { // half of the processors have other work
		all.Go(func() {
			for !stop.Load() {
			}
		})
	}
	before := l.Stats().Renewals
	p.Pause("held")
	p.Say("lost %d renewed %d failed %d", lost.Load(), l.Stats().Renewals-before, failed.Load())
	stop.Store(true)
	all.Wait()
	return nil
}

// Ten thousand leases of one process, which the machine stops for 200 ms every second
// and whose processors are busy: none is lost for that, and renewals are no more than
// one in a third of a lease.
func TestChaosManyLeasesAndPauses(t *testing.T) {
	d := redistest.Long(t)
	s := redistest.Start(t)
	const n = 10_000
	c := redistest.Child(t, "leases", s.Addr(), strconv.Itoa(n))
	c.Expect("at:held")
	renewals, begin := s.Calls("evalsha"), time.Now()
	pauses := 0
	for ; time.Since(begin) < d; pauses++ {
		time.Sleep(800 * time.Millisecond)
		c.Stop()
		time.Sleep(200 * time.Millisecond)
		c.Cont()
	}
	took := time.Since(begin)
	c.Go("held")
	said := c.Expect("lost ")
	each := float64(s.Calls("evalsha")-renewals) / took.Seconds()
	t.Logf("%d leases for %v with %d pauses: %.0f scripts a second; lost %s", n, took, pauses, each, said)
	if !strings.HasPrefix(said, "0 ") || !strings.HasSuffix(said, "failed 0") {
		t.Errorf("lost %s", said)
	}
	// One in T/3, and a sixtieth of T early, so that many share a round trip.
	if most := n / (10.0/3 - 10.0/60) * 1.02; each > most {
		t.Errorf("%.0f scripts a second, more than %.0f", each, most)
	}
}
