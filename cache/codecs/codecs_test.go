package codecs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/codecs"
	"github.com/levee-go/levee/cache/codecs/internal/shop"
)

type product struct {
	ID       int64
	SKU      string
	Name     string
	Cents    int64
	Tags     []string
	Variants []variant
}

type variant struct {
	SKU, Colour  string
	Cents, Stock int64
	Note         string
}

var words = strings.Fields("lamp shade oak brass linen floor desk reading warm light bulb socket cable switch dimmer matte black white copper glass round tall small large round foot arm")

func sentence(r *rand.Rand, n int) string {
	var s []string
	for range n {
		s = append(s, words[r.IntN(len(words))])
	}
	return strings.Join(s, " ")
}

// productOf makes a product whose JSON has about so many bytes: the same for the same seed.
func productOf(seed uint64, size int) product {
	r := rand.New(rand.NewPCG(seed, 0))
	p := product{ID: r.Int64N(1e9), SKU: fmt.Sprintf("SKU-%08d", r.IntN(1e8)), Name: sentence(r, 4), Cents: r.Int64N(1e5), Tags: []string{sentence(r, 1), sentence(r, 1)}}
	for len(must(json.Marshal(p)))+100 < size {
		p.Variants = append(p.Variants, variant{fmt.Sprintf("SKU-%08d-%d", p.ID, len(p.Variants)), sentence(r, 1), p.Cents + r.Int64N(500), r.Int64N(1000), sentence(r, 8)})
	}
	for len(must(json.Marshal(p))) < size {
		p.Tags = append(p.Tags, sentence(r, 1))
	}
	return p
}

func (p product) message() *shop.Product {
	m := &shop.Product{Id: p.ID, Sku: p.SKU, Name: p.Name, Cents: p.Cents, Tags: p.Tags}
	for _, v := range p.Variants {
		m.Variants = append(m.Variants, &shop.Variant{Sku: v.SKU, Colour: v.Colour, Cents: v.Cents, Stock: v.Stock, Note: v.Note})
	}
	return m
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// dictionary is some products, one after the other.
func dictionary(seed uint64) []byte {
	var dict []byte
	for i := range uint64(20) {
		dict = append(dict, must(json.Marshal(productOf(seed+i, 300)))...)
	}
	return dict
}

func all() map[string]cache.Codec {
	return map[string]cache.Codec{
		"S2": codecs.S2(nil, 0), "S2 from 1024": codecs.S2(nil, 1024), "S2 of msgpack": codecs.S2(codecs.Msgpack(), 100),
		"zstd": must(codecs.Zstd(nil)), "zstd, dictionary": must(codecs.Zstd(nil, dictionary(1), dictionary(100))),
		"msgpack": codecs.Msgpack(), "zstd of msgpack": must(codecs.Zstd(codecs.Msgpack())),
	}
}

func comesBack[V any](t *testing.T, name string, c cache.Codec, value V) (size int) {
	t.Helper()
	data, err := c.Marshal(value)
	if err != nil {
		t.Errorf("%s: %T: %v", name, value, err)
		return 0
	}
	var got V
	if err := c.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(got, value) {
		t.Errorf("%s: %T: %v comes back as %v, %v", name, value, value, got, err)
	}
	return len(data)
}

func TestWhatACodecStoresComesBack(t *testing.T) {
	for name, c := range all() {
		for _, size := range []int{200, 2000, 20_000} {
			p := productOf(7, size)
			comesBack(t, name, c, p)
			comesBack(t, name, c, &p)
		}
		comesBack(t, name, c, "")
		comesBack(t, name, c, "\xc1S is how a mark begins")
		comesBack(t, name, c, strings.Repeat("\xc1", 5000))
		comesBack(t, name, c, []byte{0xc1})
		comesBack(t, name, c, bytes.Repeat([]byte("light "), 5000))
		comesBack(t, name, c, map[string]int{"a": 1, "b": 2})
		comesBack(t, name, c, int64(-7))
		comesBack(t, name, c, time.Duration(5))
	}
	m := productOf(7, 2000).message()
	for name, c := range map[string]cache.Codec{"proto": codecs.Proto(), "S2 of proto": codecs.S2(codecs.Proto(), 0)} {
		data := must(c.Marshal(m))
		var got *shop.Product
		if err := c.Unmarshal(data, &got); err != nil || !proto.Equal(got, m) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// A type whose methods for JSON are those of its pointer, and hide its field.
type secretive struct{ Name string }

func (s *secretive) MarshalJSON() ([]byte, error) { return json.Marshal("x" + s.Name) }
func (s *secretive) UnmarshalJSON(data []byte) error {
	s.Name = string(data[2 : len(data)-1])
	return nil
}

func TestMarshalersOfPointersAreUsed(t *testing.T) {
	comesBack(t, "S2", codecs.S2(nil, 1<<20), secretive{"lamp"})
	if data := must(codecs.S2(nil, 1<<20).Marshal(secretive{"lamp"})); string(data) != `"xlamp"` {
		t.Errorf("got %s", data)
	}
	type priced struct{ Price big.Int }
	for name, c := range map[string]cache.Codec{"msgpack": codecs.Msgpack(), "S2 of msgpack": codecs.S2(codecs.Msgpack(), 0), "JSON": codecs.S2(nil, 0)} {
		comesBack(t, name, c, priced{*big.NewInt(1999)})
		comesBack(t, name, c, []priced{{*big.NewInt(1999)}})
		comesBack(t, name, c, *big.NewInt(1999))
		comesBack(t, name, c, (*priced)(nil))
	}
}

// A codec that is put around another one reads what that has stored before, and a process that has
// only the other one reads what was not worth compressing.
func TestCompressionIsSwitchedOnBesideOldValues(t *testing.T) {
	for name, inner := range map[string]cache.Codec{"msgpack": codecs.Msgpack(), "JSON": codecs.S2(nil, 1<<20)} {
		for _, size := range []int{200, 20_000} {
			p := productOf(1, size)
			old := must(inner.Marshal(p))
			for kind, c := range map[string]cache.Codec{"S2": codecs.S2(inner, 1024), "zstd": must(codecs.Zstd(inner))} {
				var got product
				if err := c.Unmarshal(old, &got); err != nil || !reflect.DeepEqual(got, p) {
					t.Errorf("%s of %s: %v", kind, name, err)
				}
				if now := must(c.Marshal(p)); size > 1024 && len(now) >= len(old)*2/3 || kind == "S2" && size < 1024 && !bytes.Equal(now, old) {
					t.Errorf("%s of %s: %d bytes of %d", kind, name, len(now), len(old))
				}
			}
		}
	}
}

// What the one has compressed the other does not take for something else.
func TestAnotherCompressionIsAnError(t *testing.T) {
	p := productOf(1, 20_000)
	s, z := codecs.S2(nil, 0), must(codecs.Zstd(nil))
	var got product
	if s.Unmarshal(must(z.Marshal(p)), &got) == nil || z.Unmarshal(must(s.Marshal(p)), &got) == nil {
		t.Errorf("it is read as %+v", got)
	}
}

// The first dictionary compresses, all are read.
func TestADictionaryIsRotated(t *testing.T) {
	first, second := dictionary(1), dictionary(1000)
	old, both, fresh := must(codecs.Zstd(nil, first)), must(codecs.Zstd(nil, second, first)), must(codecs.Zstd(nil, second))
	p := productOf(5, 200)
	plain, without := len(must(json.Marshal(p))), len(must(must(codecs.Zstd(nil)).Marshal(p)))
	if n := len(must(old.Marshal(p))); n > plain*2/3 || n >= without {
		t.Errorf("%d bytes of %d, without a dictionary %d", n, plain, without)
	}
	for name, test := range map[string]struct {
		writes, reads cache.Codec
		ok            bool
	}{
		"old values are read": {old, both, true}, "new ones too": {fresh, both, true},
		"and written": {both, fresh, true}, "a dictionary that is gone": {old, fresh, false},
	} {
		var got product
		if err := test.reads.Unmarshal(must(test.writes.Marshal(p)), &got); (err == nil) != test.ok || test.ok && !reflect.DeepEqual(got, p) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range [][]byte{{}, []byte("\x37\xa4\x30\xec, and no dictionary")} {
		if _, err := codecs.Zstd(nil, bad); err == nil || !strings.HasPrefix(err.Error(), "codecs: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// With JSON that is what the local tier would count; compressed it would count a tenth.
func TestSizeIsWhatAValueTakesDecoded(t *testing.T) {
	for name, c := range all() {
		sizer, ok := c.(cache.Sizer)
		if !ok {
			t.Errorf("%s is no Sizer", name)
			continue
		}
		for _, test := range []struct {
			value any
			least int
		}{
			{strings.Repeat("x", 10_000), 10_000}, {bytes.Repeat([]byte("x"), 10_000), 10_000}, {make([]int64, 1000), 8000},
			{productOf(1, 20_000), 20_000}, {map[string]string{"a": strings.Repeat("x", 1000)}, 1000}, {&product{Name: strings.Repeat("x", 1000)}, 1000},
			{[]time.Time{time.Now().Local()}, 24}, {7, 8}, {any(nil), 0},
		} {
			if n := sizer.Size(test.value); n < test.least || n > 3*test.least+200 {
				t.Errorf("%s: a %T of %d bytes counts as %d", name, test.value, test.least, n)
			}
		}
	}
	if n := codecs.Proto().(cache.Sizer).Size(productOf(1, 20_000).message()); n < 10_000 || n > 60_000 {
		t.Errorf("a message of some 20 KB counts as %d", n)
	}
	type ring struct{ Next *ring }
	endless := &ring{}
	endless.Next = endless
	codecs.Msgpack().(cache.Sizer).Size(endless) // ends
}

// vt has the methods of vtprotobuf.
type vt struct{ text string }

func (m *vt) MarshalVT() ([]byte, error)    { return []byte("vt " + m.text), nil }
func (m *vt) UnmarshalVT(data []byte) error { m.text = string(data[3:]); return nil }

func TestTheMethodsOfVtprotobufAreUsed(t *testing.T) {
	comesBack(t, "proto", codecs.Proto(), &vt{"lamp"})
	if data := must(codecs.Proto().Marshal(&vt{"lamp"})); string(data) != "vt lamp" {
		t.Errorf("got %q", data)
	}
}

func TestWhatIsNoMessageIsAnError(t *testing.T) {
	c := codecs.Proto()
	if _, err := c.Marshal(product{}); err == nil || !strings.Contains(err.Error(), "codecs_test.product") {
		t.Errorf("got %v", err)
	}
	var p *product
	var m shop.Product
	for _, v := range []any{&p, &m, p, nil, new(int)} {
		if err := c.Unmarshal(nil, v); err == nil {
			t.Errorf("%T: read", v)
		}
	}
}

// Equal values give equal bytes, which the auditor compares.
func TestEqualValuesGiveEqualBytes(t *testing.T) {
	m := map[string]any{}
	for i := range 50 {
		m[fmt.Sprint(i)] = i
	}
	first := must(codecs.Msgpack().Marshal(m))
	for range 20 {
		if !bytes.Equal(must(codecs.Msgpack().Marshal(m)), first) {
			t.Fatal("a map is written in another order")
		}
	}
}

// In a cache: sealed, compressed, read back.
func TestACacheWithASealerAndACompressor(t *testing.T) {
	c, err := cache.New(nil, func(_ context.Context, id uint64) (product, error) { return productOf(id, 2000), nil }, cache.Options{
		Name: "product", Codec: codecs.S2(codecs.Msgpack(), 1024), Seal: must(codecs.AESGCM(bytes.Repeat([]byte("k"), 32))),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if got, err := c.Get(t.Context(), 7); err != nil || !reflect.DeepEqual(got, productOf(7, 2000)) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if n := c.Stats().LocalTier.Bytes; n < 1500 {
		t.Errorf("an entry of 2 KB counts as %d", n)
	}
}
