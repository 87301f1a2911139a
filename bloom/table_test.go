package bloom

import "testing"

func TestACounterStopsAtBothEndsAndLeavesItsNeighboursAlone(t *testing.T) {
	counters := newTable(64, true)
	for p := range uint64(64) {
		if p%2 == 0 {
			counters.set(p)
		}
	}
	const p = 33
	if counters.unset(p) || counters.has(p) {
		t.Error("a counter at zero was counted down")
	}
	if !counters.set(p) || counters.set(p) || !counters.has(p) {
		t.Error("set does not tell the first from the second")
	}
	if counters.unset(p) || !counters.unset(p) || counters.has(p) {
		t.Error("unset does not tell the last from the one before")
	}
	for range maxCount {
		counters.set(p)
	}
	for range 100 {
		counters.set(p)
		counters.unset(p)
		counters.unset(p)
	}
	if !counters.has(p) {
		t.Error("a full counter was counted down")
	}
	for q := range uint64(64) {
		if want := q%2 == 0 || q == p; counters.has(q) != want {
			t.Errorf("position %d is set: %v, want %v", q, !want, want)
		}
	}
}

func TestABitIsSetOnceAndAlone(t *testing.T) {
	bits := newTable(128, false)
	for _, p := range []uint64{0, 63, 64, 127} {
		if bits.has(p) || !bits.set(p) || bits.set(p) || !bits.has(p) {
			t.Errorf("position %d", p)
		}
	}
	for p := range uint64(128) {
		if want := p%64 == 0 || p%64 == 63; bits.has(p) != want {
			t.Errorf("position %d is set: %v, want %v", p, !want, want)
		}
	}
}
