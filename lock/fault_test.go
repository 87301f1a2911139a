package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// quick is a client that notices a lost reply soon, and then asks again.
func quick(o *redis.Options) { o.ReadTimeout = 250 * time.Millisecond }

// A holder that waited for a renewal to fail, instead of ending its context at its own
// deadline, would believe in the lock here when another has it.
func TestAPartitionedHolderKnowsBeforeTheLockIsGivenAway(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const lease = 300 * time.Millisecond
	other := open(t, s.Client(t), lock.Options{Lease: lease})
	lag := redistest.MeasureLag(t)
	for phase := range redistest.Pick(9, 45) {
		p := redistest.Proxy(t, s.Addr())
		l, err := lock.New(p.Client(t), lock.Options{Lease: lease})
		if err != nil {
			t.Fatal(err)
		}
		held := must(t)(reach(t.Context(), l, "a")) // on a busy machine an answer may take longer than the lease
		got := make(chan time.Time, 1)
		go func() {
			next, err := reach(context.Background(), other, "a")
			got <- time.Now()
			if err != nil {
				t.Error(err)
				return
			}
			_ = next.Unlock(context.Background())
		}()
		time.Sleep(time.Duration(phase%9) * lease / 8) // over a lease and its renewals
		cut := time.Now()
		p.Blackhole(true)
		<-held.Context().Done()
		ended := time.Now()
		at := <-got
		deadline := held.Deadline()
		if !deadline.Before(at) {
			t.Errorf("phase %d: the lease was to end %v after another had the lock", phase, deadline.Sub(at))
		}
		if late := ended.Sub(deadline); late > lag.Allow(50*time.Millisecond) {
			t.Errorf("phase %d: the context ended %v late", phase, late)
		}
		if took := at.Sub(cut); took > lag.Allow(lease+100*time.Millisecond) {
			t.Errorf("phase %d: the lock was free %v after the cut", phase, took)
		}
		if err := held.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrExpired) {
			t.Errorf("phase %d: %v", phase, err)
		}
		p.Heal()
		if err := held.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("phase %d: Unlock %v", phase, err)
		}
		_ = l.Close()
	}
}

// Every script may be repeated by the client. Without the owner's answer to a
// repeated acquire the lock is held by nobody here; without "again" and "past" a
// repeated release reports a loss that was none.
func TestALostReplyLosesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t, quick), lock.Options{Lease: 30 * time.Second})
	other := open(t, s.Client(t), lock.Options{Lease: 30 * time.Second})
	scripts := map[string]*redisconn.Script{"acquire": lock.AcquireScript, "release": lock.ReleaseScript, "renew": lock.RenewScript, "leave": lock.LeaveScript}
	for _, warm := range []*lock.Locker{l, other} {
		lease, err := warm.Lock(t.Context(), "warm")
		if err != nil {
			t.Fatal(err)
		}
		_ = lease.Unlock(t.Context())
	}
	var last int64
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			for round := range redistest.Pick(6, 1000) {
				lose := func() { p.DropReplies(1, "EVALSHA "+script.Hash()) }
				if round%2 == 1 {
					lose = func() { p.CutReplies(1, "EVALSHA "+script.Hash()) }
				}
				last = lostReply(t, l, other, name, last, lose)
			}
			p.Heal()
		})
	}
}

// lostReply takes a lock and gives it back, and somewhere on the way a reply is lost.
// It returns the fence.
func lostReply(t *testing.T, l, other *lock.Locker, name string, last int64, lose func()) int64 {
	t.Helper()
	lose()
	begin := time.Now()
	lease, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if took := time.Since(begin); took > slack { // its own first bid stood in its way
		t.Errorf("%s: Lock took %v", name, took)
	}
	// With somebody behind, the release is followed by another grant before it is repeated.
	turn := make(chan struct{})
	go func() {
		defer close(turn)
		if next, err := other.Lock(context.Background(), "a"); err == nil {
			_ = next.Unlock(context.Background())
		}
	}()
	switch name {
	case "renew":
		if err := lease.Check(t.Context()); err != nil {
			t.Errorf("%s: Check: %v", name, err)
		}
	case "leave":
		giveUp(t, l, other)
	}
	if lease.Fence() <= last {
		t.Errorf("%s: fence %d after %d", name, lease.Fence(), last)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Errorf("%s: Unlock: %v", name, err)
	}
	<-turn
	begin = time.Now()
	next, err := other.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > slack {
		t.Errorf("%s: an orphan for %v", name, took)
	}
	_ = next.Unlock(t.Context())
	return lease.Fence()
}

// giveUp waits for a moment, and sees that nobody of l stands in the queue then.
func giveUp(t *testing.T, l, other *lock.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if lease, err := l.Lock(ctx, "a"); err == nil {
		t.Error("a second holder")
		_ = lease.Unlock(t.Context())
	}
	redistest.Eventually(t, 20*time.Second, "it has left the queue", func() bool {
		info, err := other.Inspect(t.Context(), "a")
		return err == nil && info.Waiting <= 1 // the one behind
	})
}

// The work has been done, and Redis does not answer when the lock is given back. Catches an
// error by which the caller takes it for work that has not been done, and does it again.
func TestAnUnlockThatIsNotConfirmedDoesNotFailTheWork(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	var log redistest.Log
	l := open(t, p.Client(t, quick), lock.Options{Lease: time.Minute, Logger: log.Logger()})
	other := open(t, s.Client(t), lock.Options{})
	unlock(t, must(t)(l.Lock(t.Context(), "a")))
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	if err := l.Do(brief(), "a", func(context.Context, *lock.Lease) error { p.Blackhole(true); return nil }); err != nil {
		t.Errorf("Do: %v", err)
	}
	log.Await(t, "an Unlock was not confirmed")
	p.Heal()
	unlock(t, must(t)(other.Lock(t.Context(), "a")))
	ran, err := l.Once(brief(), "a", time.Minute, func(context.Context) error { p.Blackhole(true); return nil })
	if !ran || !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Once: %v, %v", ran, err)
	}
	p.Heal()
	if ran, err := other.Once(t.Context(), "a", time.Minute, nil); ran || err != nil {
		t.Errorf("Once, when Redis is back: %v, %v", ran, err)
	}
	failed := errors.New("it has failed")
	if _, err := l.Once(brief(), "b", time.Minute, func(context.Context) error { p.Blackhole(true); return failed }); !errors.Is(err, failed) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Once whose work fails: %v", err)
	}
	p.Heal()
}

// A caller that gives up while Redis is granting it the lock must not keep it.
func TestALockGrantedToNobodyIsGivenBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t, quick), lock.Options{Lease: time.Minute})
	other := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	warm, err := l.Lock(t.Context(), "warm")
	if err != nil {
		t.Fatal(err)
	}
	_ = warm.Unlock(t.Context())
	for range redistest.Pick(10, 200) {
		ctx, cancel := context.WithCancel(t.Context())
		held, release := p.HoldReply("EVALSHA " + lock.AcquireScript.Hash())
		go func() { <-held; cancel() }()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("got %v", err)
		}
		redistest.Eventually(t, 30*time.Second, "the lock is free, and no orphan", func() bool {
			lease, err := other.TryLock(t.Context(), "a")
			if err == nil {
				_ = lease.Unlock(t.Context())
			}
			return err == nil
		})
		release()
	}
}

// A leader's bid takes what the room was granted, and the leader gives up before it hears
// so. Catches a next leader that waits for a message, a second long: the lock is free.
func TestALeaderThatLeavesInTheMiddleOfItsBidHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l, other := open(t, p.Client(t, quick), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	lag := redistest.MeasureLag(t)
	for range redistest.Pick(3, 100) {
		gate := must(t)(other.Lock(t.Context(), "a"))
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := l.Lock(ctx, "a"); left <- err }()
		redistest.Eventually(t, 30*time.Second, "it waits", l.InQueue)
		held, release := p.HoldReply("EVALSHA " + lock.AcquireScript.Hash())
		unlock(t, gate)
		<-held
		got := make(chan *lock.Lease)
		go func() { got <- must(t)(l.Lock(t.Context(), "a")) }()
		redistest.Eventually(t, 30*time.Second, "another waits behind it", func() bool { return l.InRooms() == 2 })
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		begin := time.Now()
		next := <-got
		if took := time.Since(begin); took > lag.Allow(500*time.Millisecond) {
			t.Errorf("it took %v", took)
		}
		release()
		unlock(t, next)
	}
}

// The poll finds a grant whose news was lost.
func TestALostWakeUpCostsASecondAtMost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t), lock.Options{})
	other := open(t, s.Client(t), lock.Options{})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	lag := redistest.MeasureLag(t)
	for range redistest.Pick(2, 20) {
		gate, err := other.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		p.DropMessages(true)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if err := l.Do(t.Context(), "a", func(context.Context, *lock.Lease) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		redistest.Eventually(t, 20*time.Second, "they wait", func() bool {
			info, _ := other.Inspect(t.Context(), "a")
			return info.Waiting == 1
		})
		begin := time.Now()
		_ = gate.Unlock(t.Context())
		all.Wait()
		if took := time.Since(begin); took > lag.Allow(2300*time.Millisecond) {
			t.Errorf("two waiters took %v", took)
		}
		p.DropMessages(false)
	}
}

// Without a subscription a waiter polls, and is served.
func TestWithoutPubSubWaitersPoll(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctl := s.Client(t)
	if err := ctl.Do(t.Context(), "ACL", "SETUSER", "default", "-subscribe", "-publish", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	if err := ctl.Do(t.Context(), "ACL", "SETUSER", "default", "+publish", "&*").Err(); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, s.Client(t), lock.Options{}), open(t, s.Client(t), lock.Options{})
	gate, err := a.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		got <- b.Do(context.Background(), "a", func(context.Context, *lock.Lease) error { return nil })
	}()
	redistest.Eventually(t, 20*time.Second, "it waits", func() bool {
		info, _ := a.Inspect(t.Context(), "a")
		return info.Waiting == 1
	})
	lag, begin := redistest.MeasureLag(t), time.Now()
	_ = gate.Unlock(t.Context())
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > lag.Allow(500*time.Millisecond) { // with messages it may poll only once a second
		t.Errorf("it took %v", took)
	}
}

// Redis has forgotten everything: holders learn it as soon as the link is back,
// and fences still grow.
func TestARestartedRedisEndsTheLeasesItForgot(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	held, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	s.Restart()
	select {
	case <-held.Context().Done():
	case <-time.After(15 * time.Second): // it is to be renewed after 20
		t.Fatal("the holder does not know")
	}
	if err := held.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrStateLost) {
		t.Errorf("got %v", err)
	}
	next, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if next.Fence() <= held.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), held.Fence())
	}
	if err := held.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	if err := next.Check(t.Context()); err != nil {
		t.Errorf("the later holder: %v", err)
	}
	_ = next.Unlock(t.Context())
}

func TestARedisThatIsDownFailsTheCallerAndHoldsNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{})
	s.Stop()
	defer s.Cont()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > 2*time.Second { // the client itself goes on for longer
		t.Errorf("hung: held for %v", took)
	}
	s.Cont()
	s.Kill()
	if _, err := l.Lock(t.Context(), "a"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	s.Restart()
}

// A Redis that stands still for a second, because it forks or runs somebody's slow script, is
// waited for. Catches a Locker that asks once for a quarter of a second: beside three such
// stalls, of 9,000 locks some 90 Locks and 50 Unlocks failed.
func TestAServerThatStandsStillForASecondFailsNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, ctx := open(t, s.Client(t), lock.Options{Lease: time.Minute}), t.Context()
	one, two := must(t)(l.Lock(ctx, "held")), must(t)(l.Lock(ctx, "given back"))
	s.Stop()
	var all sync.WaitGroup
	for name, call := range map[string]func() error{
		"Lock":    func() error { _, err := l.Lock(ctx, "a"); return err },
		"TryLock": func() error { _, err := l.TryLock(ctx, "b"); return err },
		"Check":   func() error { return one.Check(ctx) },
		"Unlock":  func() error { return two.Unlock(ctx) },
		"Inspect": func() error { _, err := l.Inspect(ctx, "held"); return err },
	} {
		all.Go(func() {
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	time.Sleep(time.Second)
	s.Cont()
	all.Wait()
}

// One bid gets the lock for three readers, and too few replicas confirm it. Then Redis does not
// reply any more, so each release takes 5 s. Catches a leader that releases one share after the
// other before it hands out the errors: a reader whose context has ended waits for that.
func TestAReaderDoesNotWaitForTheReleaseOfOthers(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l, other := open(t, p.Client(t), lock.Options{Lease: time.Minute, Replicas: 1}), open(t, s.Client(t), lock.Options{})
	gate := must(t)(other.RW("a").Lock(t.Context()))
	leader, leaderLeaves := context.WithCancel(t.Context())
	reader, readersLeave := context.WithCancel(t.Context())
	done := make(chan error, 3)
	for i, ctx := range []context.Context{leader, reader, reader} {
		go func() { done <- giveBack(l.RW("a").RLock(ctx)) }()
		redistest.Eventually(t, 30*time.Second, "it waits in the queue", func() bool { return l.InRooms() == i+1 && l.InQueue() })
	}
	p.DropReplies(1000, "EVALSHA "+lock.ReleaseScript.Hash())
	unlock(t, gate)
	redistest.Eventually(t, 30*time.Second, "they are granted the lock", func() bool { return l.InRooms() == 0 })
	readersLeave()
	for range 2 {
		select {
		case err := <-done:
			if err == nil {
				t.Error("it was not refused")
			}
		case <-time.After(4 * time.Second):
			t.Fatal("a reader is still there")
		}
	}
	leaderLeaves()
	if err := <-done; !errors.Is(err, lock.ErrNotReplicated) {
		t.Errorf("the leader: %v", err)
	}
	p.Heal()
}

// A Locker that does not know whether it has attached a token attaches it once more, and finds
// its own locks: also the first of several, whose reply came. After that the token is used up.
func TestAnAttachWhoseReplyWasLostIsRepeated(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l, other := open(t, p.Client(t), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{})
	l.AskOnce()
	token, err := must(t)(other.LockAll(t.Context(), "a", "b")).Detach(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	renew := "EVALSHA " + lock.RenewScript.Hash()
	p.RewriteReplies(1, renew, func(reply []byte) []byte { return reply })
	held, goOn := p.HoldReply(renew)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-held; cancel() }()
	if _, err := l.Attach(ctx, token); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("without a reply: %v", err)
	}
	goOn()
	if _, err := other.Attach(t.Context(), token); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("another Locker: %v", err)
	}
	lease := must(t)(l.Attach(t.Context(), token))
	if err := lease.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := l.Attach(t.Context(), token); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("after its success: %v", err)
	}
	unlock(t, lease)
	if n := l.Kept(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

// The command of a Detach is delayed on its way, and its caller leaves. Both owners are released
// then. Catches that the command comes between the two: to Redis, the release of the new owner came
// too early and that of the old one too late, and nobody releases the lock for an hour.
func TestALateDetachKeepsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	l, other := open(t, rdb, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{})
	lease := must(t)(l.Lock(t.Context(), "a"))
	if err := lease.Check(t.Context()); err != nil { // loads the script
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	late := &lateDetach{t: t, leave: cancel, network: s.Client(t), second: make(chan struct{})}
	rdb.AddHook(late)
	if _, err := lease.Detach(ctx, time.Hour); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	late.arrive(t.Context())
	redistest.Eventually(t, 20*time.Second, "the lock is free", func() bool {
		free, err := other.TryLock(t.Context(), "a")
		return giveBack(free, err) == nil
	})
}

// A lateDetach is a hook that delays the command of a Detach until the new owner has been released
// and the old one has not, or until arrive.
type lateDetach struct {
	t       *testing.T
	leave   func()
	network *redis.Client
	second  chan struct{} // closed when the new owner has been released

	mu      sync.Mutex
	command []any // of the Detach
	heir    any
}

func (d *lateDetach) DialHook(next redis.DialHook) redis.DialHook { return next }
func (d *lateDetach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *lateDetach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if cmd.Name() != "evalsha" || args[1] != lock.RenewScript.Hash() && args[1] != lock.ReleaseScript.Hash() {
			return next(ctx, cmd)
		}
		d.mu.Lock()
		if d.command == nil && args[1] == lock.RenewScript.Hash() {
			d.command, d.heir = args, args[len(args)-1]
			d.mu.Unlock()
			d.leave()
			cmd.SetErr(context.DeadlineExceeded)
			return cmd.Err()
		}
		second := slices.Contains(args, d.heir)
		d.mu.Unlock()
		if !second {
			select {
			case <-d.second:
				d.arrive(ctx)
			case <-time.After(50 * time.Millisecond):
			}
			return next(ctx, cmd)
		}
		err := next(ctx, cmd)
		select {
		case <-d.second:
		default:
			close(d.second)
		}
		return err
	}
}

// arrive has the delayed command arrive.
func (d *lateDetach) arrive(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.network.Do(context.WithoutCancel(ctx), d.command...).Err(); err != nil {
		d.t.Error(err)
	}
}
