package codecs_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/codecs"
	"github.com/levee-go/levee/cache/codecs/internal/shop"
)

func allocatedBy(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// 100 MB of zeros in few bytes, with a true and with no length. Catches a decoder that
// takes memory on the word of its input: without the limit S2 takes 100 MB for them.
func TestABombCostsNoMoreThanTheLimit(t *testing.T) {
	zeros := make([]byte, 100<<20)
	var stream bytes.Buffer
	w := must(zstd.NewWriter(&stream))
	must(w.Write(zeros))
	w.Close()
	frame := must(zstd.NewWriter(nil)).EncodeAll(zeros, nil)
	small := must(zstd.NewWriter(nil)).EncodeAll(zeros[:1000], nil)
	zeros = s2.Encode(nil, zeros)
	z := must(codecs.Zstd(nil))
	for name, test := range map[string]struct {
		c    cache.Codec
		data []byte
	}{
		"S2":                         {codecs.S2(nil, 0), append([]byte{0xc1, 'S'}, zeros...)},
		"S2, a length and no bytes":  {codecs.S2(nil, 0), append([]byte{0xc1, 'S'}, binary.AppendUvarint(nil, 1<<32-1)...)},
		"S2, below the limit":        {codecs.S2(nil, 0), append([]byte{0xc1, 'S'}, binary.AppendUvarint(nil, codecs.DefaultLimit)...)},
		"zstd":                       {z, append([]byte{0xc1, 'Z'}, frame...)},
		"zstd, no length":            {z, append([]byte{0xc1, 'Z'}, stream.Bytes()...)},
		"zstd, behind a small frame": {z, append(append([]byte{0xc1, 'Z'}, small...), frame...)},
	} {
		var got []byte
		var err error
		if n := allocatedBy(func() { err = test.c.Unmarshal(test.data, &got) }); n > 2*codecs.DefaultLimit || err == nil {
			t.Errorf("%s: %d bytes become %d, and %d are allocated, %v", name, len(test.data), len(got), n, err)
		}
	}
}

// The limit bounds bytes. Each of them may become an element, as the package says; this is that
// it costs no more than the elements, which grow by doubling.
func TestABombOfElementsCostsNoMoreThanThey(t *testing.T) {
	const limit = 64 << 10
	for name, test := range map[string]struct {
		inner    cache.Codec
		data     []byte
		elements int
	}{
		"msgpack": {codecs.Msgpack(), append([]byte{0xdd, 0, 0, 0xff, 0xf0}, bytes.Repeat([]byte{0xc0}, 0xfff0)...), 0xfff0},
		"JSON":    {nil, []byte("[{}" + strings.Repeat(",{}", limit/3-1) + "]"), limit / 3},
	} {
		c := codecs.S2(test.inner, 0).Limit(limit)
		var got []product
		var err error
		n := allocatedBy(func() { err = c.Unmarshal(append([]byte{0xc1, 'S'}, s2.Encode(nil, test.data)...), &got) })
		if elements := uint64(test.elements) * uint64(unsafe.Sizeof(product{})); err != nil || len(got) != test.elements || n > 6*elements {
			t.Errorf("%s: %d elements of %d, %d bytes for %d, %v", name, len(got), test.elements, n, elements, err)
		}
	}
}

func TestTheLimitIsThatOfBothSides(t *testing.T) {
	for name, c := range map[string]*codecs.Compressor{"S2": codecs.S2(nil, 0), "zstd": must(codecs.Zstd(nil, dictionary(1)))} {
		fits, large := strings.Repeat("x", codecs.DefaultLimit), strings.Repeat("x", codecs.DefaultLimit+1)
		comesBack(t, name, c, fits)
		if _, err := c.Marshal(large); err == nil {
			t.Errorf("%s: a value over the limit is written", name)
		}
		wider := c.Limit(2 * codecs.DefaultLimit)
		comesBack(t, name, wider, large)
		var got string
		if err := c.Unmarshal(must(wider.Marshal(large)), &got); err == nil {
			t.Errorf("%s: a value over the limit is read", name)
		}
		if err := c.Limit(-1).Unmarshal(must(c.Marshal(fits)), &got); err == nil {
			t.Errorf("%s: a negative limit is none", name)
		}
	}
}

// Five bytes claim millions of elements; a million levels would end the process, since a
// goroutine's stack ends at 1 GB. Catches the decoder being asked without a look before.
func TestMsgpackThatLiesIsAnError(t *testing.T) {
	c := codecs.Msgpack()
	for name, data := range map[string][]byte{
		"array": {0xdd, 0xff, 0xff, 0xff, 0xff}, "map": {0xdf, 0xff, 0xff, 0xff, 0xff}, "bytes": {0xc6, 0xff, 0xff, 0xff, 0xff},
		"array 16": {0xdc, 0xff, 0xff}, "text": {0xdb, 0xff, 0xff, 0xff, 0xff, 'a'}, "ext": {0xc9, 0xff, 0xff, 0xff, 0xff, 1},
		"in an array": append([]byte{0x92, 0x01}, 0xdd, 0x00, 0xff, 0xff, 0xff), "deep": bytes.Repeat([]byte{0x91}, 1<<20),
		"deep maps": bytes.Repeat([]byte{0x81, 0xa0}, 1<<19), "nothing": {}, "more": {1, 2}, "unused": {0xc1}, "cut": {0xcf, 0},
	} {
		var anything any
		var products []product
		var err, another error
		if n := allocatedBy(func() { err, another = c.Unmarshal(data, &anything), c.Unmarshal(data, &products) }); err == nil || another == nil || n > 1<<20 {
			t.Errorf("%s: %d bytes are allocated, %v, %v", name, n, err, another)
		}
	}
}

// Ciphertexts under other keys, cut or changed are covered in package cache, with its headers.
func TestAESGCM(t *testing.T) {
	old, key := bytes.Repeat([]byte("o"), 16), bytes.Repeat([]byte("k"), 32)
	first, both, last := must(codecs.AESGCM(old)), must(codecs.AESGCM(key, old)), must(codecs.AESGCM(key))
	sealed := must(first.Seal([]byte("lamp"), []byte("1")))
	if again := must(first.Seal([]byte("lamp"), []byte("1"))); bytes.Equal(again, sealed) || len(sealed) != 4+28 || bytes.Contains(sealed, []byte("lamp")) {
		t.Errorf("sealed as %q and %q", sealed, again)
	}
	for name, s := range map[string]cache.Sealer{"the same": first, "in rotation": both} {
		if plain, err := s.Open(sealed, []byte("1")); string(plain) != "lamp" || err != nil {
			t.Errorf("%s: %q, %v", name, plain, err)
		}
	}
	if _, err := last.Open(sealed, []byte("1")); err == nil {
		t.Error("it opens without its key")
	}
	if plain, err := last.Open(must(both.Seal(nil, []byte("1"))), []byte("1")); len(plain) != 0 || err != nil {
		t.Errorf("the first key does not seal: %q, %v", plain, err)
	}
	if _, err := first.Open(sealed, []byte("2")); err == nil {
		t.Error("it opens in another place")
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if _, err := both.Open(changed, []byte("1")); err == nil {
			t.Errorf("byte %d is changed, and it opens", i)
		}
		if _, err := both.Open(sealed[:i], []byte("1")); err == nil {
			t.Errorf("%d bytes open", i)
		}
	}
	for _, keys := range [][][]byte{nil, {nil}, {key, []byte("short")}, {bytes.Repeat(key, 2)}} {
		if s, err := codecs.AESGCM(keys...); err == nil || s != nil || !strings.HasPrefix(err.Error(), "codecs: ") {
			t.Errorf("%d keys: %v", len(keys), err)
		}
	}
}

// fuzzed: no bytes make a codec panic, or take much memory.
func fuzzed(f *testing.F, c cache.Codec, prefix string) {
	for _, v := range []any{productOf(1, 200), "lamp", 7, []string{"a", "b"}, map[string]any{"a": []int{1}}} {
		f.Add(bytes.TrimPrefix(must(c.Marshal(v)), []byte(prefix)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append([]byte(prefix), data[:min(len(data), 1024)]...)
		if n := allocatedBy(func() {
			for _, v := range []any{new(any), new(product), new([]product), new(map[string]int), new(string)} {
				if c.Unmarshal(data, v) == nil {
					_, _ = c.Marshal(v)
				}
			}
		}); n > 16*codecs.DefaultLimit {
			t.Errorf("%d bytes of input make %d allocated", len(data), n)
		}
	})
}

func FuzzS2(f *testing.F)      { fuzzed(f, codecs.S2(nil, 0), "\xc1S") }
func FuzzZstd(f *testing.F)    { fuzzed(f, must(codecs.Zstd(nil, dictionary(1))), "\xc1Z") }
func FuzzMsgpack(f *testing.F) { fuzzed(f, codecs.Msgpack(), "") }

func FuzzProto(f *testing.F) {
	c := codecs.S2(codecs.Proto(), 0)
	f.Add(must(c.Marshal(productOf(1, 200).message())))
	f.Add(must(codecs.Proto().Marshal(productOf(1, 200).message())))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m *shop.Product
		if err := c.Unmarshal(data, &m); (err == nil) != (m != nil) {
			t.Errorf("%v, %v", m, err)
		}
	})
}

// FuzzTextComesBack: whatever a value begins with, it is not taken for a mark.
func FuzzTextComesBack(f *testing.F) {
	f.Add([]byte("\xc1S"), 0)
	f.Add(bytes.Repeat([]byte("\xc1Z"), 100), 10)
	z := must(codecs.Zstd(nil))
	f.Fuzz(func(t *testing.T, value []byte, from int) {
		if len(value) > 0 {
			comesBack(t, "S2", codecs.S2(nil, from), value)
			comesBack(t, "zstd", z, value)
			comesBack(t, "msgpack", codecs.S2(codecs.Msgpack(), from), value)
		}
	})
}
