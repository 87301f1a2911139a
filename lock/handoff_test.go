package lock_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// Each waiter that tried by itself would cost a script for each release; each
// process that did, one for each process.
func TestAHandOffIsTwoScriptsHoweverManyWait(t *testing.T) {
	for _, clients := range redistest.Pick([]int{10}, []int{10, 100}) {
		handOffs(t, clients, redistest.Pick(1000, 10_000))
	}
}

func handOffs(t *testing.T, clients, waiters int) {
	s := redistest.Start(t)
	var lockers []*lock.Locker
	for range clients {
		lockers = append(lockers, open(t, s.Client(t, func(o *redis.Options) { o.PoolSize = 10 }), lock.Options{}))
	}
	for _, l := range lockers {
		redistest.Eventually(t, 30*time.Second, "the subscriptions stand", l.Hears)
	}
	gate, err := lockers[0].Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var last time.Time
	var gap time.Duration
	for i := range waiters {
		all.Go(func() {
			err := lockers[i%clients].Do(t.Context(), "a", func(context.Context, *lock.Lease) error {
				now := time.Now()
				if !last.IsZero() {
					gap = max(gap, now.Sub(last))
				}
				last = now
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	redistest.Eventually(t, 30*time.Second, "all wait", func() bool {
		n := 0
		for _, l := range lockers {
			n += l.InRooms()
		}
		info, _ := lockers[0].Inspect(t.Context(), "a")
		return n == waiters && info.Waiting == clients
	})
	subscriptions, connections := s.Calls("subscribe"), s.Stat("connected_clients")
	before, begin := s.Calls("evalsha"), time.Now()
	if err := gate.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	took := time.Since(begin)
	each := float64(s.Calls("evalsha")-before) / float64(waiters)
	t.Logf("%d waiters, %d clients: %.3f scripts each, %.0f hand-offs/s, longest gap %v, %d connections",
		waiters, clients, each, float64(waiters)/took.Seconds(), gap, connections)
	// Once a second each process asks whether it has missed something.
	if polls := float64(clients) * (took.Seconds() + 1); each > 2.1+polls/float64(waiters) {
		t.Errorf("%.2f scripts for each acquisition", each)
	}
	if subscriptions > int64(2*clients) { // one with the heartbeat, one more for the channel
		t.Errorf("%d subscriptions for %d clients", subscriptions, clients)
	}
	if connections > int64(11*clients+2) {
		t.Errorf("%d connections", connections)
	}
}

// Processes take turns: none that asks again at once can shut out another.
func TestProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		clients, each := redistest.Pick(4, 20), redistest.Pick(20, 50)
		grants := make([]int, clients)
		var lockers []*lock.Locker
		for range clients {
			lockers = append(lockers, s.open(t, lock.Options{}))
		}
		for _, l := range lockers {
			redistest.Eventually(t, 30*time.Second, "the subscriptions stand", l.Hears)
		}
		gate := must(t)(lockers[0].Lock(t.Context(), "a"))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		most, total := redistest.Pick(1000, 20_000), 0
		for i, l := range lockers {
			for range each {
				all.Go(func() {
					for ctx.Err() == nil {
						_ = l.Do(ctx, "a", func(context.Context, *lock.Lease) error {
							if total++; total >= most {
								cancel()
							}
							grants[i]++
							return nil
						})
					}
				})
			}
		}
		waiting(t, lockers[0], keys.Mutex, "a", clients) // none gets a start
		unlock(t, gate)
		all.Wait()
		if total < most {
			t.Fatalf("only %d acquisitions", total)
		}
		t.Logf("%d acquisitions, by process %v", total, grants)
		// A process passes the lock on 16 times in a turn, or for 50 ms, which on a busy machine is less.
		// One that shut out the others would have nearly all.
		mean := float64(total) / float64(clients)
		for i, n := range grants {
			if math.Abs(float64(n)-mean) > mean/2 {
				t.Errorf("process %d got %d of %d", i, n, total)
			}
		}
	})
}

// In strict order a waiter is served by when it came, wherever it runs.
func TestStrictOrderIsThatOfArrival(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		var lockers []*lock.Locker
		for range 3 {
			lockers = append(lockers, s.open(t, lock.Options{StrictFIFO: true}))
		}
		gate, err := lockers[0].Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var order []string
		const n = 30
		for i := range n {
			all.Go(func() {
				_ = lockers[i*i%3].Do(t.Context(), "a", func(context.Context, *lock.Lease) error {
					order = append(order, fmt.Sprint(i))
					return nil
				})
			})
			redistest.Eventually(t, 30*time.Second, "it stands in the queue", func() bool {
				info, _ := lockers[0].Inspect(t.Context(), "a")
				return info.Waiting == i+1
			})
		}
		if err := gate.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		for i, got := range order {
			if got != fmt.Sprint(i) {
				t.Fatalf("order %v", order)
			}
		}
		if len(order) != n {
			t.Errorf("%d of %d", len(order), n)
		}
	})
}
