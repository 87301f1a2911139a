package bloom

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// 64 KiB of a table, half full.
func someTable() table {
	t := newTable(64<<10*8, false)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range t.words {
		t.words[i] = r.Uint64()
	}
	return t
}

func TestTheSumsOfATableFindEveryChangedByte(t *testing.T) {
	table := someTable()
	want := checksumsOf(&table)
	for i, word := range table.words {
		changes := []uint64{1, 0x80, 0x81, 0xff, 0x69 ^ 0x96, uint64(1 + rand.IntN(255))}
		for shift := range 8 * len(changes) {
			changed := word ^ changes[shift/8]<<(shift%8*8)
			var before, after checksum
			before.add([]uint64{word}, i)
			after.add([]uint64{changed}, i)
			if before == after {
				t.Fatalf("word %d: %#x for %#x is not found", i, changed, word)
			}
			if i%500 == 0 { // the sum of a table is that of its words
				table.words[i] = changed
				if slices.Equal(checksumsOf(&table), want) {
					t.Fatalf("word %d: %#x for %#x is not found in the table", i, changed, word)
				}
				table.words[i] = word
			}
		}
	}
}

// The same, for all values.
func TestEveryValueOfEveryByteHasASumOfItsOwn(t *testing.T) {
	for _, place := range []int{0, 1, 7, 100, pieceWords - 1} {
		for shift := 0; shift < 64; shift += 8 {
			seen := map[uint64]uint64{}
			for v := range uint64(256) {
				var s checksum
				s.add([]uint64{v << shift}, place)
				if other, ok := seen[s.weight]; ok {
					t.Fatalf("at %d, %#x and %#x weigh the same", place, v, other)
				}
				seen[s.weight] = v
			}
		}
	}
}

func TestEveryChangedByteOfAHeaderIsFound(t *testing.T) {
	for _, counting := range []bool{false, true} {
		h, _, err := newHeader(Options{Capacity: 1000, FalsePositiveRate: 0.01, Counting: counting})
		if err != nil {
			t.Fatal(err)
		}
		everyChangeIsFound(t, h)
	}
}

func everyChangeIsFound(t *testing.T, h header) {
	t.Helper()
	good := h.encode()
	if back, err := decodeHeader(good); err != nil || back != h {
		t.Fatalf("%+v comes back as %+v, %v", h, back, err)
	}
	for i := range good {
		for change := 1; change < 256; change++ {
			bad := []byte(good)
			bad[i] ^= byte(change)
			if _, err := decodeHeader(string(bad)); err == nil {
				t.Fatalf("byte %d changed by %#x is not found", i, change)
			}
		}
		if _, err := decodeHeader(good[:i]); err == nil {
			t.Fatalf("cut off at %d is not found", i)
		}
	}
	if _, err := decodeHeader(good + "\x00"); err == nil {
		t.Fatal("a byte too many is not found")
	}
}

// All bytes of the stored headers, as this release writes them. A change needs a new
// version.
func TestTheStoredHeaderIsWhatItWas(t *testing.T) {
	for _, c := range []struct {
		h      header
		secret string
		golden string
	}{
		{header{salted: true, hashes: 7, size: 9600}, "", "4c564246010107008025000000000000303132333435363738396162636465660231bba6a41a0bf22beb460cfe9ffed8f09dfc3e"},
		{header{counting: true, hashes: 3, size: 1 << 33}, "a secret of 16 b", "4c564246010003010000000002000000303132333435363738396162636465668950eb0a7de40cd188ce11616a7757b145c01856"},
	} {
		h := c.h
		copy(h.salt[:], "0123456789abcdef")
		k, err := h.key([]byte(c.secret))
		if err != nil {
			t.Fatal(err)
		}
		h.fingerprint = k.fingerprint()
		if got := hexOf(h.encode()); got != c.golden {
			t.Errorf("got  %s\nwant %s", got, c.golden)
		}
		if back, err := decodeHeader(h.encode()); err != nil || back != h {
			t.Errorf("comes back as %+v, %v", back, err)
		}
	}
}

func hexOf(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteString(strconv.FormatUint(uint64(c>>4), 16) + strconv.FormatUint(uint64(c&15), 16))
	}
	return b.String()
}

// Redis and this process count bits in another order, and keep sums in another
// language.
func TestRedisAndWeSetTheSameBitsAndKeepTheSameSums(t *testing.T) {
	srv, st, rec := testStore(t)
	name := "generation"
	rdb := srv.Client(t)
	ctx := t.Context()
	rdb.HSet(ctx, st.names.Record(), "current", name)
	here := rec.newGeneration(st.o, name)
	rdb.HSet(ctx, st.names.Sums(name), encodeChecksums(checksumsOf(&here.table))...)
	var hashes []hash
	for i := range 300 {
		h := rec.key.sum(strconv.Itoa(i))
		hashes = append(hashes, h)
		here.add(h)
	}
	for chunk := range slices.Chunk(hashes, addChunk) {
		if _, err := st.add(ctx, rec, chunk, generations{current: name}); err != nil {
			t.Fatal(err)
		}
	}
	sums := checksumsOf(&here.table)
	if len(sums) != 3 {
		t.Fatalf("%d pieces", len(sums))
	}
	for i := range sums {
		bytes := rdb.Get(ctx, st.names.Piece(name, i)).Val()
		words := make([]uint64, len(here.table.piece(i)))
		if err := decodeWords(words, bytes); err != nil || !slices.Equal(words, here.table.piece(i)) {
			t.Errorf("piece %d differs, %v", i, err)
		}
		if back := encodeWords(nil, words); string(back[:len(bytes)]) != bytes {
			t.Errorf("piece %d is encoded otherwise", i)
		}
	}
	var fields []string
	for field, value := range rdb.HGetAll(ctx, st.names.Sums(name)).Val() {
		fields = append(fields, field, value)
	}
	if stored, err := decodeChecksums(fields, 3); err != nil || !slices.Equal(stored, sums) {
		t.Errorf("redis has the sums %v, %v, we have %v", stored, err, sums)
	}
}

func testStore(t *testing.T) (*redistest.Server, *store, *record) {
	srv := redistest.Start(t)
	o, err := Options{Name: "f", Capacity: 7_500_000, MaxTransaction: -1}.withSharedDefaults()
	if err != nil {
		t.Fatal(err)
	}
	st := newStore(srv.Client(t), o, "self")
	rec, err := st.ensure(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return srv, st, rec
}

// The rebuilder dies after its generation was announced. Adds go to it as long as its
// lease stands and never again: so it cannot be switched to even by a rebuilder that
// was only asleep.
func TestAGenerationWhoseRebuilderIsGoneIsNeverSwitchedTo(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	ctx := t.Context()
	f, err := Open(ctx, rdb, Options{Name: "f", Capacity: 1000, MaxTransaction: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := f.impl.(*shared)
	rec, err := s.currentRecord(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := newSharedRebuild(s, rec)
	if done, err := r.waitForLease(ctx, 0); err != nil || done || !r.held {
		t.Fatal(done, r.held, err)
	}
	if _, err := r.begin(ctx); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(context.Context) error{r.freeze, r.upload, r.announce} {
		if err := step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	next := func() string { return rdb.HGet(ctx, s.store.names.Record(), "next").Val() }
	for _, id := range []string{"a", "b"} {
		if err := f.Add(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := strconv.Atoi(rdb.HGet(ctx, s.store.names.Sums(r.name), "n").Val()); next() != r.name || n < 8 {
		t.Errorf("adds do not go to what was announced: next %q, %d bits", next(), n)
	}
	for _, key := range []string{s.store.names.Sums(r.name), s.store.names.Piece(r.name, 0)} {
		if ttl := rdb.PTTL(ctx, key).Val(); ttl <= 0 || ttl > orphanLife {
			t.Errorf("%s lives %v", key, ttl)
		}
	}
	rdb.PExpire(ctx, s.store.names.Rebuild(), time.Millisecond) // as if it was never renewed
	time.Sleep(5 * time.Millisecond)
	if err := f.Add(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	if next() != "" {
		t.Error("adds still go to a generation without a rebuilder")
	}
	if err := r.upload(ctx); !errors.Is(err, errLeaseLost) {
		t.Errorf("it uploads without its lease: %v", err)
	}
	if mine, _, _, err := r.acquire(ctx, 0); err != nil || !mine { // it wakes up
		t.Error(mine, err)
	}
	if err := r.makeCurrent(ctx); !errors.Is(err, errLeaseLost) {
		t.Errorf("it switches: %v", err)
	}
	r.release()
	if err := f.Rebuild(ctx, func(yield func(string, error) bool) { yield("a", nil) }); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"a"} {
		if !f.MayContain(ctx, id) {
			t.Errorf("%q is denied", id)
		}
	}
}

// The log tells what has happened since an entry only if that entry is still there:
// else it was cut off, or is another one.
func TestALogGoesOnOnlyFromAnEntryThatStands(t *testing.T) {
	t.Parallel()
	srv, st, rec := testStore(t)
	rdb, ctx := srv.Client(t), t.Context()
	tail := func(from entryID) (logPart, error) { return st.tail(ctx, rec, from, "", false) }
	begun, err := tail(entryID{})
	if err != nil {
		t.Fatal(err)
	}
	var all []hash
	var done changeReply
	for i := range 2 * tailChunk / addChunk {
		hashes := make([]hash, addChunk)
		for j := range hashes {
			hashes[j] = hash{uint64(i), uint64(j)}
		}
		all = append(all, hashes...)
		if done, err = st.add(ctx, rec, hashes, generations{}); err != nil {
			t.Fatal(err)
		}
	}
	var read []hash
	for n := (logPart{last: begun.last, more: true}); n.more; read = append(read, n.hashes...) {
		if n, err = tail(n.last); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(read, all) {
		t.Errorf("%d hashes, added %d", len(read), len(all))
	}
	if n, err := tail(done.entry); err != nil || len(n.hashes) != 0 || n.more || n.last != done.entry {
		t.Errorf("at the end: %+v, %v", n, err)
	}
	for what, from := range map[string]entryID{
		"an entry that never was":    {done.entry.ms, done.entry.seq + 1},
		"one that was to come later": {done.entry.ms + 1e6, 0},
		"one before all":             {1, 1},
	} {
		if _, err := tail(from); !errors.Is(err, errGap) {
			t.Errorf("%s: %v", what, err)
		}
	}
	rdb.XTrimMaxLen(ctx, st.names.Log(), 1)
	if _, err := tail(begun.last); !errors.Is(err, errGap) {
		t.Errorf("cut off: %v", err)
	}
	if _, err := tail(done.entry); err != nil {
		t.Errorf("cut off before: %v", err)
	}
}

// The log ends before an add of our own that Redis has acknowledged: it has lost it,
// and what else is not known.
func TestALogWithoutOurOwnAddIsNotFollowed(t *testing.T) {
	t.Parallel()
	f, err := Open(t.Context(), redistest.Start(t).Client(t), Options{Name: "f", Capacity: 1000, MaxTransaction: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Rebuild(t.Context(), func(yield func(string, error) bool) { yield("a", nil) }); err != nil {
		t.Fatal(err)
	}
	s := f.impl.(*shared)
	s.mu.Lock()
	s.ownEntry = entryID{1 << 50, 0}
	s.mu.Unlock()
	redistest.Eventually(t, 30*time.Second, "it loads again", func() bool { return f.Stats().Loads == 2 })
	if f.Stats().Abstaining || !f.MayContain(t.Context(), "a") {
		t.Error("it does not answer")
	}
}

// The hashes and positions of one record mean nothing to another record of that name.
func TestNothingIsDoneToAnotherRecord(t *testing.T) {
	t.Parallel()
	srv, st, rec := testStore(t)
	rdb, ctx := srv.Client(t), t.Context()
	rdb.FlushAll(ctx)
	if _, err := st.ensure(ctx, false); err != nil {
		t.Fatal(err)
	}
	before := rdb.XLen(ctx, st.names.Log()).Val()
	if _, err := st.add(ctx, rec, make([]hash, 1), generations{}); !errors.Is(err, errLost) {
		t.Errorf("add: %v", err)
	}
	if _, err := st.tail(ctx, rec, entryID{}, "", false); !errors.Is(err, errLost) {
		t.Errorf("tail: %v", err)
	}
	if after := rdb.XLen(ctx, st.names.Log()).Val(); after != before {
		t.Errorf("the log has %d entries, had %d", after, before)
	}
}

func FuzzHeader(f *testing.F) {
	h := header{salted: true, hashes: 7, size: 9600}
	f.Add(h.encode())
	f.Add("")
	f.Add(strings.Repeat("\xff", headerLen))
	f.Fuzz(func(t *testing.T, s string) {
		h, err := decodeHeader(s)
		if err != nil {
			return
		}
		if h.encode() != s {
			t.Errorf("%q comes back as %q", s, h.encode())
		}
		if _, err := h.accept(Options{Capacity: 1000, FalsePositiveRate: 0.01}); err != nil && !errors.Is(err, ErrParameters) {
			t.Error(err)
		}
	})
}

func FuzzSums(f *testing.F) {
	f.Add("n0 5 w0 77 n 5", 1)
	f.Add("n0 5 w0 77 n1 1 w1 1 n 6", 2)
	f.Add("n -1", 0)
	f.Fuzz(func(t *testing.T, text string, n int) {
		if n < 0 || n > 1000 {
			return
		}
		sums, err := decodeChecksums(strings.Fields(text), n)
		if err != nil {
			return
		}
		var fields []string
		for _, part := range encodeChecksums(sums) {
			switch part := part.(type) {
			case string:
				fields = append(fields, part)
			case uint64:
				fields = append(fields, strconv.FormatUint(part, 10))
			}
		}
		if again, err := decodeChecksums(fields, n); err != nil || !slices.Equal(again, sums) {
			t.Errorf("%v comes back as %v, %v", sums, again, err)
		}
	})
}

func FuzzWords(f *testing.F) {
	f.Add([]byte("12345678abc"), 2)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n < 0 || n > 1000 {
			return
		}
		words := make([]uint64, n)
		for i := range words {
			words[i] = 0xdead
		}
		err := decodeWords(words, string(b))
		if (err != nil) != (len(b) > 8*n) {
			t.Fatalf("%d bytes into %d words: %v", len(b), n, err)
		}
		if err == nil && !bytes.Equal(encodeWords(nil, words), append(b, make([]byte, 8*n-len(b))...)) {
			t.Error("comes back otherwise")
		}
	})
}

// FuzzReplies gives the parsers of scripts' replies what a server could send.
func FuzzReplies(f *testing.F) {
	f.Add("ok", "a", "b", "1-1", "0123456789abcdef", int64(0), "n", "1", "1", "7 8")
	f.Add("gap", "a", "b", "", "", int64(0), "", "", "", "")
	f.Add("stale", "a", "", "9223372036854775808-1", "x", int64(1), "", "", "-1", "18446744073709551615")
	f.Add("lost", "", "", "-", "", int64(-1), "", "", "2", "x")
	f.Fuzz(func(t *testing.T, kind, current, next, entry, hashes string, number int64, field, value, after, cleared string) {
		full := []any{kind, current, next, entry, hashes, number, []any{field, value}, []any{after, current, cleared}}
		for n := range len(full) + 1 {
			if got, err := parseLogPart(full[:n]); err == nil {
				if got.last.String() != entry || !bytes.Equal(encodeHashes(got.hashes), []byte(hashes)) || n != len(full) {
					t.Errorf("%q is understood as %+v", full[:n], got)
				}
				seen := 0
				got.replay(current, func(hash) { seen++ }, func(p []uint64) {
					if len(p) != len(strings.Fields(cleared)) || seen != got.removals[0].after {
						t.Errorf("%q is understood as %+v", full[:n], got)
					}
				})
				if seen != len(got.hashes) {
					t.Errorf("%d hashes of %d", seen, len(got.hashes))
				}
			}
			if got, err := parseAdded(full[:n]); err == nil && !got.stale && got.entry.String() != current {
				t.Errorf("%q is understood as %+v", full[:n], got)
			}
		}
		for _, reply := range [][]any{{entry, number}, {number, entry}, {entry}, {nil, number}, {[]any{}, nil}} {
			if at, wait, err := parseLogStart(reply); err == nil && (at.String() != entry || wait < 0 && number >= 0) {
				t.Errorf("%q is understood as %v, %v", reply, at, wait)
			}
		}
		for i := range full {
			odd := slices.Clone(full)
			odd[i] = nil
			if _, err := parseLogPart(odd); err == nil {
				t.Errorf("%q is understood", odd)
			}
			odd[i] = []any{int64(1)}
			if _, err := parseLogPart(odd); err == nil {
				t.Errorf("%q is understood", odd)
			}
		}
	})
}
