package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("name", i))
	}
	return all
}

// Catches a LockAll that asks for each of its locks, and raises their fences then.
func TestLockAllOfFreeLocksIsOneScript(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var acquired atomic.Int32
	l := open(t, s.Client(t), lock.Options{Label: "all", Hooks: lock.Hooks{Acquired: func(_ string, _ time.Duration, contended bool) {
		if !contended {
			acquired.Add(1)
		}
	}}})
	l.AskOnce()
	unlock(t, must(t)(l.LockAll(t.Context(), names(2)...))) // loads the scripts
	for _, n := range []int{2, 5, 128} {
		before, scripts, stats := acquired.Load(), s.Calls("evalsha"), l.Stats()
		lease := must(t)(l.LockAll(t.Context(), names(n)...))
		if got := s.Calls("evalsha") - scripts; got != 1 {
			t.Errorf("%d scripts for %d locks", got, n)
		}
		if now := l.Stats(); now.Held != n || now.Acquired-stats.Acquired != uint64(n) || now.Waits+now.Refused+now.Failed != 0 || now.Waiting != 0 || acquired.Load()-before != int32(n) {
			t.Errorf("%d locks: %+v, %d heard", n, now, acquired.Load()-before)
		}
		for _, name := range names(n) {
			if info, err := l.Inspect(t.Context(), name); err != nil || !info.Held || info.Fence != lease.Fence() || info.Label != "all" {
				t.Errorf("%s: %+v, %v, fence %d", name, info, err, lease.Fence())
			}
		}
		if err := lease.Check(t.Context()); err != nil {
			t.Error(err)
		}
		unlock(t, lease)
	}
	scripts := s.Calls("evalsha")
	lease := must(t)(l.LockAll(t.Context(), names(129)...)) // a server would serve nobody else for too long
	if got := s.Calls("evalsha") - scripts; got < 129 {
		t.Errorf("%d scripts for 129 locks", got)
	}
	unlock(t, lease)
	lock.EveryKeyEnds(t, s.Client(t))
}

// Those who take several at once, one by one and one alone meet at the same locks: nobody
// has what another has, fences grow, and no two wait for each other.
func TestTogetherAndOneByOneExcludeEachOther(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ls := []*lock.Locker{s.open(t, lock.Options{}), s.open(t, lock.Options{}), s.open(t, lock.Options{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		const n = 6
		var inside [n]atomic.Int32
		var fences [n]int64
		var all sync.WaitGroup
		for i := range 9 {
			all.Go(func() {
				for range redistest.Pick(30, 1000) {
					wanted := rand.Perm(n)[:1+rand.IntN(4)]
					var of []string
					for _, k := range wanted {
						of = append(of, fmt.Sprint("name", k))
					}
					lease, err := ls[i%len(ls)].LockAll(ctx, of...)
					if err != nil {
						t.Error(err)
						return
					}
					for _, k := range wanted {
						if got := inside[k].Add(1); got != 1 {
							t.Errorf("%d have lock %d", got, k)
						}
						if lease.Fence() <= fences[k] {
							t.Errorf("lock %d: fence %d after %d", k, lease.Fence(), fences[k])
						}
						fences[k] = lease.Fence()
					}
					for _, k := range wanted {
						inside[k].Add(-1)
					}
					unlock(t, lease)
					time.Sleep(rand.N(2 * time.Millisecond)) // so that some find all free
				}
			})
		}
		all.Wait()
		for _, l := range ls {
			redistest.Eventually(t, 30*time.Second, "nothing is kept", func() bool { return l.Kept() == 0 })
		}
	})
}

// A server that loses a reply, or the connection, is asked again by the same owners.
func TestALostReplyOfLockAllLosesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l, other := open(t, p.Client(t, quick), lock.Options{Lease: 30 * time.Second}), open(t, s.Client(t), lock.Options{Lease: 30 * time.Second})
	unlock(t, must(t)(l.LockAll(t.Context(), "a", "b", "c")))
	var last int64
	for round := range redistest.Pick(10, 1000) {
		command := "EVALSHA " + lock.AcquireAllScript.Hash()
		if round%2 == 0 {
			p.DropReplies(1, command)
		} else {
			p.CutReplies(1, command)
		}
		begin := time.Now()
		lease := inTime(t, func() (*lock.Lease, error) { return l.LockAll(t.Context(), "a", "b", "c") })
		if took := time.Since(begin); took > slack { // its own first bid stood in its way
			t.Errorf("it took %v", took)
		}
		if lease.Fence() <= last {
			t.Errorf("fence %d after %d", lease.Fence(), last)
		}
		last = lease.Fence()
		if err := lease.Check(t.Context()); err != nil {
			t.Error(err)
		}
		unlock(t, lease)
		begin = time.Now()
		unlock(t, must(t)(other.LockAll(t.Context(), "c", "a")), must(t)(other.Lock(t.Context(), "b")))
		if took := time.Since(begin); took > slack {
			t.Errorf("orphans for %v", took)
		}
	}
}

// A caller that gives up while Redis is granting it its locks must keep none of them.
func TestLocksGrantedToNobodyAreGivenBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l, other := open(t, p.Client(t, quick), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	unlock(t, must(t)(l.LockAll(t.Context(), "a", "b")))
	for range redistest.Pick(10, 200) {
		ctx, cancel := context.WithCancel(t.Context())
		held, release := p.HoldReply("EVALSHA " + lock.AcquireAllScript.Hash())
		go func() { <-held; cancel() }()
		if _, err := l.LockAll(ctx, "a", "b"); !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("got %v", err)
		}
		redistest.Eventually(t, 30*time.Second, "the locks are free, and no orphans", func() bool { return lockBoth(other) == nil })
		release()
	}
	redistest.Eventually(t, 30*time.Second, "nothing is kept", func() bool { return l.Kept() == 0 })
}

// The refusal of a bid for several has come and gone, and others have had each of the locks
// since. Then the bid arrives and is granted all of them, for nobody, for a minute.
func TestWhatALateBidForSeveralGetsIsGivenBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, tap := tapped(t, s)
	l, other := open(t, rdb, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	goOn := make(chan struct{})
	tap.holds = goOn
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.LockAll(short, "a", "b"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Fatalf("got %v", err)
	}
	for _, name := range []string{"a", "b"} {
		redistest.Eventually(t, 20*time.Second, "its owner is refused", func() bool {
			return rdb.HGet(t.Context(), keys.Lock("", keys.Mutex, name)[0], "lr").Val() != ""
		})
	}
	if err := lockBoth(other); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if said := <-tap.reply; len(said) == 0 || said[0] != "granted" {
		t.Fatalf("the late bid is answered %v", said)
	}
	redistest.Eventually(t, 30*time.Second, "the locks are free", func() bool { return lockBoth(other) == nil })
}

// A value of another kind, and a server without memory, stop the script before it has taken
// any of the locks.
func TestLockAllOfWhatCannotBeTakenTakesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l := open(t, s.Client(t), lock.Options{})
	unlock(t, must(t)(l.LockAll(ctx, "x", "y")))
	rdb.Set(ctx, keys.Lock("", keys.Mutex, "c")[0], "not a lock", time.Minute)
	before := dump(t, rdb)
	if _, err := l.LockAll(ctx, "a", "b", "c"); !errors.Is(err, lock.ErrConflict) {
		t.Errorf("got %v", err)
	}
	if after := dump(t, rdb); after != before {
		t.Errorf("%s became %s", before, after)
	}
	if now := l.Stats(); now.Failed != 1 || now.Held != 0 {
		t.Errorf("%+v", now)
	}
	rdb.ConfigSet(ctx, "maxmemory", "1mb")
	if _, err := l.LockAll(ctx, "a", "b"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if after := dump(t, rdb); after != before {
		t.Errorf("%s became %s", before, after)
	}
	rdb.ConfigSet(ctx, "maxmemory", "0")
	redistest.Eventually(t, 30*time.Second, "they can be taken", func() bool { return lockBoth(l) == nil })
}

// A user of Redis who may touch these keys alone takes them together: each is declared.
func TestLockAllTouchesNoKeyThatItDoesNotName(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	if err := s.Client(t).Do(t.Context(), "ACL", "SETUSER", "shop", "on", ">x", "resetkeys", "~levee:l1:m:{[ab]}*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	l := open(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "shop", "x" }), lock.Options{})
	l.AskOnce()
	unlock(t, must(t)(l.LockAll(t.Context(), "a", "b")))
	scripts := s.Calls("evalsha")
	lease := must(t)(l.LockAll(t.Context(), "a", "b"))
	if got := s.Calls("evalsha") - scripts; got != 1 {
		t.Errorf("%d scripts", got)
	}
	unlock(t, lease)
	if _, err := l.LockAll(t.Context(), "a", "c"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestLockAllIsConfirmedByReplicasInOneRoundTrip(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 "+s.Addr()[len("127.0.0.1:"):])
	ctl := s.Client(t, func(o *redis.Options) { o.PoolSize = 1 }) // WAIT counts what its connection wrote
	redistest.Eventually(t, 20*time.Second, "the replica follows", func() bool {
		ctl.Set(t.Context(), "x", "y", 0)
		return ctl.Wait(t.Context(), 1, 50*time.Millisecond).Val() == 1
	})
	l := open(t, s.Client(t), lock.Options{Replicas: 1, ReplicaTimeout: time.Second})
	unlock(t, must(t)(l.LockAll(t.Context(), "a", "b", "c")))
	waits, scripts := s.Calls("wait"), s.Calls("evalsha")
	lease := must(t)(l.LockAll(t.Context(), "a", "b", "c"))
	if waits, scripts := s.Calls("wait")-waits, s.Calls("evalsha")-scripts; waits != 1 || scripts != 1 {
		t.Errorf("%d WAIT, %d scripts", waits, scripts)
	}
	unlock(t, lease)
	replica.Stop()
	defer replica.Cont()
	if _, err := l.LockAll(t.Context(), "a", "b", "c"); !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if info, err := l.Inspect(t.Context(), name); err != nil || info.Held {
			t.Errorf("%s, which was not confirmed: %+v, %v", name, info, err)
		}
	}
	if n := l.Kept(); n != 0 {
		t.Errorf("%d things are kept", n)
	}
}

// In a cluster a script has keys of one slot: locks that share one are taken together, others
// one by one.
func TestLockAllOnAClusterAsksOnceForWhatSharesASlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	l := open(t, cluster.Client(t), lock.Options{})
	rdb := cluster.Client(t)
	record := func(name string) string { return keys.Lock("", keys.Mutex, name)[0] }
	one := []string{"a{}"}
	for i := 0; len(one) < 3; i++ {
		if name := fmt.Sprint("name", i); keys.LocksShareSlot([]string{record(name), record(one[0])}) {
			one = append(one, name)
		}
	}
	for _, name := range one[1:] {
		if of, want := rdb.ClusterKeySlot(t.Context(), record(name)).Val(), rdb.ClusterKeySlot(t.Context(), record(one[0])).Val(); of != want {
			t.Errorf("%s is in slot %d, not in %d", name, of, want)
		}
	}
	scripts := func() (n int64) {
		for _, node := range cluster.Nodes {
			n += node.Calls("evalsha")
		}
		return n
	}
	for _, test := range []struct {
		names []string
		want  func(n int64) bool
	}{
		{one, func(n int64) bool { return n == 1 }},
		{append(names(2), one[0]), func(n int64) bool { return n >= 3 && n <= 5 }}, // three, and their fences
	} {
		unlock(t, must(t)(l.LockAll(t.Context(), test.names...)))
		before := scripts()
		lease := must(t)(l.LockAll(t.Context(), test.names...))
		if got := scripts() - before; !test.want(got) {
			t.Errorf("%q: %d scripts", test.names, got)
		}
		for _, name := range test.names {
			if info, err := l.Inspect(t.Context(), name); err != nil || info.Fence != lease.Fence() {
				t.Errorf("%q: %+v, %v, fence %d", name, info, err, lease.Fence())
			}
		}
		unlock(t, lease)
	}
}

// A proxy may hide that it is in front of a cluster, and refuse a script whose keys are in
// several slots. This is a client of one node that has all slots.
func TestLockAllThroughAProxyOfAClusterGoesOneByOne(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := s.Client(t)
	if err := rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "it serves", func() bool { return rdb.Set(t.Context(), "x", "y", time.Second).Err() == nil })
	l := open(t, s.Client(t), lock.Options{})
	lease := must(t)(l.LockAll(t.Context(), names(5)...))
	for _, name := range names(5) {
		if info, err := l.Inspect(t.Context(), name); err != nil || !info.Held || info.Fence != lease.Fence() {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	unlock(t, lease)
	if now := l.Stats(); now.Acquired != 5 || now.Failed != 0 {
		t.Errorf("%+v", now)
	}
}
