package tier_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Catches an exit of Get or of a fill that does not count, and bytes that are not
// given back when an entry leaves in one of its ways.
func TestEveryCallIsCountedOnceAndEveryByteGivenBack(t *testing.T) {
	c := open[int, int](t, tier.Options{MaxBytes: 256 << 10, MaxNullBytes: 64 << 10})
	var mu sync.Mutex
	var want, got tier.Stats // what the callers saw, and what Stats says
	var fills uint64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var seen tier.Stats
			var tried uint64
			for i := range 20_000 {
				if i%200 == 0 {
					c.Settle()
				}
				key := rand.IntN(1 + rand.IntN(3000)) // some are hot
				id := strconv.Itoa(key)
				tried++
				switch rand.IntN(8) {
				case 0:
					count(&seen.Filled, c.Put(c.Mark(id), key, key, rand.IntN(1000), time.Minute))
				case 1:
					m := c.Mark(id)
					if rand.IntN(4) == 0 {
						c.Delete(id)
						seen.Deletes++
					}
					count(&seen.Filled, c.Fill(m, key, key, rand.IntN(1000), time.Minute))
				case 2:
					count(&seen.Filled, c.FillNull(c.Mark(id), key, time.Duration(rand.IntN(2))*time.Minute))
				default:
					tried--
					switch _, kind := c.Get(key); kind {
					case value:
						seen.Hits++
					case null:
						seen.Nulls++
					default:
						seen.Misses++
					}
				}
			}
			c.Flush()
			seen.Flushes++

			mu.Lock()
			defer mu.Unlock()
			want.Hits += seen.Hits
			want.Nulls += seen.Nulls
			want.Misses += seen.Misses
			want.Filled += seen.Filled
			want.Deletes += seen.Deletes
			want.Flushes += seen.Flushes
			fills += tried
		})
	}
	wg.Wait()
	c.Settle()
	got = c.Stats()
	t.Logf("%+v", got)
	if got.Hits != want.Hits || got.Nulls != want.Nulls || got.Misses != want.Misses ||
		got.Filled != want.Filled || got.Deletes != want.Deletes || got.Flushes != want.Flushes {
		t.Errorf("Stats() = %+v, but the callers saw %+v", got, want)
	}
	if got.Filled+got.Outdated+got.Refused != fills {
		t.Errorf("%d + %d + %d fills are counted of %d", got.Filled, got.Outdated, got.Refused, fills)
	}
	if got.Hits == 0 || got.Nulls == 0 || got.Outdated == 0 || got.Refused == 0 || got.Evicted == 0 {
		t.Errorf("something never happened: %+v", got)
	}
	if n := c.Queued(); n != 0 {
		t.Errorf("%d bytes are queued when nothing is", n)
	}
	c.Close()
	if s := c.Stats(); s.Bytes != 0 || s.NullBytes != 0 {
		t.Errorf("%d and %d bytes are left after Close", s.Bytes, s.NullBytes)
	}
	if n := c.FrontSize(); n != 0 {
		t.Errorf("%d entries are left in the front after Close", n)
	}
}

func count(n *uint64, yes bool) {
	if yes {
		*n++
	}
}

// Fills of one key in a row overwrite each other. They are no sign that the tier is too
// small, and an alarm on Rejected must not take them for one.
func TestAnOverwriteIsNoRejection(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 20_000 {
				key := i % 100
				id := strconv.Itoa(key)
				if key%2 == 0 {
					c.Fill(c.Mark(id), key, i, 8, time.Minute)
				} else {
					c.FillNull(c.Mark(id), key, time.Minute)
				}
			}
		})
	}
	wg.Wait()
	c.Settle()
	if s := c.Stats(); s.Rejected != 0 || s.Evicted != 0 || s.Filled < 1000 {
		t.Errorf("%d of %d fills count as rejected, %d as evicted", s.Rejected, s.Filled, s.Evicted)
	}
}
