package tier_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/tier"
)

// heat asks for key, which is there, until it is in the front.
func heat[K, V comparable](t testing.TB, c *tier.Cache[K, V], key K) {
	t.Helper()
	for range 1_000_000 { // a goroutine whose stack moves changes shards, so there is no fixed number
		if c.Get(key); c.InFront(key) {
			return
		}
	}
	t.Fatalf("%v never gets into the front", key)
}

// Catches a front that is asked without the look at the generation and the life.
func TestAHotEntryEndsLikeAnyOther(t *testing.T) {
	ends := map[string]tier.Kind{"its life": past, "Trust": past} // the others: miss
	for name, end := range map[string]func(c *tier.Cache[string, int]){
		"Delete":   func(c *tier.Cache[string, int]) { c.Delete("a") },
		"Flush":    func(c *tier.Cache[string, int]) { c.Flush() },
		"Put":      func(c *tier.Cache[string, int]) { c.Put(c.Mark("a"), "a", 0, 8, -1) },
		"its life": func(c *tier.Cache[string, int]) { time.Sleep(10 * time.Second) },
		"Trust":    func(c *tier.Cache[string, int]) { time.Sleep(time.Second); c.Trust(false) },
		"Close":    func(c *tier.Cache[string, int]) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := open[string, int](t, tier.Options{})
				c.Fill(c.Mark("a"), "a", 1, 8, 10*time.Second)
				c.Settle()
				heat(t, c, "a")
				want(t, c, "a", 1, value)
				end(c)
				want(t, c, "a", 0, ends[name])
			})
		})
	}
}

// Its entries stay in the memory that the other cache goes on to use, and so in its front.
// Nobody tells a closed cache of deletions: what it returned could be of any age.
//
// Catches a front that is asked without knowing that the cache is closed, and a Trust
// that makes entries count again.
func TestAClosedCacheOfABudgetFindsNothing(t *testing.T) {
	shared := &tier.Budget{}
	c := open[string, int](t, tier.Options{Budget: shared})
	other := open[string, int](t, tier.Options{Budget: shared})
	for _, each := range []*tier.Cache[string, int]{c, other} {
		each.Fill(each.Mark("a"), "a", 1, 8, time.Minute)
		each.Settle()
		heat(t, each, "a")
	}
	c.Close()
	want(t, c, "a", 0, miss)
	c.Trust(true)
	want(t, c, "a", 0, miss)
	c.Trust(false)
	want(t, c, "a", 0, miss)
	want(t, other, "a", 1, value)
}

// Catches a front that does not hear of what ristretto lets go of: it would show
// the old value, and hold memory that nothing counts.
func TestTheFrontHoldsNothingThatRistrettoLetGo(t *testing.T) {
	c := open[int, int](t, tier.Options{MaxBytes: 1 << 20})
	fill(t, c, 0, 1, 8)
	c.Settle()
	heat(t, c, 0)
	fill(t, c, 0, 2, 8)
	want(t, c, 0, 2, value)

	heat(t, c, 0)
	for key := 1; c.InFront(0); key++ { // nobody asks for 0 any more
		c.Get(key) // twice, so that it is wanted more
		c.Get(key)
		fill(t, c, key, 1, 1000)
		if key == 1_000_000 {
			t.Fatal("an entry that nobody asks for stays in the front")
		}
	}
}

// Catches a put that does not look again whether ristretto still has the entry.
func TestAnEntryThatIsLetGoAtTheLastMomentIsNotPutInFront(t *testing.T) {
	c := open[int, int](t, tier.Options{MaxBytes: 64 << 10})
	fill(t, c, 0, 1, 8)
	c.Settle()
	c.Heat(0, func() {})
	if !c.InFront(0) {
		t.Fatal("the entry is not in the front at all")
	}
	c.Heat(0, func() { fill(t, c, 0, 2, 8); c.Settle() })
	if n := c.FrontSize(); n != 0 {
		t.Errorf("%d entries are in the front", n)
	}
	want(t, c, 0, 2, value)
}

// A hit in the front does not reach ristretto. If none did, ristretto would take
// the hottest keys for the least wanted.
//
// ristretto drops hits while its goroutine does not get to them, as on a busy machine. So each
// part of the scan waits until it has.
//
// Catches a front that keeps all hits to itself.
func TestHotKeysOutliveAScan(t *testing.T) {
	if race.Detector {
		t.Skip("under the race detector sync.Pool forgets so much that ristretto learns of no hit at all")
	}
	synctest.Test(t, func(t *testing.T) {
		const hot = 20
		c := open[int, int](t, tier.Options{MaxBytes: 1 << 20})
		for key := range hot {
			fill(t, c, key, key, 8)
		}
		c.Settle()
		for key := range hot {
			heat(t, c, key)
		}
		for scanned := hot; scanned < 50_000; scanned++ {
			for key := range hot {
				c.Get(key)
			}
			c.Get(scanned)
			fill(t, c, scanned, scanned, 8)
			if scanned%64 == 0 {
				c.Settle()
				synctest.Wait()
			}
		}
		c.Settle()
		left := 0
		for key := range hot {
			if _, kind := c.Get(key); kind == value {
				left++
			}
		}
		if left < hot*9/10 {
			t.Errorf("%d of %d hot keys are left", left, hot)
		}
	})
}
