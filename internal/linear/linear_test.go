package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// After an Invalidate has returned, no Get that starts later may see what was
// there before, wherever it runs; and what one has seen, later ones see too. Every
// subject of two processes reads and writes the same few keys, with values that
// expire all the time and pauses wherever two parties can get between each other's
// steps.
func TestReadsAndWritesAreLinearizable(t *testing.T) {
	target := redistest.Pick(1, 500_000)
	s := redistest.Start(t)
	for _, kind := range append(slices.Clone(kinds), "clears", "unmodified", "tags") {
		t.Run(kind, func(t *testing.T) {
			total := 0
			for total < target { // one history, of some ten thousand; without a safeguard the first shows it
				history := record(t, kind, s.Addr(), calm, redistest.Pick(2*time.Second, 10*time.Second))
				if isStale(history) {
					t.Fatalf("a stale read, after %d good operations", total)
				}
				if !linearizable(t, ordered(kind, history)) {
					t.Fatalf("not linearizable, after %d good operations", total)
				}
				total += len(history)
				s.Client(t).FlushAll(t.Context())
			}
			t.Logf("%d operations by %d subjects in %d processes, in order", total, processes*subjects, processes)
		})
	}
}

// Two releases of a service with different Schemas have a value each. Between a commit
// and its invalidation one may be new and the other old, so what one reader has seen the
// next need not see yet: no order explains that. What is promised all the same: once a
// writer of either release has returned, nobody reads what was there before.
func TestNoReadIsStaleDuringADeployment(t *testing.T) {
	s := redistest.Start(t)
	neverStale(t, "releases", s, s.Addr(), calm, redistest.Pick(6*time.Second, time.Minute))
}

// The same with a server that throws out whatever it likes, leases and holds as well
// as values, because it is full. A lease that is gone lets nobody publish.
func TestNoReadIsStaleWhateverIsEvicted(t *testing.T) {
	s := redistest.Start(t, "--maxmemory-policy", "allkeys-random")
	control := s.Client(t)
	full := strconv.FormatInt(s.Stat("used_memory")+8<<20, 10)
	if err := control.ConfigSet(t.Context(), "maxmemory", full).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	others := func(n int) { // large values of others, which come and go
		control.Set(ctx, fmt.Sprint("other:", n%10_000), strings.Repeat("x", 1000+rand.IntN(9000)), time.Minute)
	}
	n := 0
	for ctx.Err() == nil && s.Stat("evicted_keys") == 0 { // a busy machine is slow to fill the server
		for range 100 {
			others(n)
			n++
		}
	}
	before := s.Stat("evicted_keys")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; n++ {
			others(n)
		}
	}()
	defer func() { cancel(); <-done }()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			neverStale(t, kind, s, s.Addr(), calm, redistest.Pick(2*time.Second, time.Minute))
		})
	}
	evicted := s.Stat("evicted_keys") - before
	t.Logf("%d evictions", evicted)
	if evicted == 0 {
		t.Error("nothing was evicted: this tests nothing")
	}
}

// The same with a network that loses replies and connections, and a server that
// forgets its scripts. Reads without an answer from Redis go to the database, and
// so may see a write before those that still find the value from before it in
// Redis. But after a write has been confirmed, nobody sees what was before it.
func TestNoReadIsStaleWhateverIsLost(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		control := s.Client(t)
		for ctx.Err() == nil {
			switch rand.IntN(12) {
			case 0:
				p.Cut()
			case 1:
				control.ScriptFlush(ctx)
			case 2:
				control.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
			case 3:
				p.DropReplies(1, "EVALSHA")
			case 4, 5:
				p.CutReplies(1, "GETRANGE")
			case 6: // what nobody has met yet, or those who try again and again would meet all of it
				p.Heal()
			default:
				p.CutReplies(1, "EVALSHA")
			}
			time.Sleep(rand.N(20 * time.Millisecond))
		}
	}()
	defer func() { cancel(); <-done }()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			neverStale(t, kind, s, p.Addr(), nervous, redistest.Pick(3*time.Second, 5*time.Minute))
		})
	}
	t.Logf("%d connections", p.Opened())
}

// neverStale records histories for a while and fails the test for a read that gave what
// was before a confirmed write.
func neverStale(t *testing.T, kind string, s *redistest.Server, addr string, patience, length time.Duration) {
	total := 0
	for end := time.Now().Add(length); time.Now().Before(end); {
		history := record(t, kind, addr, patience, redistest.Pick(2*time.Second, 20*time.Second))
		if bad := stale(history); len(bad) > 0 {
			t.Fatalf("%d of %d operations read what was before a confirmed write, as client %d at %d", len(bad), len(history), bad[0].Client, bad[0].Call)
		}
		total += len(history)
		s.Client(t).FlushAll(t.Context())
	}
	t.Logf("%d operations", total)
}
