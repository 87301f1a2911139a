package tier_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Catches a clock that is not ahead: the entry outlives its ttl by up to a tick.
func TestAnEntryLivesForItsTTLAndNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[int, int](t, tier.Options{TTL: 10 * time.Second})
		for key := range 300 {
			time.Sleep(time.Duration(rand.Int64N(int64(100 * time.Millisecond)))) // anywhere between two ticks
			ttl := tier.Lead + 1 + time.Duration(rand.Int64N(int64(15*time.Second)))
			life := min(ttl, 10*time.Second)

			if key%2 == 0 {
				c.Fill(c.Mark("a"), key, 1, 8, ttl)
			} else {
				c.FillNull(c.Mark("a"), key, ttl)
			}
			c.Settle()
			const early = tier.Lead + time.Millisecond // to which lives are rounded
			time.Sleep(max(life-early, 0))
			if _, kind := c.Get(key); (kind == miss || kind == past) && life > early {
				t.Fatalf("ttl %v: gone %v before its end", ttl, early)
			}
			time.Sleep(early)
			if _, kind := c.Get(key); kind == value || kind == null {
				t.Fatalf("ttl %v: there at its end", ttl)
			}
		}
	})
}

func TestAnEntryWithoutALifeIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[string, int](t, tier.Options{})
		for _, ttl := range []time.Duration{0, -1, -time.Hour, 1, tier.Lead} {
			c.Put(c.Mark("a"), "a", 1, 8, time.Minute)
			c.Settle()
			want(t, c, "a", 1, value)
			if c.Fill(c.Mark("b"), "b", 1, 8, ttl) || c.FillNull(c.Mark("c"), "c", ttl) || c.Put(c.Mark("a"), "a", 2, 8, ttl) {
				t.Errorf("ttl %v was taken", ttl)
			}
			c.Settle()
			want(t, c, "b", 0, miss)
			want(t, c, "c", 0, miss)
			want(t, c, "a", 0, miss) // the Put deleted it all the same
		}
	})
}

// Catches a Trust(false) that limits only the fills that come after it.
func TestADistrustedCacheForgetsAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[string, int](t, tier.Options{})
		c.Fill(c.Mark("old"), "old", 1, 8, time.Minute)
		c.FillNull(c.Mark("null"), "null", time.Minute)
		c.Settle()
		time.Sleep(600 * time.Millisecond)
		c.Fill(c.Mark("new"), "new", 2, 8, time.Minute)
		c.Settle()

		c.Trust(false)
		want(t, c, "old", 1, value)
		want(t, c, "null", 0, null)
		time.Sleep(400 * time.Millisecond)
		want(t, c, "old", 0, past)
		want(t, c, "null", 0, miss)
		want(t, c, "new", 2, value)
		time.Sleep(600 * time.Millisecond)
		want(t, c, "new", 0, past)
		if !c.Stats().Distrusted {
			t.Error("Stats does not say that the cache is distrusted")
		}

		c.Trust(true)
		want(t, c, "old", 1, value)
		want(t, c, "null", 0, null)
		want(t, c, "new", 2, value)
	})
}

func TestDistrustCanMeanNothingCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[string, int](t, tier.Options{DistrustTTL: -1})
		c.Fill(c.Mark("a"), "a", 1, 8, time.Minute)
		c.Settle()
		c.Trust(false)
		want(t, c, "a", 0, past)
		c.Fill(c.Mark("b"), "b", 1, 8, time.Minute)
		c.Settle()
		want(t, c, "b", 0, past)
		c.Trust(true)
		want(t, c, "a", 1, value)
	})
}

// A caller may ask for a value whose life is over. Catches a Kept that returns a
// value from before a deletion or a null: that would bring an old value back. Get tells
// such a value from none, so that most of those who find nothing need not ask Kept.
func TestAnEntryPastItsLifeIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[string, int](t, tier.Options{TTL: time.Second})
		keeps := func(key string, want bool) {
			t.Helper()
			if v := c.Kept(key); (v != nil) != want || want && *v != 7 {
				t.Errorf("%s: %v", key, v)
			}
		}
		for _, key := range []string{"over", "deleted", "null"} {
			c.Fill(c.Mark(key), key, 7, 8, time.Hour)
		}
		c.Settle()
		keeps("over", true)
		time.Sleep(time.Hour)
		for _, key := range []string{"over", "deleted", "null"} {
			want(t, c, key, 0, past)
		}
		c.Delete("deleted")
		want(t, c, "deleted", 0, miss)
		want(t, c, "never", 0, miss)
		c.FillNull(c.Mark("null"), "null", time.Second)
		c.Settle()
		time.Sleep(time.Minute)
		keeps("over", true)
		keeps("deleted", false)
		keeps("null", false)
		keeps("never", false)
		c.Flush()
		want(t, c, "over", 0, miss)
		keeps("over", false)
		c.Fill(c.Mark("over"), "over", 7, 8, time.Hour)
		c.Settle()
		c.Close()
		keeps("over", false)
		keeps("never", false)
	})
}
