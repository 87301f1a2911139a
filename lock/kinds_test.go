package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

func must(t testing.TB) func(*Lease, error) *Lease {
	return func(l *Lease, err error) *Lease {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

func unlock(t testing.TB, leases ...*Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Unlock(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// waiting waits until so many entries stand in the queue of a lock.
func waiting(t *testing.T, l *Locker, kind keys.LockKind, name string, n int) {
	t.Helper()
	tgt := newTarget("", kind, name, exclusive)
	redistest.Eventually(t, 30*time.Second, fmt.Sprint(n, " wait"), func() bool {
		info, err := l.c.store.inspect(context.Background(), &tgt)
		return err == nil && info.Waiting == n
	})
}

func TestReadersShareAndWritersDoNot(t *testing.T) {
	s := redistest.Start(t)
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})}
	var readers, writers, most atomic.Int32
	var last atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		rw := ls[i%2].RW("a")
		all.Go(func() {
			for range 10 {
				if i%4 == 0 {
					lease, err := rw.Lock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					if writers.Add(1) != 1 || readers.Load() != 0 {
						t.Error("a writer is not alone")
					}
					if f := last.Swap(lease.Fence()); f >= lease.Fence() {
						t.Errorf("fence %d after %d", lease.Fence(), f)
					}
					writers.Add(-1)
					unlock(t, lease)
					continue
				}
				lease, err := rw.RLock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n := readers.Add(1)
				if most.Load() < n {
					most.Store(n)
				}
				if writers.Load() != 0 {
					t.Error("a reader beside a writer")
				}
				if f := last.Load(); f > lease.Fence() {
					t.Errorf("a reader has %d after %d", lease.Fence(), f)
				}
				time.Sleep(time.Millisecond)
				readers.Add(-1)
				unlock(t, lease)
			}
		})
	}
	all.Wait()
	if most.Load() < 2 {
		t.Error("no two readers at a time")
	}
	everyKeyEnds(t, s.Client(t))
}

// Readers that may enter beside other readers keep a writer out for ever.
func TestAWriterIsNotStarvedAndReadersBehindItEnterTogether(t *testing.T) {
	s := redistest.Start(t)
	a, b := open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})
	ctx := t.Context()
	first := must(t)(a.RW("a").RLock(ctx))
	wrote := make(chan *Lease, 1)
	go func() { wrote <- must(t)(b.RW("a").Lock(context.Background())) }()
	waiting(t, a, keys.ReadWrite, "a", 1)
	if _, err := a.RW("a").TryRLock(ctx); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("a reader before the writer: %v", err)
	}
	reads := make(chan *Lease, 20)
	for i := range 20 {
		go func() { reads <- must(t)([]*Locker{a, b}[i%2].RW("a").RLock(context.Background())) }()
	}
	waiting(t, a, keys.ReadWrite, "a", 3)
	unlock(t, first)
	w := <-wrote
	select {
	case <-reads:
		t.Fatal("a reader beside the writer")
	case <-time.After(20 * time.Millisecond):
	}
	unlock(t, w)
	var leases []*Lease
	for range 20 { // all hold at the same time
		select {
		case l := <-reads:
			leases = append(leases, l)
		case <-time.After(time.Minute):
			t.Fatalf("%d of 20 readers", len(leases))
		}
	}
	if leases[0].Fence() != w.Fence() {
		t.Errorf("a reader's fence is %d, the writer's was %d", leases[0].Fence(), w.Fence())
	}
	unlock(t, leases...)
	if lease, err := a.RW("a").TryLock(ctx); err != nil {
		t.Error(err)
	} else {
		unlock(t, lease)
	}
}

// Readers' leases are their own: one that lives does not keep a dead one's.
func TestACrashedReaderIsGoneAfterItsLease(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	dead := open(t, s.Client(t), Options{Lease: 300 * time.Millisecond, NoRenewal: true})
	alive := open(t, s.Client(t), Options{})
	lost := must(t)(dead.RW("a").RLock(ctx))
	living := must(t)(alive.RW("a").RLock(ctx))
	<-lost.Context().Done()
	time.Sleep(50 * time.Millisecond)
	if err := living.Check(ctx); err != nil {
		t.Error(err)
	}
	if err := lost.Unlock(ctx); !errors.Is(err, ErrLost) {
		t.Errorf("the dead one: %v", err)
	}
	unlock(t, living)
	unlock(t, must(t)(alive.RW("a").TryLock(ctx)))
}

func TestASemaphoreHasNPermits(t *testing.T) {
	s := redistest.Start(t)
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})}
	const n = 3
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for range 10 {
				lease, err := ls[i%2].Semaphore("a", n).Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				now := inside.Add(1)
				if now > n {
					t.Errorf("%d inside", now)
				}
				if most.Load() < now {
					most.Store(now)
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				unlock(t, lease)
			}
		})
	}
	all.Wait()
	if most.Load() != n {
		t.Errorf("at most %d inside at a time", most.Load())
	}
	everyKeyEnds(t, s.Client(t))
}

func TestPermitsOfTheDeadComeBackAndSizesDiffer(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	dead := open(t, s.Client(t), Options{Lease: 2 * time.Second, NoRenewal: true})
	l := open(t, s.Client(t), Options{})
	for range 3 {
		must(t)(dead.Semaphore("a", 3).Acquire(ctx))
	}
	if _, err := l.Semaphore("a", 3).TryAcquire(ctx); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("a fourth: %v", err)
	}
	fourth := must(t)(l.Semaphore("a", 4).TryAcquire(ctx)) // by a larger count
	begin := time.Now()
	var back []*Lease
	for range 2 {
		back = append(back, must(t)(l.Semaphore("a", 3).Acquire(ctx)))
	}
	if took := time.Since(begin); took > 2*time.Second+slack {
		t.Errorf("it took %v", took)
	}
	unlock(t, append(back, fourth)...)
	for _, n := range []int{0, -1, maxPermits + 1} {
		if _, err := l.Semaphore("a", n).Acquire(ctx); !errors.Is(err, ErrConfig) {
			t.Errorf("n = %d: %v", n, err)
		}
	}
}

func TestLockAllTakesAllOrNone(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	l, other := open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})
	one := must(t)(other.Lock(ctx, "c"))
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := l.LockAll(short, "a", "b", "c"); !errors.Is(err, ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	redistest.Eventually(t, 20*time.Second, "the others are free", func() bool {
		info, _ := l.Inspect(ctx, "a")
		return !info.Held
	})
	unlock(t, one)
	lease := must(t)(l.LockAll(ctx, "c", "a", "b", "a"))
	for _, name := range []string{"a", "b", "c"} {
		if _, err := other.TryLock(ctx, name); !errors.Is(err, ErrNotAcquired) {
			t.Errorf("%s: %v", name, err)
		}
		if info, _ := l.Inspect(ctx, name); info.Fence != lease.Fence() {
			t.Errorf("the fence of %s is %d, the lease's %d", name, info.Fence, lease.Fence())
		}
	}
	if _, err := l.LockAll(lease.Context(), "d", "b"); !errors.Is(err, ErrDeadlock) {
		t.Errorf("got %v", err)
	}
	unlock(t, lease)
	next := must(t)(l.Lock(ctx, "a"))
	if next.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
	}
	unlock(t, next)
	for _, names := range [][]string{nil, {""}, {"a", ""}} {
		if _, err := l.LockAll(ctx, names...); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", names, err)
		}
	}
}

// Without one order for all, two of these wait for each other.
func TestOverlappingSetsDoNotBlockEachOther(t *testing.T) {
	s := redistest.Start(t)
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	sets := [][]string{{"a", "b"}, {"b", "a"}, {"c", "b", "a"}, {"b", "c"}}
	inside := map[string]*atomic.Int32{"a": {}, "b": {}, "c": {}}
	var all sync.WaitGroup
	for i, set := range slices.Concat(sets, sets) {
		all.Go(func() {
			for range 10 {
				lease, err := ls[i%2].LockAll(ctx, set...)
				if err != nil {
					t.Error(err)
					return
				}
				for _, name := range set {
					if inside[name].Add(1) != 1 {
						t.Error("two holders of", name)
					}
				}
				for _, name := range set {
					inside[name].Add(-1)
				}
				unlock(t, lease)
			}
		})
	}
	all.Wait()
}

func TestTheLossOfOneEndsAll(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	l := open(t, s.Client(t), Options{Lease: time.Minute})
	lease := must(t)(l.LockAll(t.Context(), "a", "b"))
	rdb.Del(t.Context(), keys.Lock("", keys.Mutex, "b")[0])
	l.c.keeper.renewAll()
	select {
	case <-lease.Context().Done():
	case <-time.After(15 * time.Second):
		t.Fatal("not noticed")
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, ErrStateLost) {
		t.Error(err)
	}
	if info, _ := l.Inspect(t.Context(), "a"); info.Held {
		t.Error("the other is still held")
	}
}

// A hundred items in five parts: no part is oversold, and none is left over.
func TestAStockInPartsIsSoldExactly(t *testing.T) {
	s := redistest.Start(t)
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})}
	var stock [5]int
	for i := range stock {
		stock[i] = 20
	}
	var sold atomic.Int32
	var all sync.WaitGroup
	for i := range 130 {
		all.Go(func() {
			parts := ls[i%2].Striped("stock", len(stock))
			var empty []int
			for len(empty) < len(stock) {
				lease, part, err := parts.LockAny(t.Context(), empty...)
				if err != nil {
					t.Error(err)
					return
				}
				if stock[part] > 0 {
					stock[part]--
					sold.Add(1)
					unlock(t, lease)
					return
				}
				empty = append(empty, part)
				unlock(t, lease)
			}
		})
	}
	all.Wait()
	if sold.Load() != 100 || stock != [5]int{} {
		t.Errorf("%d sold, %v left", sold.Load(), stock)
	}
}

func TestStripesOfAKeyAreTheSameEverywhere(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	a, b := open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})
	lease := must(t)(a.Striped("a", 64).LockKey(ctx, "user 7"))
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := b.Striped("a", 64).LockKey(short, "user 7"); !errors.Is(err, ErrNotAcquired) {
		t.Error(err)
	}
	unlock(t, must(t)(b.Striped("a", 64).LockKey(ctx, "user 8")))
	if got := a.Striped("a", 64).stripe("user 7"); got != 19 { // it stands in what other versions do
		t.Errorf("stripe %d", got)
	}
	for _, n := range []int{0, -3, maxStripes + 1} {
		if _, err := a.Striped("a", n).LockKey(ctx, "x"); !errors.Is(err, ErrConfig) {
			t.Errorf("n = %d: %v", n, err)
		}
	}
	if _, _, err := a.Striped("a", 2).LockAny(ctx, 0, 1); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
	unlock(t, lease)
}

func TestATokenHandsALockOver(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	a, b := open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})
	for name, take := range map[string]func() (*Lease, error){
		"mutex":  func() (*Lease, error) { return a.Lock(ctx, "a") },
		"all":    func() (*Lease, error) { return a.LockAll(ctx, "x", "y{}", "z\xff") },
		"write":  func() (*Lease, error) { return a.RW("a").Lock(ctx) },
		"read":   func() (*Lease, error) { return a.RW("a").RLock(ctx) },
		"permit": func() (*Lease, error) { return a.Semaphore("a", 1).Acquire(ctx) },
	} {
		lease := must(t)(take())
		token, err := lease.Detach(ctx, time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if lease.Err() == nil || lease.Context().Err() == nil || !errors.Is(lease.Unlock(ctx), ErrNotHeld) {
			t.Errorf("%s: the old lease stands", name)
		}
		if strings.Trim(string(token), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			t.Errorf("%s: token %q", name, token)
		}
		taken := must(t)(b.Attach(ctx, token))
		if taken.Fence() != lease.Fence() {
			t.Errorf("%s: fence %d became %d", name, lease.Fence(), taken.Fence())
		}
		if err := taken.Check(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, l := range []*Locker{a, b} {
			if _, err := l.Attach(ctx, token); !errors.Is(err, ErrNotHeld) {
				t.Errorf("%s: attached twice: %v", name, err)
			}
		}
		if err := a.Release(ctx, token); !errors.Is(err, ErrNotHeld) {
			t.Errorf("%s: released what was attached: %v", name, err)
		}
		token, err = taken.Detach(ctx, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time nobody has had it since
			if err := a.Release(ctx, token); err != nil {
				t.Errorf("%s: Release: %v", name, err)
			}
		}
		next := must(t)(take())
		if err := a.Release(ctx, token); !errors.Is(err, ErrNotHeld) && name != "read" && name != "permit" {
			t.Errorf("%s: an old token: %v", name, err)
		}
		if err := next.Check(ctx); err != nil {
			t.Errorf("%s: an old token took the next one's lock: %v", name, err)
		}
		unlock(t, next)
	}
}

func TestADetachedLockEndsByItself(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	l := open(t, s.Client(t), Options{})
	lease := must(t)(l.Lock(ctx, "a"))
	begin := time.Now()
	token, err := lease.Detach(ctx, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	next := must(t)(l.Lock(ctx, "a"))
	if took := time.Since(begin); took < 198*time.Millisecond || took > slack {
		t.Errorf("it took %v", took)
	}
	if _, err := l.Attach(ctx, token); !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
	unlock(t, next)
	if _, err := must(t)(l.Lock(ctx, "b")).Detach(ctx, time.Millisecond); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}

func TestABadTokenIsRefused(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := t.Context()
	l := open(t, rdb, Options{})
	token, err := must(t)(l.Lock(ctx, "a")).Detach(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	before := dump(t, rdb)
	good := string(token)
	for _, bad := range []string{"", "x", "l1.", "l0." + good[3:], "l2." + good[3:], good + "A", good[:len(good)-1], good[:20] + "A" + good[21:]} {
		_, err1 := l.Attach(ctx, Token(bad))
		for _, err := range []error{err1, l.Release(ctx, Token(bad))} {
			if !errors.Is(err, ErrBadToken) {
				t.Errorf("%q: %v", bad, err)
			}
		}
	}
	if after := dump(t, rdb); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

func FuzzToken(f *testing.F) {
	f.Add("l1.W10")
	f.Add(string(makeToken([]part{{[]byte("a"), []byte("levee:l1:m:{a}"), "m", 1, "x:1", 1}})))
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := Token(text).parts()
		if err != nil {
			if !errors.Is(err, ErrBadToken) {
				t.Error(err)
			}
			return
		}
		again, err := makeToken(parts).parts()
		if err != nil || fmt.Sprint(again) != fmt.Sprint(parts) {
			t.Errorf("%v became %v, %v", parts, again, err)
		}
	})
}

func TestOnlyAHandleLetsTheHolderInAgain(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	l := open(t, s.Client(t), Options{})
	lease := must(t)(l.Lock(ctx, "a"))
	if _, err := l.Lock(lease.Context(), "a"); !errors.Is(err, ErrDeadlock) {
		t.Errorf("got %v", err)
	}
	if _, err := l.TryLock(lease.Context(), "a"); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("got %v", err)
	}
	inner := must(t)(lease.Reenter())
	unlock(t, lease)
	if err := inner.Err(); err != nil {
		t.Error(err)
	}
	if err := inner.Context().Err(); err != nil {
		t.Error(err)
	}
	if _, err := l.TryLock(ctx, "a"); !errors.Is(err, ErrNotAcquired) {
		t.Errorf("got %v", err)
	}
	unlock(t, inner)
	unlock(t, must(t)(l.Lock(context.WithoutCancel(lease.Context()), "a"))) // no deadlock any more
	if _, err := lease.Reenter(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("got %v", err)
	}
	w := must(t)(l.RW("a").Lock(ctx))
	if _, err := l.RW("a").RLock(w.Context()); !errors.Is(err, ErrDeadlock) {
		t.Errorf("got %v", err)
	}
	unlock(t, w)
}

func TestOnceRunsOnce(t *testing.T) {
	s := redistest.Start(t)
	ls := []*Locker{open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})}
	var runs, tried atomic.Int32
	var all sync.WaitGroup
	mine := errors.New("mine")
	for i := range 100 {
		all.Go(func() {
			ran, err := ls[i%2].Once(t.Context(), "a", time.Minute, func(context.Context) error {
				if tried.Add(1) == 1 {
					return mine
				}
				runs.Add(1)
				time.Sleep(10 * time.Millisecond)
				return nil
			})
			if err != nil && !(ran && errors.Is(err, mine)) {
				t.Error(ran, err)
			}
		})
	}
	all.Wait()
	if runs.Load() != 1 || tried.Load() != 2 {
		t.Errorf("%d runs of %d", runs.Load(), tried.Load())
	}
	begin := time.Now()
	if ran, err := ls[0].Once(t.Context(), "a", time.Minute, nil); ran || err != nil {
		t.Error(ran, err)
	}
	if took := time.Since(begin); took > slack {
		t.Errorf("it took %v", took)
	}
	for range 2 { // what was done counts for as long as was asked
		ran, err := ls[0].Once(t.Context(), "b", 50*time.Millisecond, func(context.Context) error { return nil })
		if !ran || err != nil {
			t.Error(ran, err)
		}
		time.Sleep(60 * time.Millisecond)
	}
	if _, err := ls[0].Once(t.Context(), "a", 0, nil); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
	everyKeyEnds(t, s.Client(t))
}

func TestCloseGivesBackWhatIsHeldAndEndsWaits(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	l, other := open(t, s.Client(t), Options{}), open(t, s.Client(t), Options{})
	lease := must(t)(l.Lock(ctx, "a"))
	b := must(t)(other.Lock(ctx, "b"))
	waits := make(chan error)
	for range 3 {
		go func() { _, err := l.Lock(context.Background(), "b"); waits <- err }()
	}
	waiting(t, other, keys.Mutex, "b", 1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-waits; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if lease.Context().Err() == nil || !errors.Is(lease.Err(), ErrClosed) {
		t.Errorf("the lease: %v", lease.Err())
	}
	unlock(t, must(t)(other.TryLock(ctx, "a")), b)
	unlock(t, must(t)(other.TryLock(ctx, "b")))
	if _, err := l.TryLock(ctx, "a"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	_ = l.Close()
}

func TestInspectAndLabels(t *testing.T) {
	s := redistest.Start(t)
	ctx := t.Context()
	l := open(t, s.Client(t), Options{})
	if info, err := l.Inspect(ctx, "a"); err != nil || info != (Info{}) {
		t.Errorf("%+v, %v", info, err)
	}
	lease := must(t)(l.With(Options{Label: "host 7", Lease: 50 * time.Second}).Lock(ctx, "a"))
	info, err := l.Inspect(ctx, "a")
	if err != nil || !info.Held || info.Label != "host 7" || info.Fence != lease.Fence() || info.Remaining > 50*time.Second || info.Remaining < 25*time.Second {
		t.Errorf("%+v, %v", info, err)
	}
	unlock(t, lease)
	if info, _ := l.Inspect(ctx, "a"); info.Held || info.Label != "" || info.Fence != lease.Fence() {
		t.Errorf("%+v", info)
	}
}
