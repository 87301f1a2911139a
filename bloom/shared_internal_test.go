package bloom

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// Without the checksum, or with one that does not cover where a piece belongs, a process
// answers from bytes of another piece, another snapshot, or nobody's.
func TestAPieceIsReadWholeAndInItsPlaceOrNotAtAll(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	table := tableOf(t, 2*pieceBytes/64+10, 7, false)
	for i := range table.words {
		table.words[i] = rand.Uint64()
	}
	copied := func() *shapeless { return &shapeless{tableOf(t, 2*pieceBytes/64+10, 7, false)} }
	all := copied()
	for i := range table.pieces() {
		if err := all.decodePiece("name", i, string(table.encodePiece("name", i))); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(all.words, table.words) || table.pieces() != 3 {
		t.Errorf("%d pieces do not make the table again", table.pieces())
	}
	last := string(table.encodePiece("name", 2))
	for i := range last {
		for _, change := range []byte{1, 0x80, 0xff, byte(1 + rand.IntN(255))} {
			bad := []byte(last)
			if bad[i] ^= change; copied().decodePiece("name", 2, string(bad)) == nil {
				t.Fatalf("byte %d changed by %#x is not found", i, change)
			}
		}
		if copied().decodePiece("name", 2, last[:i]) == nil || copied().decodePiece("name", 2, last[i:]+last[:i]) == nil && i > 0 {
			t.Fatalf("cut off or turned at %d is not found", i)
		}
	}
	if first := string(table.encodePiece("name", 0)); copied().decodePiece("name", 1, first) == nil || copied().decodePiece("other", 0, first) == nil {
		t.Error("a piece is taken for another")
	}
	if copied().decodePiece("name", 2, last+"\x00") == nil || copied().decodePiece("name", 2, "") == nil {
		t.Error("a byte too many, or none, is not found")
	}
}

// A shapeless is a table into which pieces are read.
type shapeless struct{ *table }

func TestEveryChangedByteOfAHeaderOrAShapeIsFound(t *testing.T) {
	h, err := newHeader(Options{})
	if err != nil {
		t.Fatal(err)
	}
	everyChangeIsFound(t, h, func(h header) string { return h.encode() }, decodeHeader)
	everyChangeIsFound(t, newShape(1000, 0.01, newSeed()), shape.encode, decodeShape)
}

func everyChangeIsFound[T comparable](t *testing.T, h T, encode func(T) string, decode func(string) (T, error)) {
	t.Helper()
	good := encode(h)
	if back, err := decode(good); err != nil || back != h {
		t.Fatalf("%+v comes back as %+v, %v", h, back, err)
	}
	for i := range good {
		for change := 1; change < 256; change++ {
			bad := []byte(good)
			bad[i] ^= byte(change)
			if _, err := decode(string(bad)); err == nil {
				t.Fatalf("byte %d changed by %#x is not found", i, change)
			}
		}
		if _, err := decode(good[:i]); err == nil {
			t.Fatalf("cut off at %d is not found", i)
		}
	}
	if _, err := decode(good + "\x00"); err == nil {
		t.Fatal("a byte too many is not found")
	}
}

// All bytes of what is stored, as this release writes them. A change needs a new version.
func TestTheStoredHeaderAndShapeAreWhatTheyWere(t *testing.T) {
	for _, c := range []struct {
		h              header
		secret, golden string
	}{
		{header{salted: true}, "", "4c5642460201303132333435363738396162636465660231bba6a41a0bf22beb460cfe9ffed897a807a3"},
		{header{}, "a secret of 16 b", "4c5642460200303132333435363738396162636465668950eb0a7de40cd188ce11616a7757b17a1693a7"},
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
	}
	if got, want := hexOf(shape{10_000_000, 200_000, 7, 77}.encode()), "01078096980000000000400d0300000000004d00000000000000f88f7db8"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	table := tableOf(t, 1, 7, false)
	table.words[0], table.words[7] = 0x0102030405060708, 0xf0
	if got, want := hexOf(string(table.encodePiece("name", 0))), "0807060504030201000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000f0000000000000006d113ff4"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func hexOf(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteString(strconv.FormatUint(uint64(c>>4), 16) + strconv.FormatUint(uint64(c&15), 16))
	}
	return b.String()
}

func testStore(t *testing.T) (*redistest.Server, *store, *record, entryID) {
	srv := redistest.Start(t)
	o, err := Options{Name: "f", Capacity: 7_500_000, MaxTransaction: -1}.withSharedDefaults()
	if err != nil {
		t.Fatal(err)
	}
	st := newStore(srv.Client(t), o, "self")
	rec, last, err := st.ensure(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return srv, st, rec, last
}

// The log tells what has happened since an entry only if that entry is still there, and
// every one after it: else it was cut off, or is another one.
func TestALogGoesOnOnlyFromAnEntryThatStands(t *testing.T) {
	t.Parallel()
	srv, st, rec, begun := testStore(t)
	rdb, ctx := srv.Client(t), t.Context()
	tail := func(from entryID) (logPart, error) { return st.tail(ctx, rec, from) }
	var all []hash
	var last entryID
	for i := range 2*tailChunk/addChunk + 1 {
		hashes := make([]hash, addChunk)
		for j := range hashes {
			hashes[j] = hash{uint64(i), uint64(j)}
		}
		all = append(all, hashes...)
		var err error
		if last, err = st.add(ctx, rec, hashes, 1e9); err != nil {
			t.Fatal(err)
		}
	}
	var read []hash
	var err error
	for n := (logPart{entry: begun, more: true}); n.more; read = append(read, n.hashes...) {
		if n, err = tail(n.entry); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(read, all) || last.number != begun.number+uint64(len(all)) {
		t.Errorf("%d hashes, added %d, the last at %v", len(read), len(all), last)
	}
	if n, err := tail(last); err != nil || len(n.hashes) != 0 || n.more || n.entry.String() != last.String() {
		t.Errorf("at the end: %+v, %v", n, err)
	}
	gap := func(what string, from entryID) {
		t.Helper()
		if _, err := tail(from); !errors.Is(err, errGap) {
			t.Errorf("%s: %v", what, err)
		}
	}
	gap("an entry that never was", entryID{ms: last.ms, number: last.number + 1})
	gap("one of another history", entryID{ms: last.ms - 1, number: last.number})
	gap("one that holds something else", entryID{last.ms, last.number, "another hash...."})
	gap("one that was to come later", entryID{ms: last.ms + 1e6})
	gap("one before all", entryID{ms: 1, number: 1})
	entries := rdb.XRevRangeN(ctx, st.names.Log(), "+", "-", 3).Val()
	rdb.XDel(ctx, st.names.Log(), entries[1].ID)
	two, err := decodeEntryID(entries[2].ID)
	if err != nil {
		t.Fatal(err)
	}
	gap("before one that is missing", two)
	rdb.XTrimMaxLen(ctx, st.names.Log(), 1)
	gap("cut off", begun)
	if _, err := tail(last); err != nil {
		t.Errorf("cut off before: %v", err)
	}
	rdb.XDel(ctx, st.names.Log(), entries[0].ID)
	gap("the last", last)
}

// opened is a filter that needs no wait before a Rebuild.
func opened(t *testing.T, srv *redistest.Server) (*Filter, *shared) {
	t.Helper()
	f, err := Open(t.Context(), srv.Client(t), Options{Name: "f", Capacity: 1000, MaxTransaction: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f, f.impl.(*shared)
}

// Redis has something else, or nothing, where it has acknowledged an add of this process: it
// has lost it, and what else is not known.
func TestALogWithoutOurOwnAddIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, another := range []bool{false, true} {
		srv := redistest.Start(t)
		f, s := opened(t, srv)
		if err := f.Rebuild(t.Context(), func(yield func(string, error) bool) { yield("a", nil) }); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		rec, next := s.record, s.at.number+1
		s.own[next], s.newest = hash{1, 2}, next
		s.mu.Unlock()
		if another {
			if _, err := s.store.add(t.Context(), rec, []hash{{3, 4}}, 1e9); err != nil {
				t.Fatal(err)
			}
		}
		redistest.Eventually(t, 30*time.Second, "it loads again and answers", func() bool { return f.Stats().Loads > 1 && !f.Stats().Abstaining })
		if !f.MayContain(t.Context(), "a") {
			t.Error("it denies what was scanned")
		}
	}
}

// The updater has read past an add before the reply to it is handled, and nobody has looked
// whether it found the add. So the add is sent again.
func TestAnAddThatTheUpdaterHasPassedIsSentAgain(t *testing.T) {
	t.Parallel()
	_, s := opened(t, redistest.Start(t))
	rec, err := s.currentRecord(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last, err := s.store.add(t.Context(), rec, make([]hash, 2), 1e9)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, "it is read", func() bool { return s.position().String() == last.String() })
	if err := s.added(rec, make([]hash, 2), last); !errors.Is(err, errLate) {
		t.Errorf("got %v", err)
	}
	for _, late := range []int{1, 6} {
		sent := 0
		err = s.onRecord(t.Context(), func(*record) error {
			if sent++; sent <= late {
				return errLate
			}
			return nil
		})
		if err != nil || sent != late+1 || (s.knownRecord() == rec) != (late == 1) {
			t.Errorf("sent %d times: %v", sent, err)
		}
	}
}

// The hashes of one record mean nothing to another record of that name.
func TestNothingIsDoneToAnotherRecord(t *testing.T) {
	t.Parallel()
	srv, st, rec, last := testStore(t)
	rdb, ctx := srv.Client(t), t.Context()
	rdb.FlushAll(ctx)
	if _, _, err := st.ensure(ctx, false); err != nil {
		t.Fatal(err)
	}
	before := rdb.XLen(ctx, st.names.Log()).Val()
	if _, err := st.add(ctx, rec, make([]hash, 1), 1e9); !errors.Is(err, errLost) {
		t.Errorf("add: %v", err)
	}
	if _, err := st.tail(ctx, rec, last); !errors.Is(err, errLost) {
		t.Errorf("tail: %v", err)
	}
	if in, err := st.damaged(ctx, rec, snapshot{}); in || err != nil {
		t.Errorf("damaged: %v, %v", in, err)
	}
	if after := rdb.XLen(ctx, st.names.Log()).Val(); after != before {
		t.Errorf("the log has %d entries, had %d", after, before)
	}
}

func FuzzHeader(f *testing.F) {
	h := header{salted: true}
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
		if _, err := h.accept(Options{}); err != nil && !errors.Is(err, ErrParameters) {
			t.Error(err)
		}
	})
}

func FuzzShape(f *testing.F) {
	f.Add(newShape(1000, 0.01, 5).encode())
	f.Add("")
	f.Add(strings.Repeat("\xff", shapeLen))
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := decodeShape(text); err == nil && (s.encode() != text || s.hashes == 0 || s.blocks == 0) {
			t.Errorf("%q comes back as %q", text, s.encode())
		}
	})
}

func FuzzPiece(f *testing.F) {
	f.Add("name", 0, []byte("12345678abc"))
	f.Add("", 1, tableOf(f, 1, 7, false).encodePiece("", 0))
	table := tableOf(f, 1, 7, false)
	f.Fuzz(func(t *testing.T, name string, i int, b []byte) {
		if i == 0 && table.decodePiece(name, i, string(b)) == nil && !bytes.Equal(table.encodePiece(name, i), b) {
			t.Error("comes back otherwise")
		}
	})
}

// FuzzReplies gives the parsers of scripts' replies what a server could send.
func FuzzReplies(f *testing.F) {
	f.Add("ok", "shape", "pieces", "1-1", "1-2", "", "1-2", "0123456789abcdef", int64(0))
	f.Add("gap", "", "", "1-1", "1-1", "1", "", "", int64(1))
	f.Add("lost", "", "", "-", "9007199254740993-1", "x", "1-", "x", int64(-1))
	f.Fuzz(func(t *testing.T, kind, shape, pieces, at, last, damaged, entry, hashes string, number int64) {
		full := []any{kind, shape, pieces, at, last, damaged, entry, hashes, number, number}
		for n := range len(full) + 1 {
			got, err := parseLogPart(full[:n])
			if err == nil && (n != len(full) || got.entry.String() != entry || got.snapshot.at != (entryID{}) && got.snapshot.at.String() != at || !bytes.Equal(encodeHashes(got.hashes), []byte(hashes))) {
				t.Errorf("%q is understood as %+v", full[:n], got)
			}
		}
		for _, reply := range [][]any{{entry, number, kind, hashes}, {number, entry, kind, hashes}, {entry}, {nil, number, kind, hashes}, {[]any{}, nil, nil, nil}} {
			if at, age, _, err := parseLogStart(reply); err == nil && (at.String() != entry || age < 0 && number < 1<<40) {
				t.Errorf("%q is understood as %v, %v", reply, at, age)
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
