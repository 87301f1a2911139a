package tier_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Catches a Get that does not look into ristretto's queue: most new keys are a miss.
func TestWhatWasFilledIsThereAtOnce(t *testing.T) {
	for _, callers := range []int{1, 64} {
		t.Run(strconv.Itoa(callers), func(t *testing.T) {
			c := open[int, int](t, tier.Options{})
			var wg sync.WaitGroup
			for caller := range callers {
				wg.Go(func() {
					for i := range 6400 / callers {
						seeAtOnce(t, c, caller<<20+i)
					}
				})
			}
			wg.Wait()
			if s := c.Stats(); s.Misses != 0 {
				t.Errorf("%d misses", s.Misses)
			}
		})
	}
}

func seeAtOnce(t *testing.T, c *tier.Cache[int, int], key int) {
	id := strconv.Itoa(key)
	if !c.Fill(c.Mark(id), key, key, 8, time.Minute) || !c.FillNull(c.Mark(id), -1-key, time.Minute) {
		t.Errorf("a fill of %d was not taken", key)
	}
	if v, kind := get(c, key); kind != value || v != key {
		t.Errorf("%d: %v %v", key, v, kind)
	}
	if _, kind := c.Get(-1 - key); kind != null {
		t.Errorf("null of %d: %v", key, kind)
	}
	if v := c.Kept(key); v == nil || *v != key {
		t.Errorf("%d is not kept", key)
	}
}

// ristretto takes the second of two quick Sets of a new key for a change of its cost,
// and keeps the first.
//
// Catches a store that gives ristretto the second at once.
func TestOfTwoFillsInARowTheSecondStays(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	const keys = 5000
	for key := range keys {
		id := strconv.Itoa(key)
		for v := range rand.IntN(4) + 1 {
			switch v % 2 {
			case 0:
				c.Put(c.Mark(id), key, v, 8, time.Minute)
			default:
				c.Fill(c.Mark(id), key, v, 8, time.Minute)
			}
			want(t, c, key, v, value)
			if v == 3 || rand.IntN(8) == 0 {
				c.Settle()
				want(t, c, key, v, value)
			}
		}
	}
}

// A deletion and a new fill follow while the first fill is still in the queue.
func TestAFillAfterADeletionIsThereAndStays(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	const keys = 5000
	for key := range keys {
		id := strconv.Itoa(key)
		c.Fill(c.Mark(id), key, 1, 8, time.Minute)
		c.Delete(id)
		c.Fill(c.Mark(id), key, 2, 8, time.Minute)
		want(t, c, key, 2, value)
	}
	c.Settle()
	lost := 0
	for key := range keys {
		switch v, kind := get(c, key); {
		case kind == miss:
			lost++ // by the deletion of another id of its stripe
		case v != 2:
			t.Fatalf("%d is %d", key, v)
		}
	}
	if lost > keys/4 {
		t.Errorf("%d of %d are lost", lost, keys)
	}
}

// Many fill and delete few keys while ristretto takes them from its queue. What stays
// in the end is found by all looks, and every byte is given back.
func TestAQueueOfTheSameKeysEndsWithTheNewest(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	const keys, rounds = 50, 2000
	var wg sync.WaitGroup
	for caller := range 4 {
		wg.Go(func() {
			for i := range rounds {
				key := caller*keys + rand.IntN(keys)
				id := strconv.Itoa(key)
				if rand.IntN(3) == 0 {
					c.Delete(id)
				}
				c.Put(c.Mark(id), key, i, 8, time.Minute)
				if v, kind := get(c, key); kind == value && v != i {
					t.Errorf("%d is %d, not %d", key, v, i)
				}
			}
		})
	}
	wg.Wait()
	c.Settle()
	for key := range 4 * keys {
		a, kindA := get(c, key)
		if b, kindB := get(c, key); a != b || kindA != kindB {
			t.Errorf("%d is %d and then %d", key, a, b)
		}
	}
	c.Close()
	if s := c.Stats(); s.Bytes != 0 {
		t.Errorf("%d bytes are left", s.Bytes)
	}
}
