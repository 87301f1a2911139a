package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// With an append-only file that is written before each answer, a crash of the
// server loses no lock: a holder keeps his, and nobody gets one twice.
func TestChaosRestartsWithAnAppendOnlyFile(t *testing.T) {
	rounds := redistest.Rounds(t, 50)
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	ls := []*lock.Locker{open(t, s.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := must(t)(ls[0].Lock(ctx, "held"))
	var c crowd
	var all sync.WaitGroup
	for _, l := range ls {
		c.join(ctx, t, &all, l, 8)
	}
	restarts := 0
	for range rounds {
		c.progress(t, 50)
		s.Restart()
		restarts++
	}
	c.progress(t, 50)
	if err := errors.Join(held.Err(), held.Check(ctx)); err != nil {
		t.Error(err)
	}
	cancel()
	all.Wait()
	unlock(t, held)
	t.Logf("%d restarts, %d acquisitions, %d calls failed, the longest gap was %v", restarts, c.served, c.failures, c.gap)
}

// A server that comes back empty has forgotten all leases: their holders know it
// soon, and fences grow all the same.
func TestChaosRestartsWithoutMemory(t *testing.T) {
	rounds := redistest.Rounds(t, 50)
	s := redistest.Start(t)
	l, other := open(t, s.Client(t), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{})
	var worst time.Duration
	var last int64
	restarts := 0
	for range rounds {
		restarts++
		redistest.Eventually(t, 10*time.Second, "the subscription stands", l.Hears)
		var held []*lock.Lease
		for i := range 50 {
			held = append(held, must(t)(l.Lock(t.Context(), fmt.Sprint(i))))
		}
		s.Restart()
		begin := time.Now()
		for _, lease := range held {
			select {
			case <-lease.Context().Done():
			case <-time.After(5 * time.Second):
				t.Fatal("a holder does not know")
			}
			if err := lease.Err(); !errors.Is(err, lock.ErrStateLost) {
				t.Error(err)
			}
		}
		worst = max(worst, time.Since(begin))
		next := must(t)(other.Lock(t.Context(), "0"))
		if next.Fence() <= max(last, held[0].Fence()) {
			t.Errorf("fence %d after %d", next.Fence(), held[0].Fence())
		}
		last = next.Fence()
		unlock(t, next)
	}
	t.Logf("%d restarts: holders knew %v after the server was back, at the worst", restarts, worst)
}

// Ten processes under one lock, each behind a link of its own: stopped for longer
// than their lease, killed, cut off. None believes to hold the lock when another
// has written under it, what comes late is refused by its fence, and the lock is
// free at the end.
func TestChaosProcesses(t *testing.T) {
	rounds := redistest.Rounds(t, 1000)
	s := redistest.Start(t)
	rdb := s.Client(t)
	const lease = 150 * time.Millisecond
	var links []*redistest.FaultProxy
	var workers []*redistest.ChildProcess
	start := func(i int) *redistest.ChildProcess {
		c := redistest.Child(t, "worker", links[i].Addr(), lease.String(), strconv.Itoa(i), "20")
		c.Expect("ready")
		return c
	}
	for i := range 10 {
		links = append(links, redistest.Proxy(t, s.Addr()))
		workers = append(workers, start(i))
	}
	l := open(t, s.Client(t), lock.Options{})
	faults := map[string]int{}
	for round := range rounds {
		i := rand.IntN(len(workers))
		if round%2 == 0 { // the one that holds the lock
			info, _ := l.Inspect(t.Context(), "a")
			if holder, err := strconv.Atoi(info.Label); err == nil {
				i = holder
			}
		}
		fault := []string{"stop", "kill", "cut off", "cut", "lose a reply"}[round%5]
		faults[fault]++
		switch fault {
		case "stop":
			workers[i].Stop()
			time.Sleep(lease + lease/2)
			workers[i].Cont()
		case "kill":
			workers[i].Kill()
			workers[i] = start(i)
		case "cut off":
			links[i].Blackhole(true)
			time.Sleep(lease + lease/2)
			links[i].Heal()
		case "cut":
			links[i].Cut()
		case "lose a reply":
			links[i].CutReplies(1, "EVALSHA")
		}
	}
	rdb.Set(t.Context(), "stop", 1, 0)
	for _, c := range workers {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	begin := time.Now()
	unlock(t, must(t)(l.Lock(t.Context(), "a")))
	free := time.Since(begin)
	refused, _ := rdb.HGet(t.Context(), "register", "refused").Int()
	writes, _ := rdb.HGet(t.Context(), "register", "writes").Int()
	t.Logf("%v: %d writes, %d refused; the lock was free after %v", faults, writes, refused, free)
	if refused == 0 || writes < 100 {
		t.Errorf("%d of %d writes refused: the faults did not strike", refused, writes)
	}
	rdb.Del(t.Context(), "stop", "register")
	lock.EveryKeyEnds(t, rdb)
}

// Wake-ups that are lost, because subscriptions are killed all the time and links
// break at the moment of the release, leave nobody waiting.
func TestChaosLostWakeUps(t *testing.T) {
	end := time.Now().Add(redistest.Long(t))
	s := redistest.Start(t)
	rdb := s.Client(t)
	p := redistest.Proxy(t, s.Addr())
	ls := []*lock.Locker{open(t, s.Client(t), lock.Options{}), open(t, p.Client(t, quick), lock.Options{}), open(t, p.Client(t, quick), lock.Options{StrictFIFO: true})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var c crowd
	var all sync.WaitGroup
	for _, l := range ls {
		c.join(ctx, t, &all, l, 10)
	}
	kills, blips := 0, 0
	for time.Now().Before(end) {
		c.progress(t, 20)
		switch rand.IntN(4) {
		case 0: // a link breaks for a moment
			p.Cut()
			p.Refuse(true)
			time.Sleep(60 * time.Millisecond)
			p.Refuse(false)
			blips++
		case 1:
			p.DropMessages(true)
			time.Sleep(60 * time.Millisecond)
			p.DropMessages(false)
		default:
			kills += int(rdb.ClientKillByFilter(ctx, "TYPE", "pubsub").Val())
		}
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
	}
	c.progress(t, 100)
	cancel()
	all.Wait()
	t.Logf("%d subscriptions killed, %d links broken: %d hand-offs, %d calls failed, the longest gap was %v", kills, blips, c.served, c.failures, c.gap)
}

// More and longer histories than TestHistoriesAreThoseOfAMutexWithFences has, four at
// a time, since they wait more than they work.
func TestChaosHistories(t *testing.T) {
	size := redistest.Rounds(t, 200)
	rounds := make(chan int)
	var n, total atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for round := range rounds {
				t.Run(fmt.Sprint(round), func(t *testing.T) {
					total.Add(int64(histories(t, 1, 350)))
					n.Add(1)
				})
			}
		})
	}
	for round := range size {
		rounds <- round
	}
	close(rounds)
	all.Wait()
	t.Logf("%d histories of %d operations in all", n.Load(), total.Load())
}
