package tier_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/tier"
)

// Catches a Get without the look at the generation: the value is found 100 times of 100.
func TestDeleteEndsWhatWasThere(t *testing.T) {
	c := open[string, int](t, tier.Options{})
	for name, end := range map[string]func(){
		"Delete": func() { c.Delete("a"); c.Delete("b") },
		"Flush":  func() { c.Flush() },
	} {
		c.Fill(c.Mark("a"), "a", 1, 8, time.Minute)
		c.FillNull(c.Mark("b"), "b", time.Minute)
		c.Settle()
		want(t, c, "a", 1, value)
		want(t, c, "b", 0, null)
		end()
		if _, kind := c.Get("a"); kind != miss {
			t.Errorf("the value is there after %s", name)
		}
		if _, kind := c.Get("b"); kind != miss {
			t.Errorf("the null is there after %s", name)
		}
	}
}

// ristretto applies a Set of a new key later, so a deletion can overtake it.
func TestDeleteEndsAFillThatIsStillInTheQueue(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	for i := range 10_000 {
		id := strconv.Itoa(i)
		c.Fill(c.Mark(id), i, i, 8, time.Minute)
		c.Delete(id)
		want(t, c, i, 0, miss)
		if i%1000 == 999 {
			c.Settle()
			want(t, c, i, 0, miss)
		}
	}
}

// A loader reads the old row, the row is changed and the id deleted, and then
// the loader fills.
//
// Catches a Fill that does not compare its mark.
func TestAFillWithAnOvertakenMarkIsDropped(t *testing.T) {
	for name, overtake := range map[string]func(*tier.Cache[string, int]){
		"Delete": func(c *tier.Cache[string, int]) { c.Delete("a") },
		"Flush":  func(c *tier.Cache[string, int]) { c.Flush() },
		"Put":    func(c *tier.Cache[string, int]) { c.Put(c.Mark("a"), "a", 0, 8, -1) },
	} {
		t.Run(name, func(t *testing.T) {
			c := open[string, int](t, tier.Options{})
			m := c.Mark("a")
			overtake(c)
			if c.Fill(m, "a", 1, 8, time.Minute) || c.FillNull(m, "a", time.Minute) {
				t.Error("a fill was taken")
			}
			c.Settle()
			want(t, c, "a", 0, miss)
			if s := c.Stats(); s.Outdated != 2 {
				t.Errorf("Outdated = %d, want 2", s.Outdated)
			}
		})
	}
}

func TestTheZeroMarkIsOvertaken(t *testing.T) {
	c := open[string, int](t, tier.Options{})
	if c.Fill(0, "a", 1, 8, time.Minute) {
		t.Error("the fill was taken")
	}
}

// ristretto loses the second of two quick Sets of a new key, and keeps the first.
//
// Catches a Put without a generation of its own: of 10,000 keys almost all
// show the first value.
func TestPutPutNeverShowsTheFirst(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	const keys = 10_000
	for key := range keys {
		id := strconv.Itoa(key)
		c.Put(c.Mark(id), key, 1, 8, time.Minute)
		c.Put(c.Mark(id), key, 2, 8, time.Minute)
		if v, kind := get(c, key); kind == value && v != 2 {
			t.Fatalf("Get(%d) = %d at once", key, v)
		}
	}
	c.Settle()
	for key := range keys {
		if v, kind := get(c, key); kind == value && v != 2 {
			t.Fatalf("Get(%d) = %d when all had settled", key, v)
		}
	}
	// What was lost is a miss, and comes back with the next fill.
	for key := range keys {
		id := strconv.Itoa(key)
		c.Delete(id)
		c.Fill(c.Mark(id), key, 3, 8, time.Minute)
		if key%1000 == 999 {
			c.Settle()
			want(t, c, key, 3, value)
		}
	}
}

// Versions of a row only grow. A writer makes a new one, then deletes or puts,
// and then announces it as the floor: from then on nobody may see less. Loaders
// read the row and fill. Readers note the floor, and then look.
//
// Catches a Get without the look at the generation, and fills that pay no heed to
// their marks.
func TestNoReaderSeesADeletedVersion(t *testing.T) {
	const keys = 32
	c := open[int, int64](t, tier.Options{MaxBytes: 1 << 20})
	var row, floor [keys]atomic.Int64
	var hits, stale atomic.Int64

	var stop atomic.Bool
	var loaders, others sync.WaitGroup
	for range 2 {
		loaders.Go(func() {
			for !stop.Load() {
				key := rand.IntN(keys)
				m := c.Mark(strconv.Itoa(key))
				c.Fill(m, key, row[key].Load(), 8, time.Minute)
			}
		})
	}
	rounds := 200_000
	if race.Detector {
		rounds /= 4
	}
	for range 2 {
		others.Go(func() {
			// On a busy machine nothing may be filled yet when the rounds are over.
			for n := 0; n < rounds || hits.Load() < int64(rounds/100) && n < 1000*rounds; n++ {
				key := rand.IntN(keys)
				least := floor[key].Load()
				version, kind := get(c, key)
				if kind == value {
					hits.Add(1)
					if version < least {
						stale.Add(1)
					}
				}
			}
		})
	}
	for writer := range 2 {
		others.Go(func() {
			for i := range rounds / 4 {
				key := rand.IntN(keys/2)*2 + writer // one writer for each key
				version := row[key].Add(1)
				switch id := strconv.Itoa(key); i % 4 {
				case 0:
					c.Put(c.Mark(id), key, version, 8, time.Minute)
				case 1:
					c.Flush()
				default:
					c.Delete(id)
				}
				floor[key].Store(version)
			}
		})
	}
	others.Wait()
	stop.Store(true)
	loaders.Wait()
	if stale.Load() > 0 {
		t.Errorf("%d of %d hits were of a deleted version", stale.Load(), hits.Load())
	}
	if hits.Load() < int64(rounds/100) {
		t.Errorf("only %d hits: this proves little", hits.Load())
	}
}

// A deletion can fall between a fill's look at its mark and its setting of the entry.
//
// Catches an entry that carries the generation of that moment.
func TestADeletionInTheMiddleOfAFillIsHeeded(t *testing.T) {
	c := open[string, int](t, tier.Options{})
	m := c.Mark("a")
	c.FillPast(m, "a", 1)
	c.Settle()
	want(t, c, "a", 1, value)

	c.Delete("a")
	c.FillPast(m, "a", 2)
	c.Settle()
	want(t, c, "a", 0, miss)
}

// Delete knows the id, a Get only the key: the two meet in the entry.
func TestTheIdNeedNotBeTheKey(t *testing.T) {
	c := open[int64, string](t, tier.Options{})
	c.Fill(c.Mark("product-0042"), 42, "old", 8, time.Minute)
	c.Settle()
	want(t, c, 42, "old", value)
	c.Delete("product-0042")
	want(t, c, 42, "", miss)
}
