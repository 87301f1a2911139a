package cache

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/cache/internal/keytext"
	"github.com/levee-go/levee/internal/redistest"
)

// A tenantKey is a key as services have them.
type tenantKey struct {
	Tenant string
	ID     int64
}

// A nestedKey has a part of each kind.
type nestedKey struct {
	Name  string
	Pair  [2]string
	Shelf struct {
		Row  int8
		note sku
	}
	Sold   bool
	digest [2]byte
	addr   netip.Addr
	N      uint16
	_      int // == passes it over
	none   struct{}
}

// Other processes, filters and change feeds know a key by this text: a release that changes
// a line of it loses every value, and every id of every filter. Never change one.
func TestTheTextOfAKeyStaysAsItIs(t *testing.T) {
	type empty struct{}
	says(t, nil, tenantKey{"acme", 42}, tenantKey{"acme", 43}, "acme/42")
	says(t, nil, tenantKey{"", -7}, tenantKey{"", 7}, "/-7")
	says(t, nil, tenantKey{`a/b\c`, 0}, tenantKey{`a/b\\c`, 0}, `a\/b\\c/0`)
	says(t, nil, tenantKey{"é {}%:\x00\xff", 1}, tenantKey{"é {}%:\x00", 1}, "é {}%:\x00\xff/1")
	says(t, nil, [2]int{1, 2}, [2]int{2, 1}, "1/2")
	says(t, nil, [1]string{"a/b"}, [1]string{"a"}, `a\/b`)
	says(t, nil, [3]string{}, [3]string{"", "", "/"}, "//")
	says(t, nil, [2]bool{true, false}, [2]bool{}, "true/false")
	says(t, nil, [4]byte{0, 1, 0xab, 0xff}, [4]byte{}, "0001abff")
	says(t, nil, [2][2]byte{{1}, {2}}, [2][2]byte{}, "0100/0200")
	says(t, nil, [2]int8{-128, 127}, [2]int8{}, "-128/127")
	says(t, nil, [2]uint64{1<<64 - 1}, [2]uint64{}, "18446744073709551615/0")
	says(t, nil, [1]time.Month{time.March}, [1]time.Month{}, "3")
	says(t, nil, [2]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, [2]netip.Prefix{}, `10.0.0.0\/8/`)
	says(t, nil, true, false, "true")
	if id, err := keyFunc[empty](nil, 512); err != nil {
		t.Error(err)
	} else if text, err := id(empty{}); text != "" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}

	k := nestedKey{Name: "lamp", Pair: [2]string{"a", "/"}, Sold: true, digest: [2]byte{1, 254}, addr: netip.MustParseAddr("::1"), N: 9, none: struct{}{}}
	k.Shelf.Row, k.Shelf.note = -1, `\`
	other := k
	other.addr = netip.MustParseAddr("::2")
	says(t, nil, k, other, `lamp/a/\//-1/\\/true/01fe/::1/9`)
	type signed struct {
		By unspeakable
		N  int
	}
	says(t, nil, signed{2, 3}, signed{4, 3}, "u2/3")
}

// Two keys have one text only if they are equal, whatever slashes, backslashes and empty
// texts are in them, and the text comes back as the key. Catches a field that is not part of
// the text, and a slash that is not told from the one between two parts.
func TestTheTextOfAKeyTellsKeysApart(t *testing.T) {
	texts := rapid.StringMatching(`[/\\a]{0,3}`)
	addrs := rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("::1"), netip.MustParseAddr("fe80::1%/"), netip.MustParseAddr("fe80::1%\\")})
	small := rapid.IntRange(0, 2)
	keys := rapid.Custom(func(t *rapid.T) (k nestedKey) {
		k.Name, k.Pair = texts.Draw(t, "name"), [2]string{texts.Draw(t, "first"), texts.Draw(t, "second")}
		k.Shelf.Row, k.Shelf.note = int8(small.Draw(t, "row")-1), sku(texts.Draw(t, "note"))
		k.Sold, k.digest = rapid.Bool().Draw(t, "sold"), [2]byte{byte(small.Draw(t, "digest"))}
		k.addr, k.N = addrs.Draw(t, "addr"), uint16(small.Draw(t, "n"))
		return k
	})
	id := redistest.Must(keyFunc[nestedKey](nil, 512))
	parse := keytext.Parser[nestedKey]()
	rapid.Check(t, func(t *rapid.T) {
		k, other := keys.Draw(t, "key"), keys.Draw(t, "other")
		if rapid.Bool().Draw(t, "differ by one") {
			one := k
			switch rapid.IntRange(0, 7).Draw(t, "field") {
			case 0:
				one.Name = other.Name
			case 1:
				one.Pair = other.Pair
			case 2:
				one.Shelf.Row = other.Shelf.Row
			case 3:
				one.Shelf.note = other.Shelf.note
			case 4:
				one.Sold = other.Sold
			case 5:
				one.digest = other.digest
			case 6:
				one.addr = other.addr
			case 7:
				one.N = other.N
			}
			other = one
		}
		if a, b := redistest.Must(id(k)), redistest.Must(id(other)); (a == b) != (k == other) {
			t.Fatalf("%+v is %q and %+v is %q", k, a, other, b)
		} else if back, err := parse(a); err != nil || back != k {
			t.Fatalf("%+v is %q, which comes back as %+v, %v", k, a, back, err)
		}
	})
}

// FuzzTextOfAKey: two keys have one text only if they are equal, a text comes back as its key,
// and what is no text of a key is an error.
func FuzzTextOfAKey(f *testing.F) {
	f.Add("a", "/", int64(1), "a/", "", int64(1), "a/b/1")
	f.Add(`\`, "", int64(-1), "", `\`, int64(-1), `\/\\/-1`)
	f.Add("", "", int64(0), "/", "", int64(0), `a/b/1\`)
	type key struct {
		a    string
		b    [1]sku
		n    int64
		sold bool
	}
	id, parse := redistest.Must(keyFunc[key](nil, 1<<20)), keytext.Parser[key]()
	f.Fuzz(func(t *testing.T, a, b string, n int64, otherA, otherB string, otherN int64, text string) {
		k, other := key{a, [1]sku{sku(b)}, n, n > 0}, key{otherA, [1]sku{sku(otherB)}, otherN, otherN > 0}
		own := redistest.Must(id(k))
		if another := redistest.Must(id(other)); (own == another) != (k == other) {
			t.Errorf("%+v is %q and %+v is %q", k, own, other, another)
		}
		if back, err := parse(own); err != nil || back != k {
			t.Errorf("%+v is %q, which comes back as %+v, %v", k, own, back, err)
		}
		if read, err := parse(text); err == nil {
			if again, err := parse(redistest.Must(id(read))); err != nil || again != read {
				t.Errorf("%q is %+v, which comes back as %+v, %v", text, read, again, err)
			}
		}
	})
}

func TestATextThatIsNoKeyIsAnError(t *testing.T) {
	parse := keytext.Parser[tenantKey]()
	for text, want := range map[string]tenantKey{"acme/42": {"acme", 42}, "/007": {"", 7}, `a\/\b/1`: {"a/b", 1}} {
		if k, err := parse(text); k != want || err != nil {
			t.Errorf("%q: %+v, %v", text, k, err)
		}
	}
	for _, text := range []string{"", "acme", "acme/42/1", "acme/", "acme/x", `acme/42\`, "acme/9223372036854775808"} {
		if k, err := parse(text); err == nil {
			t.Errorf("%q is read as %+v", text, k)
		}
	}
	if _, err := keytext.Parser[[2]byte]()("01"); err == nil {
		t.Error("two digits are read as two bytes")
	}
	if keytext.Parser[[1]unspeakable]() != nil {
		t.Error("a part that cannot be unmarshaled comes back")
	}
}

func TestAPartThatCannotBeMarshaledIsNamed(t *testing.T) {
	id := redistest.Must(keyFunc[struct{ By [2]unspeakable }](nil, 512))
	_, err := id(struct{ By [2]unspeakable }{[2]unspeakable{0, 1}})
	if !errors.Is(err, ErrInvalidKey) || !errors.Is(err, errOdd) || !strings.Contains(err.Error(), "By[]: odd") {
		t.Errorf("got %v", err)
	}
}

// An endpoint has the MarshalText of its address, which knows of no port.
type endpoint struct {
	netip.Addr
	Port int
}

// A spoken endpoint has one of its own.
type spokenEndpoint struct {
	netip.Addr
	Port int
}

func (e spokenEndpoint) MarshalText() ([]byte, error) {
	return netip.AddrPortFrom(e.Addr, uint16(e.Port)).MarshalText()
}

type (
	host       struct{ netip.Addr }
	hostOf     struct{ host }
	endpointOf struct {
		host
		_    [0]int
		Port int
	}
)

// Catches keys that differ in a field that a promoted MarshalText leaves out, and share an id.
func TestAMarshalTextThatLeavesFieldsOutIsRefused(t *testing.T) {
	const why = ", whose MarshalText is that of an embedded field and leaves out the other fields"
	speechless[endpoint](t, "it is a cache.endpoint"+why)
	speechless[endpointOf](t, "it is a cache.endpointOf"+why)
	speechless[struct{ From, To endpoint }](t, "From is a cache.endpoint"+why)
	speechless[[2]endpoint](t, "[] is a cache.endpoint"+why)
	one, other := netip.MustParseAddr("::1"), netip.MustParseAddr("::2")
	says(t, nil, spokenEndpoint{one, 80}, spokenEndpoint{one, 81}, "[::1]:80")
	says(t, nil, host{one}, host{other}, "::1")
	says(t, nil, hostOf{host{one}}, hostOf{host{other}}, "::1")
	says(t, nil, [2]hostOf{{host{one}}, {host{other}}}, [2]hostOf{}, "::1/::2")
	says(t, nil, time.Unix(0, 0).UTC(), time.Unix(1, 0).UTC(), "1970-01-01T00:00:00Z")
}

func BenchmarkTextOfAKey(b *testing.B) {
	b.Run("int64", func(b *testing.B) { textOfAKey(b, int64(1_000_042)) })
	b.Run("struct", func(b *testing.B) { textOfAKey(b, tenantKey{"acme", 1_000_042}) })
}

func textOfAKey[K comparable](b *testing.B, key K) {
	id := redistest.Must(keyFunc[K](nil, 512))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = id(key)
	}
}
