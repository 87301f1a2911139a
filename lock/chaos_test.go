package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A crowd contends for one lock for as long as its test wants, and sees to it that
// there is one holder at a time and that fences grow.
type crowd struct {
	inside   atomic.Int32
	mu       sync.Mutex
	last     int64 // fence
	served   int
	since    time.Time // of the last service
	gap      time.Duration
	failures int
}

// join has n goroutines contend until ctx ends.
func (c *crowd) join(ctx context.Context, t *testing.T, all *sync.WaitGroup, l *Locker, n int) {
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				err := l.Do(ctx, "crowd", func(held context.Context, s *Lease) error {
					c.enter(t, s)
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					c.inside.Add(-1)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					c.fail(t, err)
				}
			}
		})
	}
}

func (c *crowd) enter(t *testing.T, s *Lease) {
	if n := c.inside.Add(1); n != 1 {
		t.Errorf("%d holders at a time", n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Fence() <= c.last {
		t.Errorf("fence %d after %d", s.Fence(), c.last)
	}
	now := time.Now()
	if !c.since.IsZero() {
		c.gap = max(c.gap, now.Sub(c.since))
	}
	c.last, c.since = s.Fence(), now
	c.served++
}

// fail takes an error of the lock: a server that is not there may be told of, a
// lease that was lost may not.
func (c *crowd) fail(t *testing.T, err error) {
	if errors.Is(err, ErrLost) || !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotReplicated) {
		t.Errorf("the crowd: %v", err)
	}
	c.mu.Lock()
	c.failures++
	c.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
}

// progress waits until the crowd has been served so many times more.
func (c *crowd) progress(t *testing.T, n int) {
	t.Helper()
	count := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.served }
	from := count()
	redistest.Eventually(t, 30*time.Second, "the crowd is served", func() bool { return count() >= from+n })
}

// Locks that a replica has confirmed survive a failover, the others may not; fences
// grow across it, and everybody who waits comes through.
func TestChaosSentinelFailovers(t *testing.T) {
	end := time.Now().Add(redistest.Long(t))
	set := redistest.Sentinel(t)
	client := func() *redis.Client {
		return set.Client(t, func(o *redis.FailoverOptions) { o.MaxRetries = 2; o.DialTimeout = 500 * time.Millisecond })
	}
	ctx := t.Context()
	opts := Options{Replicas: 1, ReplicaTimeout: 500 * time.Millisecond, Lease: 30 * time.Second}
	a, b := open(t, client(), opts), open(t, client(), opts)
	alone := b.With(Options{Lease: 30 * time.Second}) // while there is one server no confirmation can come
	var worst time.Duration
	rounds, forgotten := 0, 0
	for ; rounds == 0 || time.Now().Before(end); rounds++ {
		var held []*Lease
		for i := range 20 {
			held = append(held, must(t)(a.Lock(ctx, fmt.Sprint("held", i))))
		}
		loose := must(t)(alone.Lock(ctx, "loose"))
		granted := make(chan *Lease, 1)
		go func() {
			lease, err := alone.Lock(context.Background(), "held0")
			for errors.Is(err, ErrUnavailable) {
				lease, err = alone.Lock(context.Background(), "held0")
			}
			if err != nil {
				t.Error(err)
			}
			granted <- lease
		}()
		waiting(t, b, keys.Mutex, "held0", 1)
		old := set.KillMaster()
		now := set.Promoted(old)
		for i, lease := range held {
			var err error
			redistest.Eventually(t, 20*time.Second, "the new master answers", func() bool {
				err = lease.Check(ctx)
				return err == nil || errors.Is(err, ErrLost)
			})
			if err != nil {
				t.Errorf("round %d: confirmed lock %d: %v", rounds, i, err)
			}
		}
		freed := time.Now()
		unlock(t, held...)
		select {
		case next := <-granted:
			if next.Fence() <= held[0].Fence() {
				t.Errorf("round %d: fence %d after %d", rounds, next.Fence(), held[0].Fence())
			}
			worst = max(worst, time.Since(freed))
			unlock(t, next)
		case <-time.After(20 * time.Second):
			t.Fatal("the waiter is stuck")
		}
		if err := loose.Unlock(ctx); err != nil {
			forgotten++
		}
		rejoin(t, old, now)
	}
	t.Logf("%d failovers, 20 confirmed locks each: none lost; of unconfirmed ones %d; a waiter had its lock %v after it was free", rounds, forgotten, worst)
}

// rejoin brings a server back as a replica, without waiting for the sentinels to
// notice that it should be one.
func rejoin(t *testing.T, old, master *redistest.Server) {
	t.Helper()
	old.Restart()
	rdb := old.Client(t)
	port := master.Addr()[strings.LastIndexByte(master.Addr(), ':')+1:]
	rdb.Do(t.Context(), "REPLICAOF", "127.0.0.1", port)
	redistest.Eventually(t, 30*time.Second, "the replica follows", func() bool {
		return strings.Contains(rdb.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	time.Sleep(10 * time.Second) // sentinels do not fail over twice within this time
}

// With an append-only file that is written before each answer, a crash of the
// server loses no lock: a holder keeps his, and nobody gets one twice.
func TestChaosRestartsWithAnAppendOnlyFile(t *testing.T) {
	end := time.Now().Add(redistest.Long(t))
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := must(t)(ls[0].Lock(ctx, "held"))
	var c crowd
	var all sync.WaitGroup
	for _, l := range ls {
		c.join(ctx, t, &all, l, 8)
	}
	restarts := 0
	for ; restarts == 0 || time.Now().Before(end); restarts++ {
		c.progress(t, 50)
		s.Restart()
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
	end := time.Now().Add(redistest.Long(t))
	s := redistest.Start(t)
	l, other := open(t, s.Client(t), Options{Lease: time.Minute}), open(t, s.Client(t), Options{})
	var worst time.Duration
	var last int64
	restarts := 0
	for ; restarts == 0 || time.Now().Before(end); restarts++ {
		redistest.Eventually(t, 10*time.Second, "the subscription stands", l.c.push)
		var held []*Lease
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
			if err := lease.Err(); !errors.Is(err, ErrStateLost) {
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
	end := time.Now().Add(redistest.Long(t))
	s := redistest.Start(t)
	rdb := s.Client(t)
	const lease = 150 * time.Millisecond
	var links []*redistest.FaultProxy
	var workers []*redistest.ChildProcess
	start := func(i int) *redistest.ChildProcess {
		c := redistest.Child(t, "worker", links[i].Addr(), lease.String(), strconv.Itoa(i))
		c.Expect("ready")
		return c
	}
	for i := range 10 {
		links = append(links, redistest.Proxy(t, s.Addr()))
		workers = append(workers, start(i))
	}
	l := open(t, s.Client(t), Options{})
	faults := map[string]int{}
	for time.Now().Before(end) {
		i := rand.IntN(len(workers))
		if rand.IntN(2) == 0 { // rather the one that holds the lock
			info, _ := l.Inspect(t.Context(), "a")
			if holder, err := strconv.Atoi(info.Label); err == nil {
				i = holder
			}
		}
		fault := []string{"stop", "stop", "kill", "cut off", "cut", "lose a reply"}[rand.IntN(6)]
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
	everyKeyEnds(t, rdb)
}

// Wake-ups that are lost, because subscriptions are killed all the time and links
// break at the moment of the release, leave nobody waiting.
func TestChaosLostWakeUps(t *testing.T) {
	end := time.Now().Add(redistest.Long(t))
	s := redistest.Start(t)
	rdb := s.Client(t)
	p := redistest.Proxy(t, s.Addr())
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, p.Client(t, quick), Options{}), open(t, p.Client(t, quick), Options{StrictFIFO: true})}
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

// More and longer histories than TestHistoriesAreThoseOfAMutexWithFences has.
func TestChaosHistories(t *testing.T) {
	end := time.Now().Add(redistest.Long(t))
	n := 0
	for ; n == 0 || time.Now().Before(end); n++ {
		histories(t, 1, 300)
	}
	t.Logf("%d histories of %d operations", n, 8*300*2)
}
