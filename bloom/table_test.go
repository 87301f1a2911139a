package bloom

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"

	upstream "github.com/bits-and-blooms/bloom/v3"

	"github.com/levee-go/levee/internal/race"
)

// tableOf makes a table of so many blocks in which an id has so many positions.
func tableOf(t testing.TB, blocks uint64, hashes int, counting bool) *table {
	t.Helper()
	k, err := newKey([]byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	return newTable(shape{capacity: 1, blocks: blocks, hashes: hashes, seed: 3}, k, -1, counting)
}

// mark sets a position, or counts it once more, and reports whether it was clear.
func (t *table) mark(p uint64) bool {
	if t.counting {
		return t.count(p, +1)
	}
	return set(&t.words[p/64], 1<<(p%64)) == 1
}

func (t *table) positionsOf(h hash) []uint64 {
	w, all := t.walk(h), []uint64(nil)
	for range t.hashes {
		all = append(all, w.next())
	}
	return all
}

// What instances share must not change from one release to the next.
func TestPositionsOfASecretAreFixed(t *testing.T) {
	k, _ := newKey([]byte("0123456789abcdef"))
	got := tableOf(t, 1_000_000, 9, false).positionsOf(k.sum("product:42"))
	want := []uint64{182244777, 182244809, 182244387, 182244773, 182244412, 182244465, 182244788, 182244587, 182244536}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Without the second word of a walk, positions from the eighth on are all the first of their
// block.
func TestPositionsAreEvenlySpreadAndLieInOneBlock(t *testing.T) {
	const blocks, cells, ids = 1_003, 64, 50_000
	table := tableOf(t, blocks, 17, false)
	var byBlock, byPlace [cells]int
	k, _ := newKey(nil)
	for i := range ids {
		all := table.positionsOf(k.sum(string(binary.LittleEndian.AppendUint64(nil, uint64(i)))))
		block := all[0] / blockBits
		byBlock[block*cells/blocks]++
		for _, p := range all {
			if p/blockBits != block || block >= blocks {
				t.Fatalf("the positions %v are not in one block of %d", all, blocks)
			}
			byPlace[p%blockBits*cells/blockBits]++
		}
	}
	for i := range cells {
		for n, mean := range map[int]float64{byBlock[i]: ids / cells, byPlace[i]: ids * 17 / cells} {
			if math.Abs(float64(n)-mean) > 8*math.Sqrt(mean) {
				t.Errorf("cell %d: %d, want about %.0f", i, n, mean)
			}
		}
	}
}

// The estimates are those that a table shows: at the rates that a filter may have, half full,
// full and far too full. Key and seed are fixed, so that every run counts the same: of 400,000
// absent ids two are expected to pass at the lowest rate, and with random keys six or more did
// in one run of some thousand.
func TestEstimatesAreWhatATableShows(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const capacity, probes = 100_000, 400_000
	k, _ := newKey([]byte("0123456789abcdef"))
	for _, rate := range []float64{0.2, 0.01, 0.001, 0.0001} {
		table := newTable(newShape(capacity, rate, 3), k, -1, false)
		added := 0
		for _, upTo := range []int{capacity / 2, capacity, 3 * capacity} {
			for ; added < upTo; added++ {
				table.add(k.sum(strconv.Itoa(added)))
			}
			passed := 0
			for i := range probes {
				if table.contains(k.sum("absent" + strconv.Itoa(i))) {
					passed++
				}
			}
			got, want := float64(passed)/probes, table.rate()
			t.Logf("rate %v, %d ids: %.5f pass, estimated %.5f, ids %d", rate, upTo, got, want, table.ids())
			if noise := 5 * math.Sqrt(want/probes); math.Abs(got-want) > noise+want/20 {
				t.Errorf("rate %v, %d ids: %.5f pass, estimated %.5f", rate, upTo, got, want)
			}
			if upTo == capacity && want > 1.03*rate {
				t.Errorf("rate %v: %.5f at Capacity", rate, want)
			}
			if math.Abs(float64(table.ids())-float64(upTo)) > float64(upTo)/50 {
				t.Errorf("rate %v: %d ids, estimated %d", rate, upTo, table.ids())
			}
		}
	}
}

// What one block an id costs.
func TestATableTakesLittleMoreMemoryThanThatOfBitsAndBlooms(t *testing.T) {
	for rate, most := range map[float64]float64{0.1: 1.03, 0.01: 1.05, 0.001: 1.1, 1e-4: 1.2, 1e-6: 1.5, 1e-9: 2.3} {
		bits, _ := upstream.EstimateParameters(10_000_000, rate)
		more := float64(newShape(10_000_000, rate, 0).positions()) / float64(bits)
		t.Logf("rate %v: %.2f times", rate, more)
		if more > most {
			t.Errorf("rate %v: %.2f times as much memory, want %.2f", rate, more, most)
		}
	}
}

func TestContainsManyIsContainsOfEach(t *testing.T) {
	table := tableOf(t, 100, 7, false)
	k, _ := newKey(nil)
	for _, n := range []int{0, 1, 63, 64, 65, 1000} {
		ids := make([]string, n)
		for i := range ids {
			if ids[i] = strconv.Itoa(i); i%3 == 0 {
				table.add(k.sum(ids[i]))
			}
		}
		for i, may := range table.containsMany(k, ids) {
			if may != table.contains(k.sum(ids[i])) {
				t.Errorf("%d of %d is in: %v", i, n, may)
			}
		}
	}
}

func TestACounterStopsAtBothEndsAndLeavesItsNeighboursAlone(t *testing.T) {
	counters := tableOf(t, 1, 7, true)
	for p := range uint64(64) {
		if p%2 == 0 {
			counters.mark(p)
		}
	}
	const p = 33
	if counters.count(p, -1) || counters.has(p) {
		t.Error("a counter at zero was counted down")
	}
	if !counters.mark(p) || counters.mark(p) || !counters.has(p) {
		t.Error("mark does not tell the first from the second")
	}
	if counters.count(p, -1) || !counters.count(p, -1) || counters.has(p) {
		t.Error("counting down does not tell the last from the one before")
	}
	for range maxCount {
		counters.mark(p)
	}
	for range 100 {
		counters.mark(p)
		counters.count(p, -1)
		counters.count(p, -1)
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
	bits := tableOf(t, 1, 7, false)
	for _, p := range []uint64{0, 63, 64, 127} {
		if bits.has(p) || !bits.mark(p) || bits.mark(p) || !bits.has(p) {
			t.Errorf("position %d", p)
		}
	}
	for p := range uint64(128) {
		if want := p%64 == 0 || p%64 == 63; bits.has(p) != want {
			t.Errorf("position %d is set: %v, want %v", p, !want, want)
		}
	}
}

// Goroutines add to the same few words at the same time. If a bit were set by a read and a write
// of its word, one of them would undo the other's.
func TestAddsAtTheSameTimeLoseNoBit(t *testing.T) {
	for _, counting := range []bool{false, true} {
		const goroutines, rounds = 8, 300
		k, _ := newKey(nil)
		for round := range rounds {
			table := tableOf(t, 2, 7, counting)
			hash := func(g, i int) hash { return k.sum(fmt.Sprint(round, g, i)) }
			var all sync.WaitGroup
			begin := make(chan struct{})
			for g := range goroutines {
				all.Go(func() {
					<-begin
					for i := range 30 {
						table.add(hash(g, i))
						if !table.contains(hash(g, i)) {
							t.Errorf("counting %v: an id is denied after its Add", counting)
						}
					}
				})
			}
			close(begin)
			all.Wait()
			for g := range goroutines {
				for i := range 30 {
					if !table.contains(hash(g, i)) {
						t.Fatalf("counting %v, round %d: an id is denied after all Adds", counting, round)
					}
				}
			}
		}
	}
}

// The hash of a filter in one process spreads ids as SipHash does: as many absent ids pass.
func TestAQuickKeySpreadsIdsAsWell(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	const capacity, probes = 100_000, 400_000
	for _, rate := range []float64{0.1, 0.01, 0.001} {
		k, _ := newLocalKey(nil)
		table := newTable(newShape(capacity, rate, newSeed()), k, -1, false)
		for i := range capacity {
			table.add(k.sum(strconv.Itoa(i)))
		}
		passed := 0
		for i := range probes {
			if table.contains(k.sum(strconv.Itoa(capacity + i))) {
				passed++
			}
		}
		if got := float64(passed) / probes; math.Abs(got-rate) > 5*math.Sqrt(rate/probes)+rate/20 {
			t.Errorf("%.5f pass, want %v", got, rate)
		}
	}
}
