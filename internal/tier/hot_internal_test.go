package tier

import (
	"testing"

	"pgregory.net/rapid"
)

// What Space-Saving promises, against exact counts: no key is counted too low, none too
// high by more than its error, and every key that makes up more than 1/counters of the
// samples is there.
func TestCountsOfHotKeysAreBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHot[int](rapid.IntRange(1, 8).Draw(t, "counters"))
		exact := map[int]uint64{}
		for _, key := range rapid.SliceOfN(rapid.IntRange(0, 20), 1, 400).Draw(t, "keys") {
			h.note(uint64(key), key)
			exact[key]++
		}
		for i, c := range h.rarest {
			if c.place != i || h.counters[c.hash] != c {
				t.Fatalf("counter %d is out of place: %+v", i, c)
			}
			if c.n < exact[c.key] || c.n-c.error > exact[c.key] {
				t.Fatalf("key %d: counted %d, too high by %d at the most, and was there %d times", c.key, c.n, c.error, exact[c.key])
			}
		}
		for key, n := range exact {
			if h.counters[uint64(key)] == nil && n > h.total/uint64(h.limit) {
				t.Fatalf("key %d is not counted, and was there %d of %d times", key, n, h.total)
			}
		}
	})
}
