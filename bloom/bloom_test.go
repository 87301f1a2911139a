package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	upstream "github.com/bits-and-blooms/bloom/v3"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

func newFilter(t testing.TB, o bloom.Options) *bloom.Filter {
	t.Helper()
	f, err := bloom.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func idOf(i int) string { return "product:" + strconv.Itoa(i) }

// numbered yields the ids from, …, to-1.
func numbered(from, to int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := from; i < to && yield(idOf(i), nil); i++ {
		}
	}
}

func add(t testing.TB, f *bloom.Filter, from, to int) {
	t.Helper()
	for id := range numbered(from, to) {
		if err := f.Add(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// missing counts those of the ids that the filter denies.
func missing(f *bloom.Filter, from, to int) int {
	n := 0
	for id := range numbered(from, to) {
		if !f.MayContain(context.Background(), id) {
			n++
		}
	}
	return n
}

// passing is the share of the ids that the filter lets pass.
func passing(f *bloom.Filter, from, to int) float64 {
	return 1 - float64(missing(f, from, to))/float64(to-from)
}

func TestWhatWasAddedIsNeverDenied(t *testing.T) {
	for _, counting := range []bool{false, true} {
		for _, capacity := range []int{1, 2, 10, 1000, 20_000} {
			f := newFilter(t, bloom.Options{Capacity: uint64(capacity), Complete: true, Counting: counting, MaxFalsePositiveRate: -1})
			add(t, f, 0, 2*capacity)
			if n := missing(f, 0, 2*capacity); n > 0 {
				t.Errorf("capacity %d, counting %v: %d of %d ids denied", capacity, counting, n, 2*capacity)
			}
		}
	}
}

func TestIdsMayBeAnyBytes(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 100, Complete: true})
	ids := []string{"", "\x00", "\x00\x00", "a", "ab\xff\xfe", strings.Repeat("x", 1<<20)}
	for i, id := range ids {
		if f.MayContain(t.Context(), id) {
			t.Errorf("%.8q passes before it is added", id)
		}
		if err := f.Add(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids[:i+1] {
			if !f.MayContain(t.Context(), id) {
				t.Errorf("%.8q is denied", id)
			}
		}
	}
}

// Positions, rounding and layout are ours; the rate must be the package's.
func TestAsManyPassAsInTheFilterOfBitsAndBlooms(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const n, probes = 50_000, 200_000
	for _, rate := range []float64{0.1, 0.01, 0.001} {
		for _, counting := range []bool{false, true}[:1+int(rate*100)%2] { // both at 0.01
			ours := newFilter(t, bloom.Options{Capacity: n, FalsePositiveRate: rate, Complete: true, Counting: counting})
			add(t, ours, 0, n)
			theirs := upstream.NewWithEstimates(n, rate)
			for id := range numbered(0, n) {
				theirs.AddString(id)
			}
			hits := 0
			for id := range numbered(n, n+probes) {
				if theirs.TestString(id) {
					hits++
				}
			}
			got, want := passing(ours, n, n+probes), float64(hits)/probes
			noise := 5 * math.Sqrt(2*rate/probes)
			t.Logf("rate %v: ours %.5f, theirs %.5f, noise %.5f", rate, got, want, noise)
			if got > want+noise || math.Abs(got-rate) > noise+rate/10 {
				t.Errorf("rate %v, counting %v: %.5f pass, want no more than in bits-and-blooms %.5f", rate, counting, got, want)
			}
		}
	}
}

func TestSmallFiltersKeepTheirRate(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, capacity := range []int{1, 3, 10, 50, 300} {
		passed := 0.0
		const filters, probes = 200, 500
		for range filters {
			f := newFilter(t, bloom.Options{Capacity: uint64(capacity), Complete: true})
			add(t, f, 0, capacity)
			passed += passing(f, capacity, capacity+probes)
		}
		if rate := passed / filters; rate > 0.015 {
			t.Errorf("capacity %d: %.4f pass, want 0.01", capacity, rate)
		}
	}
}

// With the package's own hash, which has no key, all ids that pass one filter of a
// set pass every other one.
func TestIdsFoundToPassWithOneSecretDoNotPassWithAnother(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const n, rate = 50_000, 0.01
	filled := func(secret string) *bloom.Filter {
		f := newFilter(t, bloom.Options{Capacity: n, FalsePositiveRate: rate, Complete: true, Secret: []byte(secret)})
		add(t, f, 0, n)
		return f
	}
	mine, theirs := filled("a secret of the attacker"), filled("a secret of the service ")
	chosen, pass := 0, 0
	for id := range numbered(n, 45*n) {
		if !mine.MayContain(t.Context(), id) {
			continue
		}
		chosen++
		if theirs.MayContain(t.Context(), id) {
			pass++
		}
	}
	if chosen < 20_000 {
		t.Fatalf("only %d chosen ids", chosen)
	}
	if got := float64(pass) / float64(chosen); got > 1.5*rate {
		t.Errorf("%.4f of %d chosen ids pass, want at most %v", got, chosen, 1.5*rate)
	}
}

// An attacker who tries ids out keeps those that pass; with the same positions in
// each generation they would pass for ever.
func TestIdsFoundToPassDoNotPassAfterARebuild(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const n, rate = 50_000, 0.01
	f := newFilter(t, bloom.Options{Capacity: n, FalsePositiveRate: rate})
	if err := f.Rebuild(t.Context(), numbered(0, n)); err != nil {
		t.Fatal(err)
	}
	var chosen []string
	for id := range numbered(n, 21*n) {
		if f.MayContain(t.Context(), id) {
			chosen = append(chosen, id)
		}
	}
	if err := f.Rebuild(t.Context(), numbered(0, n)); err != nil {
		t.Fatal(err)
	}
	pass := 0
	for _, id := range chosen {
		if f.MayContain(t.Context(), id) {
			pass++
		}
	}
	if got := float64(pass) / float64(len(chosen)); got > 1.5*rate {
		t.Errorf("%.4f of %d chosen ids pass, want at most %v", got, len(chosen), 1.5*rate)
	}
}

func TestANilFilterSaysYesAndDoesNothing(t *testing.T) {
	var f *bloom.Filter
	if !f.MayContain(t.Context(), "a") {
		t.Error("says no")
	}
	for _, err := range []error{f.Add(t.Context(), "a"), f.Remove(t.Context(), "a"), f.Rebuild(t.Context(), nil), f.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	if s := f.Stats(); !s.Abstaining {
		t.Errorf("got %+v, want abstaining", s)
	}
}

func TestItAbstainsUntilItIsComplete(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 100})
	add(t, f, 0, 10)
	if n := missing(f, 0, 1000); n > 0 || !f.Stats().Abstaining {
		t.Errorf("%d ids denied before the first Rebuild", n)
	}
	if err := f.Rebuild(t.Context(), numbered(0, 50)); err != nil {
		t.Fatal(err)
	}
	if missing(f, 0, 50) > 0 || passing(f, 1000, 2000) > 0.1 || f.Stats().Abstaining {
		t.Errorf("after the Rebuild: %d denied, %v pass", missing(f, 0, 50), passing(f, 1000, 2000))
	}
}

func TestItAbstainsWhenItIsTooFull(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 1000, MaxFalsePositiveRate: 0.1, Complete: true})
	add(t, f, 0, 1000)
	if s := f.Stats(); s.Saturated || passing(f, 10_000, 20_000) > 0.05 {
		t.Fatalf("abstains at its capacity: %+v", s)
	}
	add(t, f, 1000, 2000)
	if s := f.Stats(); !s.Saturated || !s.Abstaining || passing(f, 10_000, 20_000) < 1 {
		t.Errorf("does not abstain at twice its capacity: %+v", s)
	}
	if err := f.Rebuild(t.Context(), numbered(0, 1000)); err != nil {
		t.Fatal(err)
	}
	// What was added in the last minute came over, although no scan saw it.
	if n := missing(f, 1000, 2000); n > 0 {
		t.Errorf("%d recent ids denied", n)
	}
}

func TestItNeverAbstainsForFullnessWithANegativeBound(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 1000, MaxFalsePositiveRate: -1, Complete: true})
	add(t, f, 0, 5000)
	if s := f.Stats(); s.Saturated || passing(f, 10_000, 20_000) == 1 {
		t.Errorf("abstains: %+v", s)
	}
}

func TestACountingFilterRecoversFromFullness(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 1000, MaxFalsePositiveRate: 0.1, Complete: true, Counting: true})
	add(t, f, 0, 2000)
	if !f.Stats().Saturated {
		t.Fatal("not saturated at twice its capacity")
	}
	for id := range numbered(1000, 2000) {
		if err := f.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.Stats(); s.Saturated || missing(f, 0, 1000) > 0 {
		t.Errorf("got %+v and %d denied", s, missing(f, 0, 1000))
	}
}

// Fill is counted as bits are set. Against the truth, by what passes.
func TestStatsEstimateTheRateWithinAFifth(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, load := range []int{20_000, 40_000} {
		for _, counting := range []bool{false, true} {
			f := newFilter(t, bloom.Options{Capacity: 20_000, Complete: true, Counting: counting, MaxFalsePositiveRate: -1})
			add(t, f, 0, load)
			add(t, f, 0, 1000) // again, which fills nothing
			s, real := f.Stats(), passing(f, load, load+200_000)
			if math.Abs(s.FalsePositiveRate-real) > real/5 {
				t.Errorf("load %d: estimated %.5f, measured %.5f", load, s.FalsePositiveRate, real)
			}
			if off := math.Abs(float64(s.Ids) - float64(load)); off > float64(load)/50 {
				t.Errorf("load %d: estimated %d ids", load, s.Ids)
			}
			if s.Capacity != 20_000 || s.Adds != uint64(load+1000) {
				t.Errorf("got %+v", s)
			}
		}
	}
}

func TestMayContainAllocatesNothing(t *testing.T) {
	for _, counting := range []bool{false, true} {
		f := newFilter(t, bloom.Options{Capacity: 1000, Complete: true, Counting: counting})
		add(t, f, 0, 1000)
		ctx := t.Context()
		if n := testing.AllocsPerRun(100, func() { f.MayContain(ctx, "product:1"); f.MayContain(ctx, "absent") }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if n := testing.AllocsPerRun(100, func() { _ = f.Add(ctx, "product:1") }); n != 0 {
			t.Errorf("Add of one id: %v allocations", n)
		}
	}
}

func TestAfterCloseItAbstainsAndTakesNothing(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 100, Complete: true, Counting: true})
	add(t, f, 0, 10)
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if missing(f, 0, 1000) > 0 || !f.Stats().Abstaining {
		t.Error("denies ids after Close")
	}
	for what, err := range map[string]error{
		"Add": f.Add(t.Context(), "a"), "Remove": f.Remove(t.Context(), "a"), "Rebuild": f.Rebuild(t.Context(), numbered(0, 1)),
	} {
		if !errors.Is(err, bloom.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", what, err)
		}
	}
}

func TestCloseMayComeAtAnyTime(t *testing.T) {
	for range redistest.Pick(40, 1000) {
		f := newFilter(t, bloom.Options{Capacity: 1000, Counting: true})
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() { addOne(f, "a"); _ = f.Remove(context.Background(), "a") })
			group.Go(func() { f.MayContain(context.Background(), "a"); f.Stats() })
			group.Go(func() {
				if err := f.Rebuild(context.Background(), numbered(0, 100)); err != nil && !errors.Is(err, bloom.ErrClosed) {
					t.Error(err)
				}
			})
		}
		group.Go(func() { _ = f.Close() })
		group.Wait()
		if !f.MayContain(context.Background(), "never added") {
			t.Fatal("it says no after Close")
		}
	}
}

func addOne(f *bloom.Filter, id string) { _ = f.Add(context.Background(), id) }

// Adds, removes of other ids and a Rebuild after another, under the race detector:
// from the moment Add has returned there is no "no". It fails if Adds do not go to
// the next generation, or if a Rebuild forgets what was added just before it began.
func TestNothingAddedIsDeniedWhileRebuildsRun(t *testing.T) {
	for _, counting := range []bool{false, true} {
		t.Run(fmt.Sprintf("counting=%v", counting), func(t *testing.T) {
			f := newFilter(t, bloom.Options{Capacity: 100_000, Counting: counting})
			table := &rows{ids: map[string]bool{}}
			for id := range numbered(0, 1000) {
				table.commit(id)
			}
			if err := f.Rebuild(t.Context(), table.scan()); err != nil {
				t.Fatal(err)
			}
			const rounds, writers, each = 20, 8, 20
			var denied atomic.Int64
			for round := range rounds {
				var group sync.WaitGroup
				for w := range writers {
					group.Go(func() { write(f, table, w, round*each, (round+1)*each, &denied) })
				}
				if err := f.Rebuild(t.Context(), table.scan()); err != nil {
					t.Error(err)
				}
				group.Wait()
			}
			for w := range writers {
				for i := range rounds * each {
					if !f.MayContain(t.Context(), rowOf(w, i)) {
						denied.Add(1)
					}
				}
			}
			if denied.Load() > 0 {
				t.Errorf("%d times denied what was added", denied.Load())
			}
		})
	}
}

func rowOf(writer, i int) string { return fmt.Sprintf("writer %d row %d", writer, i) }

// write adds and commits rows and looks for the newest after each.
func write(f *bloom.Filter, table *rows, writer, from, to int, denied *atomic.Int64) {
	for i := from; i < to; i++ {
		id := rowOf(writer, i)
		addOne(f, id)
		if i%3 == 0 { // commits late, behind the back of a scan or two
			time.AfterFunc(time.Millisecond, func() { table.commit(id) })
		} else {
			table.commit(id)
		}
		for back := range min(i, 20) {
			if !f.MayContain(context.Background(), rowOf(writer, i-back)) {
				denied.Add(1)
			}
		}
	}
}

// An Add that has looked for the next table, found none, and is not through when a Rebuild
// begins, or that has found it and is not through when the one after begins, is in neither the
// scan nor the table of that Rebuild. So an Add looks again before it ends.
func TestAnAddThatIsHalfwayAsRebuildsBeginIsInTheirResults(t *testing.T) {
	const adders, each = 8, 2000
	ids := make([]string, adders*each)
	for i := range ids {
		ids[i] = idOf(i)
	}
	for i := range 10 {
		f := newFilter(t, bloom.Options{Capacity: adders * each, Complete: true, Counting: i%2 == 1})
		var group sync.WaitGroup
		for part := range slices.Chunk(ids, each) {
			group.Go(func() { _ = f.Add(context.Background(), part...) })
		}
		for missing(f, 0, 1) > 0 { // until the first is under way
			runtime.Gosched()
		}
		for range 3 {
			if err := f.Rebuild(t.Context(), numbered(0, 0)); err != nil { // nothing has committed yet
				t.Fatal(err)
			}
		}
		group.Wait()
		if d := missing(f, 0, len(ids)); d > 0 {
			t.Fatalf("%d of %d ids denied, counting: %v", d, len(ids), i%2 == 1)
		}
	}
}

// rows is a table as a database shows it: a scan sees what was committed when it
// began.
type rows struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (r *rows) commit(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[id] = true
}

func (r *rows) scan() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		r.mu.Lock()
		snapshot := make([]string, 0, len(r.ids))
		for id := range r.ids {
			snapshot = append(snapshot, id)
		}
		r.mu.Unlock()
		for _, id := range snapshot {
			if !yield(id, nil) {
				return
			}
		}
	}
}
