package lock_test

import (
	"context"
	"errors"
	"fmt"

	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
)

// A lease counts from when its command was sent. Counted from the answer, its holder
// would believe in it for as long as the answer took after Redis has given the lock to
// another. 60 ms is the answer to a command on the caller's own goroutine, 300 ms that
// to one which is left behind and repeated.
func TestALeaseEndsHereBeforeItEndsInRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, delay := range []time.Duration{60 * time.Millisecond, 300 * time.Millisecond} {
		p := redistest.Proxy(t, s.Addr())
		l := open(t, p.Client(t), lock.Options{Lease: 5 * time.Second}) // its margin, 50 ms, is less than the delay
		redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
		p.Delay(delay)
		one, two := must(t)(l.Lock(t.Context(), "a")), must(t)(l.RW("a").RLock(t.Context()))
		look := func(when string) {
			t.Helper()
			mutex, reader := keys.Lock("", keys.Mutex, "a")[0], keys.Lock("", keys.ReadWrite, "a")[3]
			endsBefore(t, when, one, func() int64 { return number(t, rdb.HGet(t.Context(), mutex, "x").Val()) })
			endsBefore(t, when, two, func() int64 { return int64(rdb.ZRangeWithScores(t.Context(), reader, 0, 0).Val()[0].Score) })
		}
		look("taken")
		before := l.Stats().Renewals
		l.RenewAll() // both in one round trip
		redistest.Eventually(t, 20*time.Second, "they are renewed", func() bool { return l.Stats().Renewals >= before+2 })
		look("renewed")
		unlock(t, two)
		before = l.Stats().Renewals
		l.RenewAll()
		redistest.Eventually(t, 20*time.Second, "it is renewed", func() bool { return l.Stats().Renewals > before })
		endsBefore(t, "renewed alone", one, func() int64 {
			return number(t, rdb.HGet(t.Context(), keys.Lock("", keys.Mutex, "a")[0], "x").Val())
		})
		token, err := one.Detach(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		again := must(t)(l.Attach(t.Context(), token))
		endsBefore(t, "attached", again, func() int64 {
			return number(t, rdb.HGet(t.Context(), keys.Lock("", keys.Mutex, "a")[0], "x").Val())
		})
		p.Heal()
		unlock(t, again)
	}
}

// endsBefore sees that a lease ends before what Redis says, by the clock that both have.
// Redis is asked last: a renewal in between makes the lease in Redis longer, not shorter.
func endsBefore(t *testing.T, when string, lease *lock.Lease, inRedis func() int64) {
	t.Helper()
	here := lease.Deadline()
	if there := time.UnixMilli(inRedis()); !here.Before(there) {
		t.Errorf("%s: the lease ends here %v after its end in Redis", when, here.Sub(there))
	}
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A wiretap is a hook that keeps the commands that take a lock, and can hold one of them
// up on its way.
type wiretap struct {
	mu    sync.Mutex
	bids  [][]any
	holds chan struct{} // the next bid waits for it
	reply chan []any    // its reply
	after func()        // called when the next bid has been granted, before its caller knows
}

func (w *wiretap) DialHook(next redis.DialHook) redis.DialHook { return next }
func (w *wiretap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *wiretap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); cmd.Name() != "evalsha" || args[1] != lock.AcquireScript.Hash() && args[1] != lock.AcquireAllScript.Hash() {
			return next(ctx, cmd)
		}
		w.mu.Lock()
		w.bids = append(w.bids, cmd.Args())
		holds, after := w.holds, w.after
		w.holds = nil
		w.mu.Unlock()
		if holds != nil {
			<-holds
			ctx = context.WithoutCancel(ctx) // it left long ago
		}
		err := next(ctx, cmd)
		said, _ := cmd.(*redis.Cmd).Slice()
		if holds != nil {
			w.reply <- said
		}
		if after != nil && len(said) > 0 && said[0] == "granted" {
			w.onGrant(nil)
			after()
		}
		return err
	}
}

func (w *wiretap) onGrant(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = do
}

// first is the command that took the lock, and forgets it.
func (w *wiretap) first() []any {
	w.mu.Lock()
	defer w.mu.Unlock()
	bid := w.bids[0]
	w.bids = nil
	return bid
}

// tapped is a client whose commands a wiretap sees, also those on the caller's
// goroutine: a client that keeps to deadlines is not copied for these.
func tapped(t *testing.T, s *redistest.Server) (*redis.Client, *wiretap) {
	rdb := s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	w := &wiretap{reply: make(chan []any, 1)}
	rdb.AddHook(w)
	return rdb, w
}

// A network or a client may deliver a command a second time, after its lock was given
// back. Without a look at who released last (lr, also in the mutex's short way) the
// copy takes the lock again, for nobody, until its lease ends.
func TestALateCopyOfACommandTakesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, tap := tapped(t, s)
	l, other := open(t, rdb, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	failing := errors.New("so that the work does not count as done")
	for name, kind := range map[string]struct{ take, try func(l *lock.Locker) error }{
		"mutex":     {pair((*lock.Locker).Lock), pair((*lock.Locker).TryLock)},
		"several":   {lockBoth, lockBoth},
		"write":     {rwPair((*lock.RW).Lock), rwPair((*lock.RW).TryLock)},
		"read":      {rwPair((*lock.RW).RLock), rwPair((*lock.RW).TryLock)},
		"semaphore": {semaphorePair((*lock.Semaphore).Acquire), semaphorePair((*lock.Semaphore).TryAcquire)},
		"once":      {onceWith(failing), onceWith(failing)},
	} {
		for range 2 { // with a new record and with one that was there
			if err := kind.take(l); err != nil && !errors.Is(err, failing) {
				t.Fatalf("%s: %v", name, err)
			}
			if said := s.Client(t).Do(t.Context(), tap.first()...).Val(); fmt.Sprint(said) != "[gone]" {
				t.Errorf("%s: the copy is answered %v", name, said)
			}
			if err := kind.try(other); err != nil && !errors.Is(err, failing) {
				t.Errorf("%s: after the copy: %v", name, err)
			}
		}
	}
}

// pair takes the lock "a" and gives it back.
func pair(take func(*lock.Locker, context.Context, string) (*lock.Lease, error)) func(*lock.Locker) error {
	return func(l *lock.Locker) error { return giveBack(take(l, context.Background(), "a")) }
}

// lockBoth takes the locks "a" and "b" together, and gives them back.
func lockBoth(l *lock.Locker) error {
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	return giveBack(l.LockAll(ctx, "a", "b"))
}

func rwPair(take func(*lock.RW, context.Context) (*lock.Lease, error)) func(*lock.Locker) error {
	return func(l *lock.Locker) error { return giveBack(take(l.RW("a"), context.Background())) }
}

func semaphorePair(take func(*lock.Semaphore, context.Context) (*lock.Lease, error)) func(*lock.Locker) error {
	return func(l *lock.Locker) error { return giveBack(take(l.Semaphore("a", 1), context.Background())) }
}

func onceWith(failing error) func(*lock.Locker) error {
	return func(l *lock.Locker) error {
		ctx, cancel := context.WithTimeout(context.Background(), slack)
		defer cancel()
		_, err := l.Once(ctx, "a", time.Minute, func(context.Context) error { return failing })
		return err
	}
}

func giveBack(lease *lock.Lease, err error) error {
	if err != nil {
		return err
	}
	return lease.Unlock(context.Background())
}

// The caller of a bid has left, the refusal of its owner has come and gone, and somebody
// else has released since, so that Redis no longer knows of the refusal. Then the bid
// arrives and is granted the lock, or stands in the queue. Its late answer has to undo
// that, or nobody gets the lock for a minute here.
func TestWhatALateBidGetsIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"granted": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb, tap := tapped(t, s)
			l, other := open(t, rdb, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
			record := keys.Lock("", keys.Mutex, "a")[0]
			goOn := make(chan struct{})
			tap.holds = goOn
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := l.Lock(short, "a"); !errors.Is(err, lock.ErrNotAcquired) {
				t.Fatalf("got %v", err)
			}
			redistest.Eventually(t, 20*time.Second, "its owner is refused", func() bool {
				return rdb.HGet(t.Context(), record, "lr").Val() != ""
			})
			unlock(t, must(t)(other.Lock(t.Context(), "a")))
			var last *lock.Lease
			if busy {
				last = must(t)(other.Lock(t.Context(), "a"))
			}
			close(goOn)
			if said := <-tap.reply; len(said) == 0 || said[0] != name {
				t.Fatalf("the late bid is answered %v", said)
			}
			if busy {
				redistest.Eventually(t, 30*time.Second, "nobody stands in the queue", func() bool {
					n, err := other.Waiting(t.Context(), keys.Mutex, "a")
					return err == nil && n == 0
				})
				unlock(t, last)
				return
			}
			redistest.Eventually(t, 30*time.Second, "the lock is free", func() bool {
				lease, err := other.TryLock(t.Context(), "a")
				return giveBack(lease, err) == nil
			})
		})
	}
}

// A bid that is not answered in 100 ms is sent again. The first copy, held up in this
// process, is granted the lock after the second has been given back and somebody else has
// had it: then nobody would give it back for a minute. A copy that is answered while
// its owner has the lock must not cost that owner the lock, also if its ctx has ended.
func TestTheLateCopyOfABidThatWasAskedAgainIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		held bool
		lock func(l *lock.Locker, ctx context.Context) (*lock.Lease, error)
	}{
		"released":         {false, lockA},
		"held":             {true, lockA},
		"several released": {false, lockAB},
		"several held":     {true, lockAB},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			rdb, tap := tapped(t, s)
			type embedded struct{ redis.UniversalClient } // whose commands a caller can leave
			l, other := open(t, embedded{rdb}, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
			unlock(t, must(t)(kind.lock(l, t.Context()))) // loads the script
			goOn := make(chan struct{})
			tap.holds = goOn
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			lease := must(t)(kind.lock(l, ctx))
			if kind.held {
				cancel()
				close(goOn)
				if said := <-tap.reply; len(said) == 0 || said[0] != "granted" {
					t.Fatalf("the late copy is answered %v", said)
				}
				time.Sleep(100 * time.Millisecond) // for what must not happen
				if err := lease.Check(t.Context()); err != nil {
					t.Error(err)
				}
				unlock(t, lease)
				return
			}
			unlock(t, lease)
			unlock(t, must(t)(kind.lock(other, t.Context())))
			close(goOn)
			if said := <-tap.reply; len(said) == 0 || said[0] != "granted" {
				t.Fatalf("the late copy is answered %v", said)
			}
			redistest.Eventually(t, 30*time.Second, "the lock is free", func() bool {
				return pair((*lock.Locker).TryLock)(other) == nil && lockBoth(other) == nil
			})
		})
	}
}

func lockA(l *lock.Locker, ctx context.Context) (*lock.Lease, error) { return l.Lock(ctx, "a") }
func lockAB(l *lock.Locker, ctx context.Context) (*lock.Lease, error) {
	return l.LockAll(ctx, "a", "b")
}

// A caller whose context ends while the answer is on its way does not get the lock, so
// nobody would give it back.
func TestACallerThatLeavesAsItIsGrantedKeepsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, tap := tapped(t, s)
	l, other := open(t, rdb, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	unlock(t, must(t)(l.Lock(t.Context(), "a"))) // loads the script
	for name, take := range map[string]func(context.Context, string) (*lock.Lease, error){"Lock": l.Lock, "TryLock": l.TryLock} {
		ctx, cancel := context.WithCancel(t.Context())
		tap.onGrant(cancel)
		if _, err := take(ctx, "a"); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		redistest.Eventually(t, 30*time.Second, "the lock is free", func() bool {
			return pair((*lock.Locker).TryLock)(other) == nil
		})
	}
}

// One bid is for all readers who wait in a process. One of them leaves before its share
// is handed to it, or just then: either way nobody would give that share back.
func TestAReaderThatLeavesAsItIsServedKeepsNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, tap := tapped(t, s)
	l, other := open(t, rdb, lock.Options{Lease: time.Minute}), open(t, s.Client(t), lock.Options{Lease: time.Minute})
	redistest.Eventually(t, 30*time.Second, "the subscription stands", l.Hears)
	for round := range 60 {
		gate := must(t)(other.RW("a").Lock(t.Context()))
		leaves, leave := context.WithCancel(t.Context())
		leads := make(chan error, 1)
		follows := make(chan error, 1)
		go func() { leads <- giveBack(l.RW("a").RLock(t.Context())) }()
		waiting(t, other, keys.ReadWrite, "a", 1)
		go func() { follows <- giveBack(l.RW("a").RLock(leaves)) }()
		redistest.Eventually(t, 30*time.Second, "both wait", func() bool { return l.InRooms() == 2 })
		tap.onGrant(func() {
			leave()
			for round%2 == 0 && l.InRooms() == 2 { // until it has left
				time.Sleep(10 * time.Microsecond)
			}
		})
		unlock(t, gate)
		if err := <-leads; err != nil {
			t.Error(err)
		}
		if err := <-follows; err != nil && !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err)
		}
		redistest.Eventually(t, 30*time.Second, "nobody reads", func() bool {
			return rwPair((*lock.RW).TryLock)(other) == nil
		})
	}
}

// A look at the innermost lease alone would have the caller wait for itself here, until
// its own context ends.
func TestALockWithinALockWithinALockIsNoticed(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, s *backend) {
		l := s.open(t, lock.Options{})
		outer := must(t)(l.Lock(t.Context(), "a"))
		reader := must(t)(l.RW("a").RLock(outer.Context()))
		stripe := must(t)(l.Striped("a", 1).LockKey(reader.Context(), "x"))
		inner := must(t)(l.Lock(stripe.Context(), "b"))
		within, stop := context.WithTimeout(inner.Context(), slack)
		defer stop()
		for name, take := range map[string]func() (*lock.Lease, error){
			"Lock":    func() (*lock.Lease, error) { return l.Lock(within, "a") },
			"LockAll": func() (*lock.Lease, error) { return l.LockAll(within, "c", "a") },
			"RW.Lock": func() (*lock.Lease, error) { return l.RW("a").Lock(within) },
			"RLock":   func() (*lock.Lease, error) { return l.RW("a").RLock(within) },
			"LockKey": func() (*lock.Lease, error) { return l.Striped("a", 1).LockKey(within, "y") },
			"LockAny": func() (*lock.Lease, error) { lease, _, err := l.Striped("a", 1).LockAny(within); return lease, err },
		} {
			if lease, err := take(); !errors.Is(err, lock.ErrDeadlock) {
				t.Errorf("%s: %v, %v", name, lease, err)
			}
		}
		unlock(t, outer)
		unlock(t, must(t)(l.Lock(within, "a")), inner, stripe, reader) // nobody holds it any more
	})
}
