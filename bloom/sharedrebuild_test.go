package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// paused yields some ids, says that it is half through, waits, and yields the rest.
func paused(from, to int, half chan<- struct{}, goOn <-chan struct{}) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := from; i < to && yield(idOf(i), nil); i++ {
			if i == (from+to)/2 {
				close(half)
				<-goOn
			}
		}
	}
}

// While a Rebuild runs anywhere, whatever is added anywhere goes into its result:
// before the scan, behind it, while the table is uploaded and as it takes over.
// Without joining, adding again, or the log read along, some are lost.
func TestAddsDuringSharedRebuildsAreKept(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	large := func(o *bloom.Options) { o.Capacity = 4_000_000 } // 2 pieces, some 20 calls to upload
	a, b := open(t, s.Client(t), large), open(t, s.Client(t), large)
	rebuild(t, a, 0, 10)
	answers(t, b)

	const apart = 1_000_000
	var added [2]atomic.Int64 // how many ids from k*apart on
	var adders sync.WaitGroup
	stop := make(chan struct{})
	for k := range added {
		adders.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := k*apart + int(added[k].Load())
				add(t, b, i, i+1)
				if missing(b, i, i+1) > 0 {
					t.Errorf("id %d denied after its own Add", i)
					return
				}
				added[k].Add(1)
			}
		})
	}
	denied := func(f *bloom.Filter) (n int) {
		for k := range added {
			n += missing(f, k*apart, k*apart+int(added[k].Load()))
		}
		return n
	}
	rebuilds := 0
	for end := time.Now().Add(redistest.Pick(4*time.Second, time.Minute)); time.Now().Before(end) && !t.Failed(); rebuilds++ {
		err := a.Rebuild(context.Background(), func(yield func(string, error) bool) {
			for k := range added { // none of those that are added meanwhile
				numbered(k*apart, k*apart+int(added[k].Load())+1)(yield)
			}
		})
		if errors.Is(err, bloom.ErrUnavailable) { // a busy machine may take longer than a call to Redis may
			rebuilds--
			continue
		}
		if err != nil {
			t.Error(err)
		}
		redistest.Eventually(t, 30*time.Second, "the other follows", func() bool { return b.Stats().Loads > uint64(rebuilds+1) })
		if n := denied(b); n > 0 {
			t.Errorf("%d ids denied after Rebuild %d", n, rebuilds)
		}
	}
	close(stop)
	adders.Wait()
	t.Logf("%d and %d adds, %d rebuilds", added[0].Load(), added[1].Load(), rebuilds)
	redistest.Eventually(t, 30*time.Second, "the rebuilder has them all", func() bool { return denied(a) == 0 })
}

// A row may be added before the scan begins and be committed behind it.
func TestASharedRebuildTakesOverWhatMayNotBeCommitted(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	open := func(change func(*bloom.Options)) *bloom.Filter {
		return open(t, s.Client(t), func(o *bloom.Options) { o.Name = t.Name(); change(o) })
	}
	for _, c := range []struct {
		transaction time.Duration
		kept        bool
	}{{4 * time.Second, true}, {-1, false}} {
		change := func(o *bloom.Options) { o.MaxTransaction = c.transaction; o.Name = c.transaction.String() }
		a, b := open(change), open(change)
		begun := time.Now()
		rebuild(t, a, 0, 1000) // waits for a log that is old enough
		if took := time.Since(begun); c.kept && took < 3500*time.Millisecond {
			t.Errorf("the first Rebuild took %v: it did not wait", took)
		}
		answers(t, b)
		time.Sleep(max(c.transaction, 0)) // until the log is old enough again
		add(t, b, 5_000, 5_100)
		begun = time.Now()
		rebuild(t, a, 0, 1000)
		if took := time.Since(begun); took > 3500*time.Millisecond {
			t.Errorf("the second Rebuild took %v: it waited", took)
		}
		if !c.kept {
			denies(t, a, 5_000, 5_100, 0.5) // whose rows the scan would have found
		} else if n := missing(a, 5_000, 5_100); n > 0 {
			t.Errorf("%d of the ids added just before are denied", n)
		}
	}
}

// A Rebuild that seems to hang says that it waits, and for how long, and the filter has said
// so before, when it was new. One that does not wait says nothing.
func TestARebuildThatWaitsSaysSo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	open := func(transaction time.Duration, log *redistest.Log) *bloom.Filter {
		return open(t, s.Client(t), func(o *bloom.Options) {
			o.Name, o.MaxTransaction, o.Logger = transaction.String(), transaction, log.Logger()
		})
	}
	const waits = "level=INFO msg=\"bloom: Rebuild waits before it reads the ids"
	var patient, hasty redistest.Log
	f := open(time.Hour, &patient)
	patient.Await(t, "rebuild_waits_up_to=5s")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Rebuild(ctx, numbered(0, 10)) }()
	patient.Await(t, waits)
	cancel()
	// Of the 5 s a part has passed since it was new.
	if err := <-ended; !errors.Is(err, context.Canceled) || patient.Count(" wait=4.")+patient.Count(" wait=3.")+patient.Count(" wait=2.") != 1 {
		t.Errorf("%v, and it has logged:\n%s", err, &patient)
	}

	f = open(-1, &hasty)
	hasty.Await(t, "rebuild_waits_up_to=0s")
	rebuild(t, f, 0, 10)
	if hasty.Count(waits) > 0 {
		t.Errorf("it says that it waits:\n%s", &hasty)
	}
}

func TestAtATimeOneProcessRebuildsAndTheOthersWaitForIt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, s.Client(t)), open(t, s.Client(t))
	half, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		if err := a.Rebuild(context.Background(), paused(0, 1000, half, goOn)); err != nil {
			t.Error(err)
		}
	})
	<-half
	read := func(yield func(string, error) bool) {
		t.Error("the second Rebuild reads its ids")
		yield("", nil)
	}
	var waiting atomic.Int32
	for _, f := range []*bloom.Filter{a, b, b} {
		waiting.Add(1)
		all.Go(func() {
			defer waiting.Add(-1)
			if err := f.Rebuild(context.Background(), read); err != nil {
				t.Error(err)
			}
			if !f.Stats().Complete || missing(f, 0, 1000) > 0 {
				t.Error("does not answer when Rebuild has returned")
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // by then all of them wait
	defer cancel()
	if err := b.Rebuild(ctx, read); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a Rebuild whose ctx ends while it waits: %v", err)
	}
	if waiting.Load() != 3 {
		t.Error("they do not wait")
	}
	close(goOn)
	all.Wait()
}

// To load a large filter takes longer than MaxLag. The old copy answers and
// follows meanwhile.
func TestAProcessGoesOnAnsweringWhileItLoadsTheNextSnapshot(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	large := func(o *bloom.Options) { o.Capacity, o.MaxLag = 8_000_000, 3*time.Second }
	a, b := open(t, s.Client(t), large), open(t, p.Client(t), large)
	rebuild(t, a, 0, 1000)
	answers(t, b)
	p.Delay(150 * time.Millisecond) // of each of 40 ranges
	rebuild(t, a, 0, 1000)
	for i, begun := 1000, time.Now(); b.Stats().Loads < 2; i++ {
		if b.Stats().Abstaining {
			t.Fatalf("abstains after %v", time.Since(begun))
		}
		add(t, a, i, i+1)
		time.Sleep(10 * time.Millisecond)
	}
	redistest.Eventually(t, 30*time.Second, "it has them all", func() bool { return missing(b, 0, 1010) == 0 })
}

// One that fails hands its turn on at once, and changes nothing.
func TestASharedRebuildThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	a, b := open(t, s.Client(t)), open(t, s.Client(t))
	rebuild(t, a, 0, 1000)
	answers(t, b)
	keys := len(rdb.Keys(t.Context(), "*").Val())
	broken := errors.New("broken")
	ended, cancel := context.WithCancel(t.Context())
	var panicked *bloom.PanicError
	for _, c := range []struct {
		ctx context.Context
		ids iter.Seq2[string, error]
		ok  func(error) bool
	}{
		{t.Context(), func(yield func(string, error) bool) { _ = yield("x", nil) && yield("", broken) }, func(err error) bool { return errors.Is(err, broken) }},
		{t.Context(), func(func(string, error) bool) { panic("oh") }, func(err error) bool { return errors.As(err, &panicked) }},
		{t.Context(), func(func(string, error) bool) { runtime.Goexit() }, func(err error) bool { return errors.As(err, &panicked) }},
		{ended, func(yield func(string, error) bool) { cancel(); yield("x", nil) }, func(err error) bool { return errors.Is(err, context.Canceled) }},
	} {
		begun := time.Now()
		if err := a.Rebuild(c.ctx, c.ids); !c.ok(err) || errors.Is(err, bloom.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("took %v: the lease was not released", took)
		}
		if n := missing(a, 0, 1000) + missing(b, 0, 1000); n > 0 {
			t.Errorf("%d denied", n)
		}
		if !a.Stats().Complete || !b.Stats().Complete {
			t.Error("abstains")
		}
		denies(t, b, 1e6, 1e6+1000, 0.1)
		if n := len(rdb.Keys(t.Context(), "*").Val()); n != keys {
			t.Errorf("%d keys, were %d", n, keys)
		}
	}
	c := open(t, s.Client(t))
	err := c.Rebuild(t.Context(), func(yield func(string, error) bool) { _ = c.Close(); yield("x", nil) })
	if !errors.Is(err, bloom.ErrClosed) {
		t.Errorf("a Rebuild on Close: %v", err)
	}
	rebuild(t, b, 0, 2000)
	if missing(b, 0, 2000) > 0 {
		t.Error("denied")
	}
}

// The rebuilder dies in the middle. The old copy answers; the next rebuilder
// starts from the beginning when the lease has ended.
func TestChaosARebuilderThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	a := open(t, s.Client(t))
	rebuild(t, a, 0, 1000)
	c := redistest.Child(t, "rebuilder", s.Addr())
	c.Expect("at:half")
	c.Kill()
	if ttl := rdb.PTTL(t.Context(), names.Rebuild()).Val(); ttl <= 0 || ttl > 10*time.Second {
		t.Errorf("the lease lives %v", ttl)
	}
	add(t, a, 1000, 1100)
	if missing(a, 0, 1100) > 0 || !a.Stats().Complete {
		t.Error("the old copy does not answer")
	}
	denies(t, a, 500_000, 501_000, 0.1)
	rdb.PExpire(t.Context(), names.Rebuild(), 500*time.Millisecond) // so that the test need not wait
	rebuild(t, a, 0, 1100)
	if missing(a, 0, 1100) > 0 {
		t.Error("the new one is not right")
	}
	denies(t, a, 500_000, 501_000, 0.1)
}

func rebuilder(p *redistest.Parent, args []string) error {
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	defer rdb.Close()
	f, err := bloom.Open(context.Background(), rdb, sharedOptions())
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Rebuild(context.Background(), func(yield func(string, error) bool) {
		for i := 500_000; i < 501_000 && yield(idOf(i), nil); i++ {
		}
		p.Pause("half")
	})
}

// Redis loses the filter while it is rebuilt: an error, not a filter without the adds
// that went with it.
func TestARebuildDoesNotOutliveItsRecord(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	a, b := open(t, s.Client(t), quick), open(t, s.Client(t), quick)
	half, goOn := make(chan struct{}), make(chan struct{})
	failed := make(chan error, 1)
	go func() { failed <- a.Rebuild(context.Background(), paused(0, 1000, half, goOn)) }()
	<-half
	add(t, b, 5000, 5010)
	rdb.FlushAll(t.Context())
	add(t, b, 5010, 5020)
	close(goOn)
	if err := <-failed; !errors.Is(err, bloom.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	abstains(t, a)
	abstains(t, b)
}

func TestASharedFilterSaysThatItIsFullAndAbstains(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var log redistest.Log
	small := func(o *bloom.Options) { o.Capacity, o.MaxLag = 1000, 100*time.Millisecond }
	a := open(t, s.Client(t), small, func(o *bloom.Options) { o.Logger = log.Logger() })
	b := open(t, s.Client(t), small)
	rebuild(t, a, 0, 1000)
	answers(t, b)
	denies(t, b, 1e6, 1e6+2000, 0.03)
	add(t, a, 1000, 4000)
	redistest.Eventually(t, 30*time.Second, "both abstain", func() bool {
		return a.Stats().Saturated && a.Stats().Abstaining && b.Stats().Saturated && b.Stats().Abstaining
	})
	if n := missing(b, 1e6, 1e6+2000); n > 0 {
		t.Errorf("%d denied by a filter that is full", n)
	}
	const full = "more ids than its Capacity"
	log.Await(t, full)
	hasRead(t, a) // the last adds, or they go into the next snapshot too
	rebuild(t, a, 0, 1000)
	answers(t, b)
	denies(t, b, 1e6, 1e6+1000, 0.1)
	hasRead(t, a)
	_ = a.Close()
	if n := log.Count(full); n != 1 { // not of the generations that hold just 1000
		t.Errorf("said %d times that it is full:\n%s", n, &log)
	}
}

func TestASharedFilterWorksOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	large := func(o *bloom.Options) { o.Capacity = 4_000_000 }
	readOnly := func(o *redis.ClusterOptions) { o.ReadOnly = true }
	a, b := open(t, c.Client(t), large), open(t, c.Client(t, readOnly), large)
	rebuild(t, a, 0, 10_000)
	answers(t, b)
	for i := range 100 {
		add(t, a, 20_000+i, 20_001+i)
		redistest.Eventually(t, 30*time.Second, "the other finds it", func() bool { return missing(b, 20_000+i, 20_001+i) == 0 })
	}
	owner := c.Owner(names.Record())
	for _, node := range c.Nodes {
		if node != owner {
			c.Move(names.Record(), node)
			break
		}
	}
	add(t, b, 30_000, 30_010)
	redistest.Eventually(t, 30*time.Second, "they follow the slot", func() bool {
		return missing(a, 30_000, 30_010) == 0 && !a.Stats().Abstaining && !b.Stats().Abstaining
	})
	rebuild(t, b, 0, 10_000)
	if n := missing(b, 0, 10_000); n > 0 {
		t.Errorf("%d denied", n)
	}
	denies(t, b, 1e6, 1e6+1000, 0.1)
}

// Other processes add to a log that has no snapshot, so each Add shortens it. The entry at which a
// Rebuild begins stays until it has read the log, or no Rebuild of a busy filter ever succeeds.
func TestTheFirstRebuildOfABusyFilterSucceeds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, p := s.Client(t), redistest.Proxy(t, s.Addr())
	minute := func(o *bloom.Options) { o.MaxTransaction, o.Capacity = time.Minute, 200_000 }
	busy, f := open(t, s.Client(t), minute), open(t, p.Client(t), minute)
	begun, entry := time.Now().UnixMilli(), ""
	pipe := rdb.TxPipeline()
	pipe.Del(t.Context(), names.Log())
	for age := int64(63_000); age >= 0; age-- {
		entry = fmt.Sprintf("%d-%d", begun-age, 63_001-age)
		pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: names.Log(), ID: entry, Values: []string{"h", "0123456789abcdef"}})
	}
	pipe.HSet(t.Context(), names.Record(), "last", entry)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "it follows the long log", func() bool { return f.Add(t.Context(), "x") == nil })

	ctx, cancel := context.WithCancel(t.Context())
	var adding sync.WaitGroup
	adding.Go(func() {
		for ctx.Err() == nil {
			_ = busy.Add(ctx, "y")
		}
	})
	defer adding.Wait()
	defer cancel()
	p.Delay(20 * time.Millisecond)
	if err := f.Rebuild(t.Context(), numbered(0, 100)); err != nil {
		t.Error(err)
	}
}
