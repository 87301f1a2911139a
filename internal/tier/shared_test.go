package tier_test

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/internal/tier"
)

// Catches tables and goroutines that are made before there is an entry: 5.1 MiB and five
// goroutines for each cache.
func TestAnEmptyCacheCostsNextToNothing(t *testing.T) {
	const caches = 10
	var all [caches]*tier.Cache[string, int]
	goroutines, before := runtime.NumGoroutine(), heap()
	for i := range all {
		all[i] = open[string, int](t, tier.Options{})
		all[i].Get("a")
		all[i].Delete("a")
	}
	if each := (heap() - before) / caches; each > 320<<10 {
		t.Errorf("an empty cache takes %d KiB", each>>10)
	}
	// The runtime has some of its own for a moment after a collection.
	redistest.Eventually(t, 10*time.Second, "no goroutines run for empty caches", func() bool {
		return runtime.NumGoroutine() <= goroutines
	})
	runtime.KeepAlive(all)
}

// Catches caches of one Budget with tables or goroutines of their own.
func TestCachesOfABudgetShareItsTables(t *testing.T) {
	const caches = 10
	shared := &tier.Budget{}
	goroutines, before := runtime.NumGoroutine(), heap()
	var all [caches]*tier.Cache[string, int]
	for i := range all {
		all[i] = open[string, int](t, tier.Options{Budget: shared})
		all[i].Fill(all[i].Mark("a"), "a", i, 8, time.Minute)
	}
	if took := heap() - before; took > caches*320<<10+6<<20 {
		t.Errorf("%d caches take %d MiB", caches, took>>20)
	}
	// Beside those of the caches, the runtime has some for a moment after a collection.
	redistest.Eventually(t, 10*time.Second, "two goroutines run at the most", func() bool {
		return runtime.NumGoroutine()-goroutines <= 2
	})
	for i, c := range all {
		want(t, c, "a", i, value)
	}
}

// Two caches of one Budget hold the same keys. Catches a hash that is the same in both,
// an entry that does not know its cache, and a deletion in one that reaches the other.
func TestCachesOfABudgetDoNotSeeEachOther(t *testing.T) {
	shared := &tier.Budget{}
	a := open[int64, int](t, tier.Options{Budget: shared})
	b := open[int64, int](t, tier.Options{Budget: shared})
	c := open[int64, string](t, tier.Options{Budget: shared})
	for key := range int64(1000) {
		a.Fill(a.Mark("x"), key, 1, 8, time.Minute)
		b.Fill(b.Mark("x"), key, 2, 8, time.Minute)
		c.Fill(c.Mark("x"), key, "3", 8, time.Minute)
		a.FillNull(a.Mark("x"), -1-key, time.Minute)
	}
	a.Settle()
	for key := range int64(1000) {
		want(t, a, key, 1, value)
		want(t, b, key, 2, value)
		want(t, c, key, "3", value)
		want(t, a, -1-key, 0, null)
		want(t, b, -1-key, 0, miss)
	}
	b.Flush()
	want(t, a, 1, 1, value)
	want(t, b, 1, 0, miss)
	b.Close()
	want(t, a, 1, 1, value)
	want(t, b, 1, 0, miss)
}

// Entries of a closed cache stay in a Budget while another cache is open. Catches entries that keep the
// whole cache alive: 270 KiB for each of the caches that come and go, which no budget counts.
func TestAClosedCacheOfABudgetIsFreedBeforeItsEntries(t *testing.T) {
	shared := &tier.Budget{}
	open[int, int](t, tier.Options{Budget: shared})
	closed := func() weak.Pointer[tier.Cache[int, int]] {
		c, err := tier.New[int, int](tier.Options{Budget: shared})
		if err != nil {
			t.Fatal(err)
		}
		c.Fill(c.Mark("x"), 1, 1, 8, time.Minute)
		c.Settle()
		c.Close()
		return weak.Make(c)
	}()
	for began := time.Now(); closed.Value() != nil; runtime.GC() {
		if time.Since(began) > 20*time.Second {
			t.Fatal("it is still there")
		}
	}
}

// Catches a budget for each of the caches.
func TestCachesOfABudgetKeepToItTogether(t *testing.T) {
	const budget = 1 << 20
	shared := &tier.Budget{MaxBytes: budget}
	a := open[int, int](t, tier.Options{Budget: shared})
	b := open[string, int](t, tier.Options{Budget: shared})
	for key := range 5000 {
		a.Fill(a.Mark("x"), key, key, 1000, time.Minute)
		b.Fill(b.Mark("x"), strconv.Itoa(key), key, 1000, time.Minute)
		if key%100 == 0 {
			a.Settle()
		}
		if used := a.Stats().Bytes + b.Stats().Bytes; used > a.MostBytes()+5000 {
			t.Fatalf("%d bytes are used, of at most %d", used, a.MostBytes())
		}
	}
	a.Settle()
	if x, y := a.Stats().Bytes, b.Stats().Bytes; x+y < budget*6/10 || x < budget/10 || y < budget/10 {
		t.Errorf("%d and %d bytes of %d are used", x, y, budget)
	}
}

// A Budget goes on with new caches after its last one was closed.
func TestABudgetEndsWithItsLastCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left
		shared := &tier.Budget{}
		for range 3 {
			a := open[int, int](t, tier.Options{Budget: shared})
			b := open[int, int](t, tier.Options{Budget: shared})
			a.Fill(a.Mark("x"), 1, 1, 8, time.Minute)
			b.Fill(b.Mark("x"), 1, 2, 8, time.Minute)
			a.Close()
			want(t, b, 1, 2, value)
			b.Close()
			if n := a.Stats().Bytes + b.Stats().Bytes; n != 0 {
				t.Errorf("%d bytes are left", n)
			}
		}
	})
}

func TestABudgetIsChecked(t *testing.T) {
	for _, o := range []tier.Options{
		{Budget: &tier.Budget{}, MaxBytes: 1 << 20},
		{Budget: &tier.Budget{}, MaxNullBytes: 1 << 20},
		{Budget: &tier.Budget{MaxBytes: -1}},
		{Budget: &tier.Budget{MaxBytes: 1}},
		{Budget: &tier.Budget{MaxNullBytes: 1}},
	} {
		if c, err := tier.New[int, int](o); c != nil || err == nil || !strings.Contains(err.Error(), "Budget") {
			t.Errorf("New(%+v) = %v, %v", o, c, err)
		}
	}
	for _, o := range []tier.Options{{Budget: &tier.Budget{}, MaxNullBytes: -1}, {Budget: &tier.Budget{MaxNullBytes: -1}}} {
		c := open[int, int](t, o)
		if c.FillNull(c.Mark("x"), 1, time.Minute) {
			t.Error("a null was taken")
		}
	}
	if c, err := tier.New[int, int](tier.Options{Budget: &tier.Budget{}, MaxBytes: -1}); c != nil || err != nil {
		t.Errorf("off: %v, %v", c, err)
	}
}
