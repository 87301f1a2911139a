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
func countingAuthority(t *testing.T) (*redistest.Server, *authority, *incarnation) {
	s := redistest.Start(t)
	o, err := Options{Name: "f", Capacity: 4_000_000, Counting: true, MaxTransaction: -1, Complete: true}.withSharedDefaults()
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthority(s.Client(t), o, "self")
	inc, err := a.ensure(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return s, a, inc
}

// Redis counts in another language and another order than this process, which makes
// the counters in a Rebuild. They, the bits and their sums have to be the same after
// any adds and removes.
func TestRedisAndWeCountTheSame(t *testing.T) {
	t.Parallel()
	s, a, inc := countingAuthority(t)
	rdb, ctx := s.Client(t), t.Context()
	name := rdb.HGet(ctx, a.names.Record(), "current").Val()
	here := newGeneration(a.o, inc.key, inc.number(name))
	now := state{current: name}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		hashes := make([]hash, 1+random.IntN(5))
		for i := range hashes {
			hashes[i] = inc.key.sum(strconv.Itoa(random.IntN(30)))
		}
		if random.IntN(3) > 0 {
			if _, err := a.add(ctx, inc, hashes, now); err != nil {
				t.Fatal(err)
			}
			for _, h := range hashes {
				here.add(h)
			}
			continue
		}
		ticket, err := a.ticket(ctx, inc)
		if err != nil {
			t.Fatal(err)
		}
		if done, err := a.remove(ctx, inc, ticket, hashes, now, -1); err != nil || done.stale {
			t.Fatal(done, err)
		}
		for _, h := range hashes {
			here.remove(h)
		}
	}
	bits := here.table.bits()
	sums := sumsOf(&bits)
	for i := range sums {
		got := rdb.Get(ctx, a.names.Counters(name, i)).Val()
		if want := string(encodeCounters(nil, here.table.counters(i))); got != want {
			t.Errorf("the counters of piece %d differ: %d bytes, want %d", i, len(got), len(want))
		}
		words := make([]uint64, len(bits.piece(i)))
		if err := decodeWords(words, rdb.Get(ctx, a.names.Piece(name, i)).Val()); err != nil || !slices.Equal(words, bits.piece(i)) {
			t.Errorf("piece %d differs, %v", i, err)
		}
	}
	var fields []string
	for field, value := range rdb.HGetAll(ctx, a.names.Sums(name)).Val() {
		fields = append(fields, field, value)
	}
	if stored, err := decodeSums(fields, len(sums)); err != nil || !slices.Equal(stored, sums) || len(sums) != 2 {
		t.Errorf("redis has the sums %v, %v, we have %v", stored, err, sums)
	}
}

// Without the ticket, what the network delivers twice is taken out twice.
func TestATicketIsSpentOnce(t *testing.T) {
	t.Parallel()
	s, a, inc := countingAuthority(t)
	rdb, ctx := s.Client(t), t.Context()
	now := state{current: rdb.HGet(ctx, a.names.Record(), "current").Val()}
	h := []hash{inc.key.sum("x")}
	set := func() int {
		n, _ := strconv.Atoi(rdb.HGet(ctx, a.names.Sums(now.current), "n").Val())
		return n
	}
	for range 2 {
		if _, err := a.add(ctx, inc, h, now); err != nil {
			t.Fatal(err)
		}
	}
	first, err := a.ticket(ctx, inc)
	if err != nil {
		t.Fatal(err)
	}
	second, err := a.ticket(ctx, inc)
	if err != nil || first == second {
		t.Fatalf("%q and %q, %v", first, second, err)
	}
	for _, ticket := range []string{first, first, "", "another", first} {
		if _, err := a.remove(ctx, inc, ticket, h, now, -1); err != nil {
			t.Fatal(err)
		}
		if set() == 0 {
			t.Fatalf("taken out twice, with %q", ticket)
		}
	}
	if done, err := a.remove(ctx, inc, second, h, state{current: "another"}, -1); err != nil || !done.stale {
		t.Errorf("another generation: %+v, %v", done, err)
	}
	if _, err := a.remove(ctx, inc, second, h, now, -1); err != nil || set() != 0 {
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
	inc := &incarnation{h.encode(), k}
	x, y := k.sum("x"), k.sum("y")
	positions := func(r *replica, h hash) (all []uint64) {
		w := r.spread.start(h)
		for range r.spread.hashes {
			all = append(all, w.next(&r.spread))
		}
		return all
	}
	for _, part := range []bool{false, true} { // of a log that is read in two parts
		s := &shared{o: o}
		r := s.newReplica(inc, "g")
		l := &loading{replica: s.newReplica(inc, "g"), sums: make([]sum, 1)}
		l.loaded = l.spread.size
		f := &follower{shared: s, inc: inc, loading: l}
		s.replica, s.inc = r, inc
		cleared := []clearing{{1, "g", positions(r, x)}, {2, "g", positions(r, y)}, {2, "another", positions(r, x)}, {2, "g", []uint64{1 << 60}}}
		if part {
			s.own = entry{2, 0} // an add of ours, of x, is further on in the log
			f.apply(news{last: entry{1, 0}, hashes: []hash{x}, clears: cleared[:1]})
			if !r.contains(x) || r.contains(y) {
				t.Error("cleared although an add of our own may need it")
			}
			f.apply(news{last: entry{2, 0}, hashes: []hash{x}, clears: []clearing{{1, "g", positions(r, y)}}})
		} else {
			f.apply(news{last: entry{2, 0}, hashes: []hash{x, x}, clears: cleared})
		}
		for what, r := range map[string]*replica{"answering": r, "loading": l.replica} {
			if !r.contains(x) || r.contains(y) {
				t.Errorf("%s: x is in: %v, want true; y is in: %v, want false", what, r.contains(x), r.contains(y))
			}
		}
		f.apply(news{last: entry{3, 0}, clears: []clearing{{0, "g", positions(r, x)}}})
		if r.contains(x) || r.set.Load() != 0 || l.contains(x) || l.sums[0] != (sum{}) {
			t.Errorf("the last is not taken out: %d bits, %+v", r.set.Load(), l.sums)
		}
		// An Add learns of its own reply after the log has told of it, and of its Remove.
		s.added(inc, []hash{x}, entry{2, 0})
		if r.contains(x) {
			t.Error("put in again by a late reply")
		}
		if s.added(inc, []hash{x}, entry{4, 0}); !r.contains(x) {
			t.Error("not put in by an Add ahead of the log")
		}
	}
}
