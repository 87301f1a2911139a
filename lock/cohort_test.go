package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A turn is one caller's who had the lock.
type turn struct {
	who   string
	fence int64
}

// young is the age of a grant that Redis gives in a minute: it may be passed on, however slow the
// machine is, and no turn ends by the 50 ms that it may last.
const young = -time.Minute

// A line is a crowd of callers of several processes whose turns are noted.
type line struct {
	t     *testing.T
	mu    sync.Mutex // not the lock under test: a lock that failed would show as two turns at a time
	turns []turn
	all   sync.WaitGroup
}

// stand has n callers wait for the lock a, and returns when they do.
func (w *line) stand(who string, l *lock.Locker, n int) {
	w.t.Helper()
	before := l.InRooms()
	for range n {
		w.all.Go(func() {
			err := l.Do(context.Background(), "a", func(_ context.Context, lease *lock.Lease) error {
				if !w.mu.TryLock() {
					w.t.Error("two holders")
					return nil
				}
				defer w.mu.Unlock()
				w.turns = append(w.turns, turn{who, lease.Fence()})
				return nil
			})
			if err != nil {
				w.t.Errorf("%s: %v", who, err)
			}
		})
	}
	redistest.Eventually(w.t, 30*time.Second, fmt.Sprint(n, " of ", who, " wait in the queue"), func() bool {
		return l.InRooms() == before+n && l.Parked("a")
	})
}

// wait waits for all turns, sees that their fences grow, and returns whose they were.
func (w *line) wait() (order []string) {
	w.t.Helper()
	w.all.Wait()
	for i, turn := range w.turns {
		order = append(order, turn.who)
		if i > 0 && turn.fence <= w.turns[i-1].fence {
			w.t.Errorf("turn %d: fence %d after %d", i, turn.fence, w.turns[i-1].fence)
		}
	}
	return order
}

// Waiters of one process cost Redis nothing while one hands the lock to the next: 16 callers
// are one grant and one release. Each has a fence of its own, and the order is that in which
// they came.
func TestALockIsPassedOnWithinItsProcess(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{Lease: time.Minute})
		l.AskOnce()
		redistest.Eventually(t, 30*time.Second, "the subscription stands, and nobody asks again", l.Hears)
		gate := must(t)(l.Lock(t.Context(), "a"))
		w := &line{t: t}
		w.stand("one", l, 15)
		gate.Age(young)
		before := s.scripts()
		unlock(t, gate)
		w.wait()
		for i, turn := range w.turns {
			if want := gate.Fence() + int64(i) + 1; turn.fence != want {
				t.Errorf("turn %d has fence %d, want %d", i, turn.fence, want)
			}
		}
		// One release by the last of them; their entry leaves the queue beside it, and the leader
		// may have asked once in the meantime.
		if n := s.scripts() - before; n > 3 {
			t.Errorf("%d scripts for 15 callers", n)
		}
	})
}

// A process whose callers come again and again would keep the lock for ever, were its turn
// not bounded: another process that waits has it after 16 callers, or after 50 ms. If that one
// came after the waiters, they have the turn of their own place first.
func TestACohortEndsForOtherProcesses(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		one, two := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{Lease: time.Minute})
		for _, test := range []struct {
			name  string
			age   time.Duration
			last  bool // the other process came last
			first int
		}{
			{"the bound of callers", young, false, 15},
			{"the bound of time", 51 * time.Millisecond, false, 0},
			{"both turns of those who came first", young, true, 15 + 16},
		} {
			gate := must(t)(one.Lock(t.Context(), "a"))
			w := &line{t: t}
			if !test.last {
				w.stand("two", two, 1)
			}
			w.stand("one", one, 60)
			if test.last {
				w.stand("two", two, 1)
			}
			gate.Age(test.age)
			unlock(t, gate)
			order := w.wait()
			if n := slices.Index(order, "two"); n > test.first || test.age > 0 && n != 0 {
				t.Errorf("%s: the other process had its turn after %d", test.name, n)
			}
		}
	})
}

// Options with which a lease is one caller's alone keep it from being passed on.
func TestOptionsThatKeepALockFromBeingPassedOn(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	redistest.Start(t, "--replicaof", strings.Replace(s.Addr(), ":", " ", 1))
	redistest.Eventually(t, 30*time.Second, "the replica follows", func() bool {
		return strings.Contains(s.Client(t).Info(t.Context(), "replication").Val(), "state=online")
	})
	two := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	for name, o := range map[string]lock.Options{
		"Replicas":   {Lease: time.Minute, Replicas: 1, ReplicaTimeout: 3 * time.Second},
		"StrictFIFO": {Lease: time.Minute, StrictFIFO: true},
		"NoRenewal":  {Lease: time.Minute, NoRenewal: true},
		"MaxHold":    {Lease: time.Minute, MaxHold: time.Hour},
	} {
		plain := open(t, s.Client(t), lock.Options{Lease: time.Minute})
		for _, side := range []struct {
			name           string
			holder, waiter *lock.Locker
		}{{"the holder's", plain.With(o), plain}, {"the waiter's", plain, plain.With(o)}, {"both's", plain.With(o), plain.With(o)}} {
			gate := must(t)(side.holder.Lock(t.Context(), "a"))
			w := &line{t: t}
			w.stand("two", two, 1)
			w.all.Go(func() {
				if lease, err := side.waiter.Lock(context.Background(), "a"); err != nil {
					t.Error(err)
				} else {
					w.mu.Lock()
					w.turns = append(w.turns, turn{"one", lease.Fence()})
					w.mu.Unlock()
					unlock(t, lease)
				}
			})
			waiting(t, plain, keys.Mutex, "a", 2)
			gate.Age(young)
			unlock(t, gate)
			if order := w.wait(); !slices.Equal(order, []string{"two", "one"}) {
				t.Errorf("%s %s: %v", side.name, name, order)
			}
		}
	}
}

// Work of Once and a writer's lock go back to Redis each time: the next may be readers, or
// those for whom the work is done.
func TestOtherKindsAreNotPassedOn(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		failed := errors.New("so that the next one does the work")
		for name, kind := range map[string]struct {
			kind keys.LockKind
			run  func(l *lock.Locker, fn func()) error
		}{
			"once": {keys.Once, func(l *lock.Locker, fn func()) error {
				_, err := l.Once(context.Background(), "a", time.Minute, func(context.Context) error { fn(); return failed })
				if errors.Is(err, failed) {
					return nil
				}
				return err
			}},
			"write": {keys.ReadWrite, func(l *lock.Locker, fn func()) error {
				lease, err := l.RW("a").Lock(context.Background())
				if err != nil {
					return err
				}
				fn()
				return lease.Unlock(context.Background())
			}},
		} {
			one, two := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{Lease: time.Minute})
			redistest.Eventually(t, 30*time.Second, "the subscriptions stand", func() bool { return one.Hears() && two.Hears() })
			var all sync.WaitGroup
			start := func(l *lock.Locker, fn func()) {
				all.Go(func() {
					if err := kind.run(l, fn); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			held, goOn, turns := make(chan struct{}), make(chan struct{}), make(chan string, 2)
			start(one, func() { close(held); <-goOn; one.Age(young) })
			<-held
			start(two, func() { turns <- "two" })
			waiting(t, one, kind.kind, "a", 1)
			start(one, func() { turns <- "one" })
			waiting(t, one, kind.kind, "a", 2)
			close(goOn)
			all.Wait()
			if first := <-turns; first != "two" {
				t.Errorf("%s: it was passed on", name)
			}
		}
	})
}

// A lease that was passed on is like any other: it can be looked at, entered again and handed
// over, and nobody else of its process has it meanwhile.
func TestALeaseThatWasPassedOnIsAWholeOne(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		ctx := t.Context()
		l, other := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{Lease: time.Minute})
		redistest.Eventually(t, 30*time.Second, "the subscription stands, and nobody asks again", l.Hears)
		gate := must(t)(l.Lock(ctx, "a"))
		got := make(chan *lock.Lease)
		for i := range 2 {
			go func() { got <- must(t)(l.Lock(context.Background(), "a")) }()
			redistest.Eventually(t, 30*time.Second, "it waits", func() bool { return l.InRooms() == i+1 && l.Parked("a") })
		}
		gate.Age(young)
		unlock(t, gate)
		second := <-got
		if err := second.Check(ctx); err != nil || second.Fence() != gate.Fence()+1 {
			t.Fatalf("fence %d after %d, %v", second.Fence(), gate.Fence(), err)
		}
		inner := must(t)(second.Reenter())
		unlock(t, second)
		if err := inner.Check(ctx); err != nil || l.InRooms() != 1 {
			t.Fatalf("another handle: %v, %d wait", err, l.InRooms())
		}
		l.Age(young)
		unlock(t, inner)
		third := <-got
		if third.Fence() != gate.Fence()+2 {
			t.Fatalf("fence %d after %d", third.Fence(), inner.Fence())
		}
		token, err := third.Detach(ctx, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		attached := must(t)(other.Attach(ctx, token))
		if attached.Fence() != third.Fence() {
			t.Errorf("attached with fence %d, detached with %d", attached.Fence(), third.Fence())
		}
		unlock(t, attached)
		next := must(t)(l.Lock(ctx, "a"))
		if next.Fence() < gate.Fence()+16 {
			t.Errorf("fence %d after a grant with %d", next.Fence(), gate.Fence())
		}
		unlock(t, next)
	})
}

// The lease of a cohort ends in Redis, and another has the lock before the cohort's holder
// hears of it. Its fence is lower than the other's, also the last that it could have passed on,
// and what it does harms nobody.
func TestAHolderOfACohortThatWasTakenOverHarmsNobody(t *testing.T) {
	t.Parallel()
	s, ctx := redistest.Start(t), t.Context()
	l, other := open(t, s.Client(t), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nobody asks again", l.Hears)
	for name, ask := range map[string]func(*lock.Lease) error{
		"Check":  func(held *lock.Lease) error { return held.Check(ctx) },
		"Detach": func(held *lock.Lease) error { _, err := held.Detach(ctx, time.Minute); return err },
	} {
		gate := must(t)(l.Lock(ctx, "a"))
		got := make(chan *lock.Lease)
		go func() { got <- must(t)(l.Lock(context.Background(), "a")) }()
		redistest.Eventually(t, 30*time.Second, "it waits", func() bool { return l.Parked("a") })
		gate.Age(young)
		unlock(t, gate)
		held := <-got
		s.Client(t).HSet(ctx, keys.Lock("", keys.Mutex, "a")[0], "x", 1)
		next := must(t)(other.Lock(ctx, "a"))
		if held.Fence() != gate.Fence()+1 || next.Fence() < gate.Fence()+16 {
			t.Errorf("%s: fences %d, %d, %d", name, gate.Fence(), held.Fence(), next.Fence())
		}
		if err := ask(held); !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
		_ = held.Unlock(ctx)
		if err := next.Check(ctx); err != nil {
			t.Errorf("%s: the next holder: %v", name, err)
		}
		unlock(t, next)
	}
}

// A lease that was lost, or that has little time left, goes back to Redis and is not passed
// on: its next holder would have the lock beside another's.
func TestALostLeaseIsNotPassedOn(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const lease = time.Minute
	l := open(t, s.Client(t), lock.Options{Lease: lease})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is renewed", l.Hears)
	for name, left := range map[string]time.Duration{"expired": -time.Millisecond, "short": lease/3 - time.Second} {
		gate := must(t)(l.Lock(t.Context(), "a"))
		w := &line{t: t}
		w.stand("one", l, 1)
		gate.Age(young)
		redistest.Eventually(t, 30*time.Second, "no renewal is on its way", func() bool { return !gate.IsRenewing() })
		gate.Shift(func(time.Time) time.Time { return time.Now().Add(left) })
		releases := s.Calls("evalsha")
		if err := gate.Unlock(t.Context()); (left > 0) != (err == nil) || err != nil && !errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
		w.wait()
		if s.Calls("evalsha") < releases+3 { // release, claim, release
			t.Errorf("%s: it was passed on", name)
		}
	}
}

// When Redis has forgotten the lock, the caller hears of it who has it now: the renewal that
// finds it out may be one that the first of the cohort has begun.
func TestALossReachesTheCallerThatTheLockWasPassedTo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, s.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is checked again", l.Hears)
	gate := must(t)(l.Lock(t.Context(), "a"))
	got := make(chan *lock.Lease)
	go func() { got <- must(t)(l.Lock(context.Background(), "a")) }()
	redistest.Eventually(t, 30*time.Second, "it waits", func() bool { return l.Parked("a") })
	gate.Age(young)
	unlock(t, gate)
	second := <-got
	if second.Fence() != gate.Fence()+1 {
		t.Fatal("it was not passed on")
	}
	s.Client(t).FlushAll(t.Context())
	l.RenewAll()
	<-second.Context().Done()
	if err := second.Unlock(t.Context()); !errors.Is(err, lock.ErrStateLost) {
		t.Error(err)
	}
}

// A renewal that was on its way when the lock was passed on is another's: the lease of the
// caller who has it now is renewed again. Catches a grant that waits for that answer for ever.
func TestALeaseThatWasPassedOnDuringARenewalIsRenewed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nobody asks again", l.Hears)
	gate := must(t)(l.Lock(t.Context(), "a"))
	got := make(chan *lock.Lease)
	go func() { got <- must(t)(l.Lock(context.Background(), "a")) }()
	redistest.Eventually(t, 30*time.Second, "it waits", func() bool { return l.Parked("a") })
	held, release := p.HoldReply("EVALSHA " + lock.RenewScript.Hash())
	l.RenewAll()
	<-held
	gate.Age(young)
	unlock(t, gate)
	second := <-got
	if second.Fence() != gate.Fence()+1 {
		t.Fatal("it was not passed on")
	}
	before := second.Deadline()
	release()
	redistest.Eventually(t, 30*time.Second, "it is renewed", func() bool { return second.Deadline().After(before) })
	unlock(t, second)
}

// Redis keeps a grant's fences free, also when its clock does not help: after a step back the
// next fence is made of the last one. Catches a grant that owns one fence and passes on more.
func TestFencesOfACohortGrowWhenTheServersClockStepsBack(t *testing.T) {
	fences := func(t *testing.T) (turns []turn) {
		s, shift := redistest.StartShifted(t)
		one, two := open(t, s.Client(t), lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
		unlock(t, must(t)(one.Lock(t.Context(), "a")))
		shift(-time.Hour)
		gate := must(t)(one.Lock(t.Context(), "a"))
		w := &line{t: t}
		w.stand("one", one, 40)
		w.stand("two", two, 1)
		gate.Age(young)
		unlock(t, gate)
		w.all.Wait()
		return w.turns
	}
	grow := func(turns []turn) bool {
		return slices.IsSortedFunc(turns, func(a, b turn) int { return int(a.fence - b.fence) })
	}
	t.Run("as it is", func(t *testing.T) {
		if turns := fences(t); !grow(turns) {
			t.Errorf("%v", turns)
		}
	})
	t.Run("with two fences for a grant", func(t *testing.T) {
		lock.FencesOfAGrant(t, "2")
		if turns := fences(t); grow(turns) {
			t.Errorf("the test has no teeth: %v", turns)
		}
	})
}

// A lease that was handed to another process, and one whose fence was raised to that of
// others (LockAll), go back to Redis: the fences after theirs are not their grant's.
func TestALeaseWithAFenceOfAnotherGrantIsNotPassedOn(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l, other := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{Lease: time.Minute})
		redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
		ctx := t.Context()
		for name, take := range map[string]func() *lock.Lease{
			"attached": func() *lock.Lease {
				token, err := must(t)(l.Lock(ctx, "a")).Detach(ctx, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				return must(t)(l.Attach(ctx, token))
			},
			"raised": func() *lock.Lease {
				b := must(t)(other.Lock(ctx, "b"))
				got := make(chan *lock.Lease)
				go func() { got <- must(t)(l.LockAll(ctx, "a", "b")) }() // a first, and then b with a later fence
				waiting(t, l, keys.Mutex, "b", 1)
				unlock(t, b)
				return <-got
			},
		} {
			gate := take()
			w := &line{t: t}
			w.stand("one", l, 1)
			gate.Age(young)
			unlock(t, gate)
			w.wait()
			if w.turns[0].fence < gate.Fence()+16 {
				t.Errorf("%s: fence %d after %d: it was passed on", name, w.turns[0].fence, gate.Fence())
			}
		}
	})
}

// What LockAll has taken in one script is passed on, each lock to those who wait for it: its
// fence stands in the record of each.
func TestWhatLockAllHasTakenIsPassedOn(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l, other := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{Lease: time.Minute})
		redistest.Eventually(t, 30*time.Second, "the subscription stands, and nobody asks again", l.Hears)
		gate := must(t)(l.LockAll(t.Context(), "a", "b"))
		w := &line{t: t}
		w.stand("one", l, 3)
		gate.Age(young)
		unlock(t, gate)
		w.wait()
		if w.turns[0].fence != gate.Fence()+1 {
			t.Errorf("fence %d after %d: it was not passed on", w.turns[0].fence, gate.Fence())
		}
		for _, name := range []string{"a", "b"} {
			next := must(t)(other.Lock(t.Context(), name))
			if next.Fence() <= w.turns[2].fence {
				t.Errorf("%s: fence %d after %d", name, next.Fence(), w.turns[2].fence)
			}
			unlock(t, next)
		}
	})
}

// The message of a grant and a lock that is passed on may come to a leader at once, when
// Redis has taken the lock from their process in that moment: the message is for the next
// leader then. Catches one that is lost, and costs a second, in one of a hundred rounds.
func TestAMessageBesideALockThatIsPassedOnIsNotLost(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l, op := s.open(t, lock.Options{Lease: time.Minute}), s.open(t, lock.Options{})
		redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
		rounds, slow := redistest.Pick(150, 3000), 0
		for range rounds {
			gate := must(t)(l.Lock(t.Context(), "a"))
			var all sync.WaitGroup
			began := make(chan time.Time, 1)
			for range 3 {
				all.Go(func() {
					if lease, err := l.Lock(context.Background(), "a"); err != nil {
						t.Error(err)
					} else {
						_ = lease.Unlock(context.Background()) // which may have been taken from it
					}
				})
			}
			redistest.Eventually(t, 30*time.Second, "they wait", func() bool { return l.InRooms() == 3 && l.Parked("a") })
			gate.Age(young)
			began <- time.Now()
			all.Go(func() { _, _ = op.ForceUnlock(context.Background(), "a") })
			all.Go(func() {
				time.Sleep(rand.N(1200 * time.Microsecond))
				_ = gate.Unlock(context.Background())
			})
			all.Wait()
			if time.Since(<-began) > 900*time.Millisecond {
				slow++
			}
		}
		if slow > 1+rounds/500 { // a machine may stand still
			t.Errorf("the lock was idle for a second in %d of %d rounds", slow, rounds)
		}
	})
}

// Hooks hear of what a caller has had, and of nothing that was given back for nobody: a gauge
// made of Acquired and Released would go below zero. A LockAny is granted stripes that it
// does not need.
func TestHooksAreToldOfNoGrantThatNobodyHad(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		holder := s.open(t, lock.Options{Lease: time.Minute})
		var acquired, released atomic.Int64
		l := s.open(t, lock.Options{Lease: time.Minute, Hooks: lock.Hooks{
			Acquired: func(string, time.Duration, bool) { acquired.Add(1) },
			Released: func(string, time.Duration) { released.Add(1) },
		}})
		for range 10 {
			var held []*lock.Lease
			for range 4 {
				lease, _, err := holder.Striped("s", 4).LockAny(t.Context())
				held = append(held, must(t)(lease, err))
			}
			done := make(chan *lock.Lease)
			go func() {
				lease, _, err := l.Striped("s", 4).LockAny(context.Background())
				done <- must(t)(lease, err)
			}()
			redistest.Eventually(t, 30*time.Second, "it waits for all", func() bool { return l.InRooms() == 4 })
			var all sync.WaitGroup
			for _, lease := range held {
				all.Go(func() { unlock(t, lease) })
			}
			all.Wait()
			unlock(t, <-done)
			redistest.Eventually(t, 30*time.Second, "nothing is left", func() bool { return l.Kept() == 0 })
		}
		if acquired.Load() != 10 || released.Load() != 10 {
			t.Errorf("%d acquired, %d released, of 10", acquired.Load(), released.Load())
		}
	})
}

// A waiter that gives up in the moment in which the lock is passed to it passes it on, or
// gives it back. Catches a grant that nobody has.
func TestALockThatIsPassedToALeaverIsNotLost(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{Lease: time.Minute})
		for round := range redistest.Pick(50, 2000) {
			gate := must(t)(l.Lock(t.Context(), "a"))
			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					if lease, err := l.Lock(ctx, "a"); err == nil {
						unlock(t, lease)
					}
				})
			}
			redistest.Eventually(t, 30*time.Second, "they wait", func() bool { return l.InRooms() == 3 && l.Parked("a") })
			gate.Age(young)
			all.Go(leave)
			all.Go(func() { unlock(t, gate) })
			all.Wait()
			redistest.Eventually(t, 30*time.Second, fmt.Sprint("nobody has it or waits, round ", round), func() bool {
				info, err := l.Inspect(t.Context(), "a")
				return err == nil && !info.Held && info.Waiting == 0 && l.Kept() == 0
			})
		}
	})
}

// While a bid of the waiters is on its way Redis may grant them the lock. A holder that passed
// them its own as well would leave one of the two without anybody who gives it back.
func TestALockIsNotPassedOnWhileABidIsOnItsWay(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	l := open(t, p.Client(t, quick), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands, and nothing is renewed", l.Hears)
	gate := must(t)(l.Lock(t.Context(), "a"))
	w := &line{t: t}
	w.stand("one", l, 1)
	s.Client(t).FlushAll(t.Context()) // the holder has not heard of it
	held, release := p.HoldReply("EVALSHA " + lock.AcquireScript.Hash())
	l.CallLeaders()
	<-held
	gate.Age(young)
	if err := gate.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	release()
	w.wait()
	if n := l.Kept(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

// Close ends a cohort: what is passed on in that moment is given back.
func TestCloseInTheMiddleOfACohort(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		other := s.open(t, lock.Options{})
		gate := must(t)(other.Lock(t.Context(), "a"))
		w := &line{t: t}
		w.stand("other", other, 1)
		gate.Age(young)
		if other.PassesOnWhileItCloses() {
			t.Error("a lock is passed on that Close does not find any more")
		}
		unlock(t, gate)
		w.wait()
		for range redistest.Pick(20, 500) {
			l := s.open(t, lock.Options{Lease: time.Minute})
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for {
						err := l.Do(t.Context(), "a", func(context.Context, *lock.Lease) error { return nil })
						if errors.Is(err, lock.ErrClosed) {
							return
						}
					}
				})
			}
			time.Sleep(2 * time.Millisecond)
			_ = l.Close()
			all.Wait()
			if n := l.Kept(); n != 0 {
				t.Errorf("%d things are left", n)
			}
			if lease, err := other.TryLock(t.Context(), "a"); err != nil {
				t.Errorf("after Close: %v", err)
			} else {
				unlock(t, lease)
			}
		}
	})
}
