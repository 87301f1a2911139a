package cache

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

type (
	customerID int32
	sku        string
	place      struct{ Warehouse, Shelf int }
)

// keyFunc returns the function that makes the ids of a cache.
func keyFunc[K comparable](custom func(K) string, longest int) (func(K) (string, error), error) {
	n, err := newNaming(custom, longest)
	return n.id, err
}

// says checks that the text of key is want, and that of another key is another.
func says[K comparable](t *testing.T, custom func(K) string, key, other K, want string) {
	t.Helper()
	id, err := keyFunc(custom, 512)
	if err != nil {
		t.Errorf("%T: %v", key, err)
		return
	}
	got, err := id(key)
	if err != nil || got != want {
		t.Errorf("%T: the text of %v is %q, %v; want %q", key, key, got, err, want)
	}
	if got, err = id(other); err != nil || got == want {
		t.Errorf("%T: the text of %v is %q as well, %v", key, other, got, err)
	}
}

func TestTheTextOfAKey(t *testing.T) {
	says(t, nil, "plain", "plain ", "plain")
	says(t, nil, sku("a-1"), sku("a-2"), "a-1")
	says(t, nil, int64(-42), int64(42), "-42")
	says(t, nil, 7, -7, "7")
	says(t, nil, int8(-128), int8(127), "-128")
	says(t, nil, uint64(1<<64-1), uint64(0), "18446744073709551615")
	says(t, nil, uintptr(9), uintptr(8), "9")
	says(t, nil, customerID(12), customerID(13), "12")
	says(t, nil, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), "10.0.0.1")
	says[encoding.TextMarshaler](t, nil, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), "10.0.0.1")
	says(t, func(p place) string { return fmt.Sprintf("%d-%d", p.Warehouse, p.Shelf) }, place{1, 2}, place{2, 1}, "1-2")
	says(t, func(ok bool) string { return fmt.Sprint(ok) }, true, false, "true")
	says(t, func(key int64) string { return fmt.Sprintf("%x", key) }, int64(255), int64(254), "ff") // Key goes first
}

// speechless checks that a type of keys is refused as long as there is no Source.Key, by an
// error that says why.
func speechless[K comparable](t *testing.T, why string) {
	t.Helper()
	_, err := keyFunc[K](nil, 512)
	if want := "cache: Source.Key is needed for keys of type " + reflect.TypeFor[K]().String() + ": " + why; err == nil || err.Error() != want {
		t.Errorf("%T: got %v, want %s", *new(K), err, want)
	}
}

// What has no text is refused when the cache is made. The error names the field, however deep.
func TestKeysWithoutATextOfTheirOwn(t *testing.T) {
	speechless[float64](t, "it is of kind float64")
	speechless[any](t, "it is of kind interface")
	speechless[*int](t, "it is of kind ptr")
	speechless[chan int](t, "it is of kind chan")
	speechless[[2]float32](t, "[] is of kind float32")
	speechless[struct{ At struct{ Lat float64 } }](t, "At.Lat is of kind float64")
	speechless[struct {
		id    int
		parts [3]struct{ owner *int }
	}](t, "parts[].owner is of kind ptr")
	speechless[struct{ Addr *netip.Addr }](t, "Addr is of kind ptr") // == compares the pointers
	speechless[struct{ ID encoding.TextMarshaler }](t, "ID is of kind interface")
	speechless[struct{ C complex64 }](t, "C is of kind complex64")
	speechless[struct{ Grid [100][100]int }](t, "Grid is an array with more than 1024 parts")
}

// unspeakable has no text if it is odd.
type unspeakable int

var errOdd = errors.New("odd")

func (u unspeakable) MarshalText() ([]byte, error) {
	if u%2 != 0 {
		return nil, errOdd
	}
	return fmt.Appendf(nil, "u%d", u), nil
}

func TestAKeyThatCannotBeMarshaledIsInvalid(t *testing.T) {
	says(t, nil, unspeakable(2), unspeakable(4), "u2")
	id, _ := keyFunc[unspeakable](nil, 512)
	if _, err := id(1); !errors.Is(err, ErrInvalidKey) || !errors.Is(err, errOdd) {
		t.Errorf("got %v", err)
	}
}

// Their MarshalText would panic on the goroutine of the caller.
func TestANilPointerIsNoKey(t *testing.T) {
	id, err := keyFunc[*netip.Addr](nil, 512)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := id(nil); !errors.Is(err, ErrInvalidKey) {
		t.Errorf("got %v", err)
	}
	home := netip.IPv6Loopback()
	if text, err := id(&home); text != "::1" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestAKeyThatIsTooLongIsNamedInPart(t *testing.T) {
	id, err := keyFunc[string](nil, 512)
	if err != nil {
		t.Fatal(err)
	}
	_, err = id("user\n" + strings.Repeat("x", 1000))
	if !errors.Is(err, ErrInvalidKey) || !strings.Contains(err.Error(), `"user\nxxx`) || len(err.Error()) > 200 {
		t.Errorf("got %v", err)
	}
}
