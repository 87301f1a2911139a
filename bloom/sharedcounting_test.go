package bloom_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

func counting(o *bloom.Options) { o.Counting = true }

// gone waits until f denies what it has heard is removed: all of it, but for those that
// pass by chance.
func gone(t testing.TB, f *bloom.Filter, from, to int) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "removed ids are denied", func() bool { return passing(f, from, to) < 0.02 })
}

func TestWhatOneProcessRemovesOthersDeny(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, s.Client(t), counting), open(t, s.Client(t), counting)
	rebuild(t, a, 0, 10_000)
	answers(t, b)
	add(t, b, 10_000, 11_000)
	remove(t, a, 0, 5_000)
	remove(t, a, 10_500, 11_000)
	for _, f := range []*bloom.Filter{a, b, open(t, s.Client(t), counting)} { // one that finds them removed
		answers(t, f)
		gone(t, f, 0, 5_000)
		gone(t, f, 10_500, 11_000)
		if n := missing(f, 5_000, 10_500); n > 0 {
			t.Errorf("%d ids denied that were not removed", n)
		}
		if loads := f.Stats().Loads; loads != 1 {
			t.Errorf("loaded %d times: the copy does not follow", loads)
		}
		if ids := f.Stats().Ids; ids < 5_400 || ids > 5_600 {
			t.Errorf("holds about %d ids, want 5500", ids)
		}
	}
	add(t, b, 0, 100)
	if missing(b, 0, 100) > 0 {
		t.Error("denied after it was added again")
	}
	if n := a.Stats().Removes; n != 5_500 {
		t.Errorf("%d Removes, want 5500", n)
	}
}

// Each id stays until it is removed as often as it was added, by whomever.
func TestASharedFilterCounts(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, s.Client(t), counting), open(t, s.Client(t), counting)
	rebuild(t, a, 0, 100)
	answers(t, b)
	for _, f := range []*bloom.Filter{a, b, a} {
		add(t, f, 0, 50)
	}
	for i, f := range []*bloom.Filter{b, a, a} {
		remove(t, f, 0, 50)
		sees(t, a, b)
		for _, f := range []*bloom.Filter{a, b} {
			if n := missing(f, 0, 100); n > 0 {
				t.Errorf("%d ids denied after %d Removes of 4", n, i+1)
			}
		}
	}
	remove(t, b, 0, 50)
	gone(t, a, 0, 50)
	gone(t, b, 0, 50)
	for range 20 { // beyond what a counter holds
		add(t, a, 50, 60)
	}
	for range 30 {
		remove(t, b, 50, 60)
	}
	sees(t, a, b)
	if n := missing(a, 50, 100) + missing(b, 50, 100); n > 0 {
		t.Errorf("%d ids denied: full counters were counted down", n)
	}
}

// sees waits until both have followed the log to where it ends now.
func sees(t testing.TB, a, b *bloom.Filter) {
	t.Helper()
	const mark = 3e8
	for _, f := range []*bloom.Filter{a, b} {
		i := mark + rand.IntN(1e8)
		add(t, f, i, i+1)
		redistest.Eventually(t, 30*time.Second, "the other follows", func() bool { return missing(a, i, i+1)+missing(b, i, i+1) == 0 })
	}
}

// An id that a process has added itself is not denied there for a moment because the
// log says that somebody has cleared, before, what it needs.
func TestAnAddIsNotDeniedForWhatWasClearedBeforeIt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	small := func(o *bloom.Options) { o.Capacity, o.MaxFalsePositiveRate = 50, -1 }
	a, b := open(t, s.Client(t), counting, small), open(t, s.Client(t), counting, small)
	rebuild(t, a, 0, 0)
	answers(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { // clears all the time what is about to be added
		defer close(done)
		for ctx.Err() == nil {
			_ = b.Add(ctx, idOf(1), idOf(2))
			_ = b.Remove(ctx, idOf(1), idOf(2))
		}
	}()
	rounds := 0
	for end := time.Now().Add(redistest.Pick(2*time.Second, time.Minute)); time.Now().Before(end); rounds++ {
		i := 1 + rounds%2
		add(t, a, i, i+1)
		for asked := time.Now(); time.Since(asked) < 2*time.Millisecond; {
			if missing(a, i, i+1) > 0 {
				t.Fatalf("denied after its own Add, round %d", rounds)
			}
		}
		remove(t, a, i, i+1)
	}
	cancel()
	<-done
	if la, lb := a.Stats().Loads, b.Stats().Loads; la+lb > 2 {
		t.Errorf("the copies were loaded %d and %d times: they do not follow", la, lb)
	}
	t.Logf("%d rounds", rounds)
}

// A Remove of which the reply is lost is sent again. Without a ticket that can be spent
// once it would take out twice.
func TestWhatIsSentTwiceIsRemovedOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, twice{s.Client(t)}, counting), open(t, s.Client(t), counting)
	rebuild(t, b, 0, 300)
	answers(t, a)
	add(t, b, 0, 300) // so each is in twice
	remove(t, a, 0, 300)
	sees(t, a, b)
	if n := missing(a, 0, 300) + missing(b, 0, 300); n > 0 {
		t.Errorf("%d ids denied that were added twice and removed once", n)
	}
	remove(t, a, 0, 300)
	gone(t, b, 0, 300)
}

// twice is a client that loses the first reply to each script.
type twice struct{ *redis.Client }

func (c twice) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	_ = c.Client.EvalSha(ctx, sha, keys, args...)
	return c.Client.EvalSha(ctx, sha, keys, args...)
}

// A Remove that begins when a Rebuild's scan may have missed the row is not done: of
// the ids that are not in its result, those that seem to be would take others with them.
func TestSharedRemovesThatAreLateForARebuildBreakNoPromise(t *testing.T) {
	t.Parallel()
	const n = 5_000
	s := redistest.Start(t)
	within := func(d time.Duration) *bloom.Filter {
		return open(t, s.Client(t), counting, func(o *bloom.Options) { o.Capacity, o.FalsePositiveRate, o.MaxTransaction = n, 0.2, d })
	}
	a, slow, fast := within(-1), within(time.Hour), within(10*time.Millisecond)
	rebuild(t, a, 0, n)
	answers(t, slow)
	fill := a.Stats().Fill
	remove(t, slow, n, n+1000) // 200 of them seem to be in
	sees(t, a, slow)
	if d := missing(a, 0, n) + missing(slow, 0, n); d > 0 || a.Stats().Fill < fill {
		t.Errorf("%d of %d ids denied", d, n)
	}
	redistest.Eventually(t, 30*time.Second, "Removes are done again", func() bool {
		remove(t, fast, 0, 100)
		return passing(a, 0, 100) < 0.5
	})
}

// What the counters are is known only as long as nobody else touches them.
func TestCountersThatAreLostOrContradictTheBitsAreGivenUp(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	ctx := context.Background()
	for _, c := range []struct {
		name    string
		corrupt func(piece, counters string)
	}{
		{"gone", func(_, counters string) { rdb.Del(ctx, counters) }},
		{"truncated", func(_, counters string) {
			b, _ := rdb.Get(ctx, counters).Result()
			rdb.Set(ctx, counters, b[:len(b)-10], 0)
		}},
		{"of another type", func(_, counters string) { rdb.Del(ctx, counters); rdb.LPush(ctx, counters, "x") }},
		{"zero", func(_, counters string) {
			rdb.SetRange(ctx, counters, 0, strings.Repeat("\x00", int(rdb.StrLen(ctx, counters).Val())))
		}},
		{"a piece gone", func(piece, _ string) { rdb.Del(ctx, piece) }},
	} {
		for _, by := range []string{"Add", "Remove"} {
			t.Run(c.name+", found by "+by, func(t *testing.T) {
				rdb.FlushAll(ctx)
				a := open(t, s.Client(t), counting, quick)
				rebuild(t, a, 0, 3_000)
				piece, sums := pieceOf(t, rdb)
				c.corrupt(piece, sums+":c0")
				if by == "Add" {
					add(t, a, 0, 500)
				}
				remove(t, a, 0, 500)
				if current := rdb.HGet(ctx, names.Record(), "current").Val(); current != "" {
					t.Error("it is still in use")
				}
				b := open(t, s.Client(t), counting, quick)
				if n := missing(a, 500, 3_000) + missing(b, 500, 3_000); n > 0 {
					t.Errorf("%d ids denied", n)
				}
				rebuild(t, b, 0, 3_000)
				remove(t, a, 0, 500)
				gone(t, b, 0, 500)
				if n := missing(a, 500, 3_000) + missing(b, 500, 3_000); n > 0 {
					t.Errorf("%d ids denied after the Rebuild", n)
				}
			})
		}
	}
}

// Complete: nothing exists, and the filter need not be told so by a Rebuild.
func TestACompleteSharedFilterAnswersAtOnce(t *testing.T) {
	t.Parallel()
	complete := func(o *bloom.Options) { o.Complete = true }
	for _, change := range []func(*bloom.Options){func(*bloom.Options) {}, counting} {
		s := redistest.Start(t)
		rdb := s.Client(t)
		a := open(t, s.Client(t), change, quick, complete)
		answers(t, a)
		b := open(t, s.Client(t), change, quick) // need not say so itself
		answers(t, b)
		if missing(b, 0, 1000) < 990 {
			t.Error("does not deny")
		}
		add(t, a, 0, 1000)
		if missing(a, 0, 1000) > 0 {
			t.Error("denied after Add")
		}
		redistest.Eventually(t, 30*time.Second, "the other finds them", func() bool { return missing(b, 0, 1000) == 0 })
		c := open(t, s.Client(t), change, quick, complete) // as after a restart
		answers(t, c)
		if missing(c, 0, 1000) > 0 {
			t.Error("an Open has emptied it")
		}
		if b.Remove(t.Context(), idOf(0)) == nil {
			gone(t, b, 0, 1)
			if missing(a, 1, 1000)+missing(b, 1, 1000) > 0 {
				t.Error("denied after the Remove of another")
			}
		}
		// It is not complete for ever: what Redis has lost did exist.
		rdb.FlushAll(context.Background())
		for _, f := range []*bloom.Filter{a, b, c} {
			abstains(t, f)
		}
		redistest.Eventually(t, 30*time.Second, "they have made a record", func() bool { return rdb.Exists(context.Background(), names.Record()).Val() == 1 })
		d := open(t, s.Client(t), change, quick, complete) // there is a filter, which knows nothing
		add(t, d, 0, 10)
		abstains(t, d)
		rebuild(t, d, 0, 1000)
		answers(t, a)
		// Nor is it new where only a part of it is lost.
		for _, f := range []*bloom.Filter{a, b, c, d} {
			_ = f.Close()
		}
		if err := rdb.Del(context.Background(), names.Record()).Err(); err != nil {
			t.Fatal(err)
		}
		abstains(t, open(t, s.Client(t), change, quick, complete))
		if current, err := rdb.HGet(context.Background(), names.Record(), "current").Result(); current != "" || err != nil {
			t.Errorf("it begins with an empty generation: %q, %v", current, err)
		}
	}
}

func TestCompleteIsNotAssumedWhenRedisDoesNotAnswerOpen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.Proxy(t, s.Addr())
	p.Refuse(true)
	f := open(t, p.Client(t), quick, func(o *bloom.Options) { o.Complete = true })
	p.Refuse(false)
	redistest.Eventually(t, 30*time.Second, "the filter is there", func() bool { return s.Client(t).Exists(t.Context(), names.Record()).Val() == 1 })
	add(t, f, 0, 1)
	abstains(t, f)
}

func TestEveryKeyOfACountingFilterEndsByItself(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	f := open(t, s.Client(t), counting)
	rebuild(t, f, 0, 1000)
	rebuild(t, f, 0, 1000)
	add(t, f, 1000, 1010)
	remove(t, f, 1000, 1010)
	all := rdb.Keys(t.Context(), "*").Val()
	for _, key := range all {
		if ttl := rdb.PTTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("%q lives %v", key, ttl)
		}
	}
	slices.Sort(all)
	if len(all) != 8 { // record, log, and of two generations sums, bits and counters; no ticket is left
		t.Errorf("%d keys: %q", len(all), all)
	}
}

func TestACountingFilterWorksOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t)
	large := func(o *bloom.Options) { o.Capacity = 4_000_000 } // two pieces
	a, b := open(t, c.Client(t), counting, large), open(t, c.Client(t, func(o *redis.ClusterOptions) { o.ReadOnly = true }), counting, large)
	rebuild(t, a, 0, 2_000)
	answers(t, b)
	remove(t, b, 0, 1_000)
	gone(t, a, 0, 1_000)
	gone(t, b, 0, 1_000)
	if n := missing(a, 1_000, 2_000) + missing(b, 1_000, 2_000); n > 0 {
		t.Errorf("%d ids denied", n)
	}
}
