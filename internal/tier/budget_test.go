package tier_test

import (
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/internal/tier"
)

// fill fills until it is taken: a queue that is full gets the time to empty.
func fill[V any](t testing.TB, c *tier.Cache[int, V], key int, v V, size int) {
	for m := c.Mark(strconv.Itoa(key)); !c.Fill(m, key, v, size, time.Hour); {
		c.Settle()
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // the first leaves what sync.Pool has
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Catches a cost without what an entry takes beside its value: the heap comes to
// four times the budget.
func TestTheHeapKeepsToTheBudget(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const budget = 64 << 20
	inserts := redistest.Pick(500_000, 2_000_000) // 500,000 fill the budget more than twice
	before := heap()
	c := open[int, []byte](t, tier.Options{})
	most := int64(0)
	for i := range inserts {
		fill(t, c, i, make([]byte, 100), 100)
		if i%(inserts/4) == inserts/4-1 {
			most = max(most, heap()-before)
		}
	}
	s := c.Stats()
	t.Logf("heap %.1f MiB, counted %.1f MiB, %d entries", float64(most)/(1<<20), float64(s.Bytes)/(1<<20), s.Filled-s.Evicted-s.Rejected)
	if most > budget*5/4 {
		t.Errorf("the heap grew by %d MiB on a budget of 64", most>>20)
	}
	if s.Bytes < budget*9/10 {
		t.Errorf("only %d MiB of 64 are used", s.Bytes>>20)
	}
}

// Catches a cost that is more than was meant, such as ristretto's own idea of it.
func TestWhatFitsTheBudgetIsKept(t *testing.T) {
	const entries = 10_000
	const queue = 256 << 10 // of ristretto
	c := open[int, *product](t, tier.Options{MaxBytes: entries*450 + queue, MaxNullBytes: entries*340 + queue})
	for key := range entries {
		fill(t, c, key, &product{ID: int64(key)}, 100)
		for m := c.Mark("null"); !c.FillNull(m, -1-key, time.Hour); {
			c.Settle()
		}
	}
	c.Settle()
	for key := range entries {
		if p, kind := get(c, key); kind != value || p.ID != int64(key) {
			t.Fatalf("value %d is not there: %v", key, kind)
		}
		if _, kind := c.Get(-1 - key); kind != null {
			t.Fatalf("null %d is not there: %v", key, kind)
		}
	}
}

// A scraper asks for keys that do not exist.
//
// Catches nulls in the same store as the values: most values are gone.
func TestAFloodOfNullsDoesNotPushValuesOut(t *testing.T) {
	t.Parallel()
	const values = 10_000
	nulls := redistest.Pick(100_000, 1_000_000) // ten times as many as have room
	c := open[int, int](t, tier.Options{MaxBytes: values * 400})
	for key := range values {
		fill(t, c, key, key, 8)
	}
	c.Settle()
	m := c.Mark("null")
	for key := range nulls {
		c.FillNull(m, values+key, time.Hour)
	}
	c.Settle()
	for key := range values {
		want(t, c, key, key, value)
	}
	if s := c.Stats(); s.NullBytes > 5<<20 {
		t.Errorf("the nulls take %d MiB of 4", s.NullBytes>>20)
	}
}

// ristretto evicts only for new keys. A set of keys that stays the same and
// whose values grow would take any amount.
//
// Catches a tier that does not count for itself: 200 MiB on a budget of 4.
func TestValuesThatGrowKeepToTheBudget(t *testing.T) {
	const keys = 2000
	c := open[int, []byte](t, tier.Options{MaxBytes: 4 << 20})
	for round, size := range []int{100, 1000, 10_000, 100_000} {
		for key := range keys {
			c.Fill(c.Mark("x"), key, nil, size, time.Hour)
			if used := c.Stats().Bytes; used > c.MostBytes() {
				t.Fatalf("%d bytes are used, of at most %d", used, c.MostBytes())
			}
			if key%100 == 0 {
				c.Settle()
			}
		}
		c.Settle()
		found := 0
		for key := range keys {
			if _, kind := c.Get(key); kind == value {
				found++
			}
		}
		if fits := (4 << 20) / (size + 1000); found < min(fits, keys)/4 {
			t.Errorf("round %d: only %d keys of size %d are there, %d fit", round, found, size, fits)
		}
	}
}

// Catches a queue that is bounded by ristretto alone: 32,768 items of any size.
func TestWhatIsOnItsWayIsBounded(t *testing.T) {
	c := open[int, []byte](t, tier.Options{MaxBytes: 1 << 20})
	const callers, size = 4, 10_000
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range 5000 {
				c.Fill(c.Mark("x"), caller<<24+i, nil, size, time.Hour)
				const more = callers * (size + 1000)
				if used := c.Stats().Bytes; used > c.MostBytes()+more {
					t.Errorf("%d bytes are used, of at most %d", used, c.MostBytes())
					return
				}
				if queued := c.Queued(); queued > tier.MaxQueued+callers {
					t.Errorf("%d items are queued, of at most %d", queued, tier.MaxQueued)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestAValueLargerThanTheBudgetIsNotTaken(t *testing.T) {
	c := open[string, int](t, tier.Options{MaxBytes: 1 << 20})
	for _, size := range []int{1 << 20, 1 << 30, math.MaxInt} {
		if c.Fill(c.Mark("a"), "a", 1, size, time.Hour) {
			t.Errorf("a value of %d bytes was taken", size)
		}
	}
	if !c.Fill(c.Mark("a"), "a", 1, 1<<19, time.Hour) || !c.Fill(c.Mark("b"), "b", 1, -5, time.Hour) {
		t.Error("a value that fits was not taken")
	}
	c.Settle()
	want(t, c, "a", 1, value)
	want(t, c, "b", 1, value)
}
