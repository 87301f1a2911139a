package cache

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

var update = flag.Bool("update", false, "write the golden files of the stored bytes anew")

// goldenProduct is what the golden files hold as JSON. Never change it.
type goldenProduct struct {
	ID    int64
	Name  string
	Price float64 `json:"price"`
	Tags  []string
}

// upperCodec stands for a codec of the user's own.
type upperCodec struct{}

func (upperCodec) Marshal(v any) ([]byte, error) { return []byte(strings.ToUpper(v.(string))), nil }

func (upperCodec) Unmarshal(data []byte, v any) error {
	*v.(*string) = strings.ToLower(string(data))
	return nil
}

// A golden file holds what some release has stored, in hexadecimal, sixteen bytes
// a line. Every later release must read it, and write the same, as long as the
// version byte is the same. To a release with another one it is a miss.
type golden struct {
	name  string
	since int // the version of the first file
	check func(t *testing.T, file string)
}

const (
	goldenID      = "42/{a}%é"
	goldenCreated = 1_750_000_000_123
	goldenTTL     = 599_000
	goldenCost    = 57 * time.Millisecond
	goldenEpoch   = 1_763_800_000_123_456
)

func goldenOf[V any](name string, value V, null bool, o Options) golden {
	return goldenSince(1, name, value, life{null: null}, o)
}

// goldenSince is goldenOf for what no version before since could store.
func goldenSince[V any](since int, name string, value V, what life, o Options) golden {
	o.Name, o.MaxValue = "product", 1<<20
	what.created, what.expires, what.cost, what.epoch = goldenCreated, goldenCreated+goldenTTL, uint32(goldenCost/time.Millisecond), goldenEpoch
	return golden{name, since, func(t *testing.T, file string) {
		f := redistest.Must(newFormat[V](o, nil))
		e := &entry[V]{value: value, life: what}
		data, _, ttl, err := f.encode(goldenID, e)
		if err != nil || ttl != goldenTTL*time.Millisecond {
			t.Fatalf("encode: TTL %v, %v", ttl, err)
		}
		if *update {
			write(t, file, data)
		}
		stored := read(t, file)
		if !bytes.Equal(data, stored) {
			t.Errorf("what is written now is not what was:\n%s\n%s", hex.Dump(data), hex.Dump(stored))
		}
		got, ok := f.decode(goldenID, stored)
		if !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("read as %+v, %v; want %+v", got, ok, e)
		}
		for old := since; old < version; old++ {
			if got, ok := f.decode(goldenID, read(t, goldenFile(old, name))); ok {
				t.Errorf("what version %d has stored is read as %+v", old, got)
			}
		}
	}}
}

var goldens = []golden{
	goldenOf("null", "", true, Options{}),
	goldenOf("null-json", goldenProduct{}, true, Options{}),
	goldenOf("string", "a\x00\xff b", false, Options{}),
	goldenOf("string-empty", "", false, Options{}),
	goldenOf("bytes", []byte{0, 1, 254, 255}, false, Options{}),
	goldenOf("json", goldenProduct{7, "lamp <é>", 0.1, []string{"a", ""}}, false, Options{}),
	goldenOf("json-pointer", &goldenProduct{ID: 7}, false, Options{}),
	goldenOf("json-number", int64(1<<53+1), false, Options{}),
	goldenOf("custom", "shout", false, Options{Codec: upperCodec{}}),
	goldenOf("schema", "a", false, Options{Schema: 3}),
	goldenOf("schema-largest", "a", false, Options{Schema: 1<<31 - 1}),
	goldenSince(3, "tags", "a", life{more: &extra{tags: []uint32{0, 1<<32 - 1, 7}}}, Options{}),
	goldenSince(3, "version", "a", life{more: &extra{version: "\"é-1\""}}, Options{}),
	goldenSince(3, "tags-version-hard", goldenProduct{ID: 7}, life{hard: true, more: &extra{tags: []uint32{1}, version: strings.Repeat("v", maxVersion)}}, Options{}),
	goldenSince(3, "sealed", "a", life{more: &extra{tags: []uint32{1}, version: "v"}}, Options{Seal: testSealer{}}),
	goldenSince(3, "sealed-null", goldenProduct{}, life{null: true}, Options{Seal: testSealer{}, Schema: 3}),
}

func TestStoredBytesStayReadable(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) { g.check(t, goldenFile(version, g.name)) })
	}
	// A file without its test would look as if it were still read.
	for v := 1; v <= version; v++ {
		tests := 0
		for _, g := range goldens {
			if g.since <= v {
				tests++
			}
		}
		files, err := filepath.Glob(goldenFile(v, "*"))
		if err != nil || len(files) != tests {
			t.Errorf("%d golden files of version %d for %d tests, %v", len(files), v, tests, err)
		}
	}
}

func goldenFile(version int, name string) string {
	return filepath.Join("testdata", "golden", fmt.Sprintf("v%d-%s.hex", version, name))
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	var text strings.Builder
	for len(data) > 0 {
		n := min(16, len(data))
		fmt.Fprintf(&text, "% x\n", data[:n])
		data = data[n:]
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test ./cache -update writes it)", err)
	}
	data, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// stored returns bytes that the format reads as a value of id "42", and the format.
func stored(t testing.TB) (format[string], []byte) {
	t.Helper()
	f := redistest.Must(newFormat[string](Options{Name: "product", MaxValue: 1000}, nil))
	data, _, _, err := f.encode("42", &entry[string]{value: "lamp", life: life{created: goldenCreated, expires: goldenCreated + goldenTTL}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.decode("42", data); !ok {
		t.Fatal("what is written is not read")
	}
	return f, data
}

// reseal gives changed bytes the checksum that belongs to them, so that it is not
// the checksum alone that refuses them.
func reseal(data []byte) []byte {
	if len(data) >= headerSize {
		sum := checksum(data)
		data[offSum], data[offSum+1], data[offSum+2], data[offSum+3] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
	}
	return data
}

// Without the checksum the times and the cost would be believed.
func TestAnyByteChangedIsAMiss(t *testing.T) {
	f, data := stored(t)
	for i := range data {
		for bit := range 8 {
			changed := bytes.Clone(data)
			changed[i] ^= 1 << bit
			if e, ok := f.decode("42", changed); ok && !(i == offMark && bit == 0) { // which a script sets
				t.Errorf("byte %d, bit %d: read as %+v", i, bit, e)
			}
		}
	}
}

// Each field is looked at for itself, whatever the checksum says.
func TestAnyForeignHeaderFieldIsAMiss(t *testing.T) {
	f, data := stored(t)
	fields := map[string][]int{
		"magic": {0, 1}, "version": {offVersion}, "codec": {offCodec},
		"schema": {8, 9, 10, 11}, "digest": {40, 41, 42, 43, 44, 45, 46, 47}, "fingerprint": {48, 49, 50, 51},
	}
	for name, offsets := range fields {
		for _, i := range offsets {
			for bit := range 8 {
				changed := bytes.Clone(data)
				changed[i] ^= 1 << bit
				if _, ok := f.decode("42", reseal(changed)); ok {
					t.Errorf("%s: byte %d, bit %d is not looked at", name, i, bit)
				}
			}
		}
	}
	for kind := range 256 {
		changed := bytes.Clone(data)
		changed[offKind] = byte(kind)
		// A null has nothing behind its header, so it cannot be this either.
		if _, ok := f.decode("42", reseal(changed)); ok != (kind == kindValue) {
			t.Errorf("kind %d: read %v", kind, ok)
		}
	}
}

func TestTruncatedBytesAreAMiss(t *testing.T) {
	f, data := stored(t)
	for n := range len(data) {
		if _, ok := f.decode("42", data[:n]); ok {
			t.Errorf("%d of %d bytes are enough", n, len(data))
		}
		if _, ok := f.decode("42", append(bytes.Clone(data[:n]), data...)); ok && n > 0 {
			t.Errorf("%d bytes in front do not matter", n)
		}
		if _, ok := f.decode("42", append(bytes.Clone(data), data[:n]...)); ok && n > 0 {
			t.Errorf("%d bytes behind do not matter", n)
		}
	}
}

// The checksum fits and the codec is right: only the digest tells them apart.
func TestBytesOfAnotherKeyAreAMiss(t *testing.T) {
	f, data := stored(t)
	for _, id := range []string{"43", "4", "", "42 ", "042", "product:42", "v0:42"} {
		if _, ok := f.decode(id, data); ok {
			t.Errorf("the value of 42 is taken for that of %q", id)
		}
	}
	other := redistest.Must(newFormat[string](Options{Name: "customer", MaxValue: 1000}, nil))
	if _, ok := other.decode("42", data); ok {
		t.Error("a product is taken for a customer")
	}
	schema := redistest.Must(newFormat[string](Options{Name: "product", Schema: 1, MaxValue: 1000}, nil))
	if _, ok := schema.decode("42", data); ok {
		t.Error("schema 0 is taken for schema 1")
	}
	codec := redistest.Must(newFormat[string](Options{Name: "product", MaxValue: 1000, Codec: upperCodec{}}, nil))
	if _, ok := codec.decode("42", data); ok {
		t.Error("raw bytes are given to a codec")
	}
}

func TestForeignTextIsAMiss(t *testing.T) {
	f, data := stored(t)
	for _, foreign := range []string{
		"", "*", "L", "Lv", "Lv\x01", "null", "{}", `{"ID":42,"Name":"lamp"}`, "lamp", "rueidisid:1234",
		strings.Repeat("Lv\x02\x01\x01", 100), strings.Repeat("\x00", headerSize), strings.Repeat("\xff", 200), string(data[headerSize:]),
	} {
		if _, ok := f.decode("42", []byte(foreign)); ok {
			t.Errorf("%.40q is read", foreign)
		}
	}
}

func TestMoreThanMaxValueIsAMiss(t *testing.T) {
	small, large := redistest.Must(newFormat[string](Options{Name: "p", MaxValue: 10}, nil)), redistest.Must(newFormat[string](Options{Name: "p", MaxValue: 11}, nil))
	data, _, _, _ := large.encode("42", &entry[string]{value: "12345678901"})
	if _, ok := large.decode("42", data); !ok {
		t.Fatal("what is written is not read")
	}
	if _, ok := small.decode("42", data); ok {
		t.Error("11 bytes are read where 10 are allowed")
	}
	if data, size, ttl, err := small.encode("42", &entry[string]{value: "12345678901"}); data != nil || size != headerSize+11 || ttl != 0 || err != nil {
		t.Errorf("11 bytes are written: %v, %v, size %d", ttl, err, size)
	}
}

// survives checks that a value of type V is read as it was written.
func survives[V any](t *testing.T, value V) {
	t.Helper()
	f := redistest.Must(newFormat[V](Options{Name: "product", MaxValue: 1 << 20}, nil))
	data, _, _, err := f.encode("1", &entry[V]{value: value})
	if err != nil {
		t.Errorf("%T: %v", value, err)
		return
	}
	if got, ok := f.decode("1", data); !ok || !reflect.DeepEqual(got.value, value) {
		t.Errorf("%#v is read as %#v, %v", value, got, ok)
	}
}

func TestEachTypeOfValueIsReadAsItWasWritten(t *testing.T) {
	survives(t, "a\x00\xff b")
	survives(t, "")
	survives(t, []byte{0, 255, 'L', 'v'})
	survives(t, sku("a-1"))
	survives(t, place{1, 2})
	survives(t, []string(nil))
	survives(t, map[string]int(nil))
	survives(t, int64(1<<53+1))
	survives(t, false)
	survives(t, netip.MustParseAddr("10.0.0.1"))
	survives(t, time.Unix(1e9, 5).UTC())
	survives(t, purse{5})
	survives(t, []purse{{5}})
}

// A purse is read and written by methods of its pointer. Marshaled by value, it would be
// an empty object, and come back empty.
type purse struct{ cents int }

func (p *purse) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%d", p.cents), nil }

func (p *purse) UnmarshalJSON(data []byte) (err error) {
	p.cents, err = strconv.Atoi(string(data))
	return err
}
