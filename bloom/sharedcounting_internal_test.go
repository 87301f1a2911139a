package bloom

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

// A counting filter of two pieces, the second of which is small.
func countingStore(t *testing.T) (*redistest.Server, *store, *record) {
	srv := redistest.Start(t)
	o, err := Options{Name: "f", Capacity: 4_000_000, Counting: true, MaxTransaction: -1, Complete: true}.withSharedDefaults()
	if err != nil {
		t.Fatal(err)
	}
	st := newStore(srv.Client(t), o, "self")
	rec, err := st.ensure(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return srv, st, rec
}

// Redis counts in another language and another order than this process, which makes
// the counters in a Rebuild. They, the bits and their sums have to be the same after
// any adds and removes.
func TestRedisAndWeCountTheSame(t *testing.T) {
	t.Parallel()
	srv, st, rec := countingStore(t)
	rdb, ctx := srv.Client(t), t.Context()
	name := rdb.HGet(ctx, st.names.Record(), "current").Val()
	here := rec.newGeneration(st.o, name)
	now := generations{current: name}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		hashes := make([]hash, 1+random.IntN(5))
		for i := range hashes {
			hashes[i] = rec.key.sum(strconv.Itoa(random.IntN(30)))
		}
		if random.IntN(3) > 0 {
			if _, err := st.add(ctx, rec, hashes, now); err != nil {
				t.Fatal(err)
			}
			for _, h := range hashes {
				here.add(h)
			}
			continue
		}
		ticket, err := st.ticket(ctx, rec)
		if err != nil {
			t.Fatal(err)
		}
		if done, err := st.remove(ctx, rec, ticket, hashes, now, -1); err != nil || done.stale {
			t.Fatal(done, err)
		}
		for _, h := range hashes {
			here.remove(h)
		}
	}
	bits := here.table.bits()
	sums := checksumsOf(&bits)
	for i := range sums {
		got := rdb.Get(ctx, st.names.Counters(name, i)).Val()
		if want := string(encodeCounters(nil, here.table.counters(i))); got != want {
			t.Errorf("the counters of piece %d differ: %d bytes, want %d", i, len(got), len(want))
		}
		words := make([]uint64, len(bits.piece(i)))
		if err := decodeWords(words, rdb.Get(ctx, st.names.Piece(name, i)).Val()); err != nil || !slices.Equal(words, bits.piece(i)) {
			t.Errorf("piece %d differs, %v", i, err)
		}
	}
	var fields []string
	for field, value := range rdb.HGetAll(ctx, st.names.Sums(name)).Val() {
		fields = append(fields, field, value)
	}
	if stored, err := decodeChecksums(fields, len(sums)); err != nil || !slices.Equal(stored, sums) || len(sums) != 2 {
		t.Errorf("redis has the sums %v, %v, we have %v", stored, err, sums)
	}
}

// Without the ticket, what the network delivers twice is taken out twice.
func TestATicketIsSpentOnce(t *testing.T) {
	t.Parallel()
	srv, st, rec := countingStore(t)
	rdb, ctx := srv.Client(t), t.Context()
	now := generations{current: rdb.HGet(ctx, st.names.Record(), "current").Val()}
	h := []hash{rec.key.sum("x")}
	set := func() int {
		n, _ := strconv.Atoi(rdb.HGet(ctx, st.names.Sums(now.current), "n").Val())
		return n
	}
	for range 2 {
		if _, err := st.add(ctx, rec, h, now); err != nil {
			t.Fatal(err)
		}
	}
	first, err := st.ticket(ctx, rec)
	if err != nil {
		t.Fatal(err)
	}
	second, err := st.ticket(ctx, rec)
	if err != nil || first == second {
		t.Fatalf("%q and %q, %v", first, second, err)
	}
	for _, ticket := range []string{first, first, "", "another", first} {
		if _, err := st.remove(ctx, rec, ticket, h, now, -1); err != nil {
			t.Fatal(err)
		}
		if set() == 0 {
			t.Fatalf("taken out twice, with %q", ticket)
		}
	}
	if done, err := st.remove(ctx, rec, second, h, generations{current: "another"}, -1); err != nil || !done.stale {
		t.Errorf("another generation: %+v, %v", done, err)
	}
	if _, err := st.remove(ctx, rec, second, h, now, -1); err != nil || set() != 0 {
		t.Errorf("the second Remove: %v, %d bits are set", err, set())
	}
}

// What the log says comes into effect in its order, whether the copy answers already
// or is being loaded.
func TestWhatIsClearedAndAddedAgainStays(t *testing.T) {
	o, err := Options{Name: "f", Capacity: 1000, Counting: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}.withSharedDefaults()
	if err != nil {
		t.Fatal(err)
	}
	h, k, err := newHeader(o)
	if err != nil {
		t.Fatal(err)
	}
	rec := &record{h.encode(), k}
	x, y := k.sum("x"), k.sum("y")
	positions := func(r *localCopy, h hash) (all []uint64) {
		w := r.generation.spread.start(h)
		for range r.generation.spread.hashes {
			all = append(all, w.next(&r.generation.spread))
		}
		return all
	}
	for _, part := range []bool{false, true} { // of a log that is read in two parts
		s := &shared{o: o}
		r := newLocalCopy(rec, o, "g")
		d := newDownload(newLocalCopy(rec, o, "g"))
		d.loaded = d.copy.generation.spread.size
		u := &updater{filter: s, record: rec, download: d}
		s.copy, s.record = r, rec
		cleared := []removal{{1, "g", positions(r, x)}, {2, "g", positions(r, y)}, {2, "another", positions(r, x)}, {2, "g", []uint64{1 << 60}}}
		if part {
			s.ownEntry = entryID{2, 0} // an add of ours, of x, is further on in the log
			u.apply(logPart{last: entryID{1, 0}, hashes: []hash{x}, removals: cleared[:1]})
			if !r.generation.contains(x) || r.generation.contains(y) {
				t.Error("cleared although an add of our own may need it")
			}
			u.apply(logPart{last: entryID{2, 0}, hashes: []hash{x}, removals: []removal{{1, "g", positions(r, y)}}})
		} else {
			u.apply(logPart{last: entryID{2, 0}, hashes: []hash{x, x}, removals: cleared})
		}
		for what, r := range map[string]*localCopy{"answering": r, "loading": d.copy} {
			if !r.generation.contains(x) || r.generation.contains(y) {
				t.Errorf("%s: x is in: %v, want true; y is in: %v, want false", what, r.generation.contains(x), r.generation.contains(y))
			}
		}
		u.apply(logPart{last: entryID{3, 0}, removals: []removal{{0, "g", positions(r, x)}}})
		if r.generation.contains(x) || r.generation.set.Load() != 0 || d.copy.generation.contains(x) || d.checksums[0] != (checksum{}) {
			t.Errorf("the last is not taken out: %d bits, %+v", r.generation.set.Load(), d.checksums)
		}
		// An Add learns of its own reply after the log has told of it, and of its Remove.
		s.addToCopies(rec, []hash{x}, entryID{2, 0})
		if r.generation.contains(x) {
			t.Error("put in again by a late reply")
		}
		if s.addToCopies(rec, []hash{x}, entryID{4, 0}); !r.generation.contains(x) {
			t.Error("not put in by an Add ahead of the log")
		}
	}
}
