package cache

import (
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

type shelf int64

type tree struct {
	Name     string
	Children []*tree
	Parent   *tree `json:"-"`
}

// Two types have one fingerprint if JSON makes the same of them: else a change that
// changes no byte would cost misses, or one that does would pass unseen.
func TestAFingerprintKnowsWhatJSONMakesOfAType(t *testing.T) {
	type base struct {
		ID    int64
		Price int64
	}
	of := func(v any) uint32 {
		t.Helper()
		print, err := fingerprintOf(reflect.TypeOf(v))
		if err != nil || print == 0 {
			t.Errorf("%T: %d, %v", v, print, err)
		}
		return print
	}
	want := of(base{})
	for name, same := range map[string]any{
		"another name":      struct{ ID, Price int64 }{},
		"another order":     struct{ Price, ID int64 }{},
		"an unexported one": struct{ ID, Price, cents int64 }{},
		"a tag for SQL": struct {
			ID    int64 `db:"id"`
			Price int64 `json:",omitempty"`
		}{},
		"one that is not stored": struct {
			ID, Price int64
			mu        sync.Mutex
			Cache     chan int `json:"-"`
		}{},
		"another type of the same kind": struct {
			ID    shelf
			Price int64
		}{},
		"names by tag": struct {
			Number int64 `json:"ID"`
			Price  int64 `json:"Price"`
		}{},
	} {
		if of(same) != want {
			t.Errorf("%s: it is told apart", name)
		}
	}
	for name, different := range map[string]any{
		"one more":      struct{ ID, Price, Weight int64 }{},
		"one less":      struct{ ID int64 }{},
		"another field": struct{ ID, PriceCents int64 }{},
		"another type": struct {
			ID    int64
			Price float64
		}{},
		"another tag": struct {
			ID    int64
			Price int64 `json:"price"`
		}{},
		"as a string": struct {
			ID    int64
			Price int64 `json:",string"`
		}{},
		"nested":     struct{ Base base }{},
		"embedded":   struct{ base }{},
		"a pointer":  &base{},
		"a slice":    []base{},
		"an array":   [2]base{},
		"a map":      map[string]base{},
		"keys":       map[int]base{},
		"a time":     time.Time{},
		"an address": netip.Addr{},
		"a tree":     tree{},
		"a number":   int64(0),
		"nothing":    struct{}{},
	} {
		if print := of(different); print == want {
			t.Errorf("%s: it is taken for the same", name)
		} else if again := of(different); again != print {
			t.Errorf("%s: once %d, once %d", name, print, again)
		}
	}
}

// A fingerprint stands in Redis: another one for the same type makes a deployment's
// first reads misses.
func TestFingerprintsStayAsTheyAre(t *testing.T) {
	for want, v := range map[uint32]any{
		0x11e3c9d:  goldenProduct{},
		0x601b3848: tree{},
		0x34d65a4f: map[netip.Addr][]time.Time{},
	} {
		if print, err := fingerprintOf(reflect.TypeOf(v)); print != want || err != nil {
			t.Errorf("%T: %#x, %v; want %#x", v, print, err, want)
		}
	}
}

// The text of wide9 would have 9⁹ words. It is no type of a type parameter: the compiler
// takes half a minute for that.
type (
	wide1 struct{ A, B, C, D, E, F, G, H, I *int }
	wide2 struct{ A, B, C, D, E, F, G, H, I *wide1 }
	wide3 struct{ A, B, C, D, E, F, G, H, I *wide2 }
	wide4 struct{ A, B, C, D, E, F, G, H, I *wide3 }
	wide5 struct{ A, B, C, D, E, F, G, H, I *wide4 }
	wide6 struct{ A, B, C, D, E, F, G, H, I *wide5 }
	wide7 struct{ A, B, C, D, E, F, G, H, I *wide6 }
	wide8 struct{ A, B, C, D, E, F, G, H, I *wide7 }
	wide9 struct{ A, B, C, D, E, F, G, H, I *wide8 }
)

func TestAWideTypeHasAFingerprintSoon(t *testing.T) {
	if _, err := fingerprintOf(reflect.TypeFor[wide9]()); err != nil {
		t.Error(err)
	}
}

func TestTypesThatJSONCannotWriteAreRefused(t *testing.T) {
	for want, v := range map[string]reflect.Type{
		"func":       reflect.TypeFor[func()](),
		"chan":       reflect.TypeFor[chan int](),
		"complex128": reflect.TypeFor[complex128](),
		"Call":       reflect.TypeFor[[]struct{ Call func() }](),
		"keys":       reflect.TypeFor[map[[2]int]string](),
	} {
		if print, err := fingerprintOf(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %#x, %v", v, print, err)
		}
	}
	for _, v := range []any{
		"", 1, struct{}{}, []byte{}, time.Now(), big.NewInt(1), map[string]any{}, []any{}, struct{ Any any }{},
		struct {
			sync.Mutex
			ID int
		}{},
	} {
		if _, err := fingerprintOf(reflect.TypeOf(v)); err != nil {
			t.Errorf("%T: %v", v, err)
		}
		if err := lossOf(reflect.TypeOf(v)); err != nil {
			t.Errorf("%T: %v", v, err)
		}
	}
}
