package cache

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// The shapes of types that people cache, copied by hand: the module has no dependency on
// their packages.
type (
	gormDeletedAt sql.NullTime
	gormModel     struct {
		ID        uint `gorm:"primarykey"`
		CreatedAt time.Time
		UpdatedAt time.Time
		DeletedAt gormDeletedAt `gorm:"index"`
	}
	gormProduct struct {
		gormModel
		Code  string
		Price uint
	}
	gormUser struct {
		gormModel
		Name     string
		Password string `json:"-"`
	}

	entConfig struct{ debug bool } //nolint:unused // as generated
	entEdges  struct {
		Pets        []*sqlcAuthor `json:"pets,omitempty"`
		loadedTypes [1]bool       //nolint:unused // as generated
	}
	entUser struct {
		entConfig `json:"-"` //nolint:unused // as generated
		ID        int        `json:"id,omitempty"`
		Edges     entEdges   `json:"edges"`
	}

	sqlcAuthor struct {
		ID   int64
		Name string
		Bio  sql.NullString
	}
	sqlcTagged struct {
		ID      int64      `json:"id"`
		Bio     pgText     `json:"bio"`
		Born    pgDate     `json:"born"`
		Price   pgNumeric  `json:"price"`
		UID     uuid       `json:"uid"`
		Deleted *time.Time `json:"deleted"`
	}

	pgText struct {
		String string
		Valid  bool
	}
	pgDate struct {
		Time  time.Time
		Valid bool
	}
	pgNumeric struct {
		Int   *big.Int
		Exp   int32
		NaN   bool
		Valid bool
	}
	pgInterval struct {
		Microseconds int64
		Days, Months int32
		Valid        bool
	}
	pgRange[T any] struct {
		Lower, Upper         T
		LowerType, UpperType byte
		Valid                bool
	}

	protoState   struct{ typ *int } //nolint:unused // as generated
	protoMessage struct {
		state         protoState //nolint:unused // as generated
		sizeCache     int32      //nolint:unused // as generated
		unknownFields []byte     //nolint:unused // as generated
		ID            int64      `json:"id,omitempty"`
	}

	uuid    [16]byte
	decimal struct {
		value *big.Int
		exp   int32
	}
	optional[T any] struct {
		value *T
	}
	page[T any] struct {
		Items []T
		Next  *string
	}
	colour  int
	secret  string
	country string
	lenient int
	hidden  struct{ Name string }
	maybe   struct{ *hidden }
	stamped struct{ time.Time }
	event   struct {
		time.Time
		Name string
	}
	ownEvent struct {
		time.Time
		Name string
	}
	left  struct{ ID int64 }
	right struct{ ID int64 }
	both  struct {
		left
		right
	}
	leftShadow struct {
		left
		ID int64
	}
	tagWins struct {
		X int
		B int `json:"y"`
	}
	shape  interface{ Area() float64 }
	square struct{ Side float64 }
	locked struct {
		mu sync.Mutex //nolint:unused // that JSON does not carry it is the point
		_  struct{}
		ID int64
	}
	marshalsOnly   struct{ ID int64 }
	unmarshalsOnly struct{ ID int64 }
	textOnly       struct{ ID int64 }
	textKeyOnly    struct{ ID int64 }
	node           struct {
		Name string
		Next *node
		Kids map[int]*node
	}
	itself struct {
		*itself //nolint:unused // that it embeds itself is the point
		ID      int64
	}
)

func (d gormDeletedAt) MarshalJSON() ([]byte, error) {
	if d.Valid {
		return json.Marshal(d.Time)
	}
	return []byte("null"), nil
}

func (d *gormDeletedAt) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	d.Valid = true
	return json.Unmarshal(b, &d.Time)
}

func (d gormDeletedAt) Value() (driver.Value, error) { return d.Time, nil }

func (x pgText) MarshalJSON() ([]byte, error) {
	if !x.Valid {
		return []byte("null"), nil
	}
	return json.Marshal(x.String)
}

func (x *pgText) UnmarshalJSON(b []byte) error {
	var s *string
	err := json.Unmarshal(b, &s)
	if *x = (pgText{}); s != nil {
		*x = pgText{*s, true}
	}
	return err
}

func (x pgDate) MarshalJSON() ([]byte, error) {
	if !x.Valid {
		return []byte("null"), nil
	}
	return json.Marshal(x.Time.Format(time.DateOnly))
}

func (x *pgDate) UnmarshalJSON(b []byte) error {
	var s *string
	if err := json.Unmarshal(b, &s); err != nil || s == nil {
		return err
	}
	var err error
	x.Time, err = time.Parse(time.DateOnly, *s)
	x.Valid = err == nil
	return err
}

func (n pgNumeric) MarshalJSON() ([]byte, error) {
	if !n.Valid {
		return []byte("null"), nil
	}
	return fmt.Appendf(nil, "%de%d", n.Int, n.Exp), nil
}

func (n *pgNumeric) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	digits, exp, _ := strings.Cut(string(b), "e")
	n.Int, _ = new(big.Int).SetString(digits, 10)
	n.Valid = true
	_, err := fmt.Sscan(exp, &n.Exp)
	return err
}

func (u uuid) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%x", u[:]), nil }

func (u *uuid) UnmarshalText(b []byte) error {
	var p []byte
	_, err := fmt.Sscanf(string(b), "%x", &p)
	copy(u[:], p)
	return err
}

// A decimal drops its last zeros, as that of shopspring does.
func (d decimal) rat() *big.Rat {
	r := new(big.Rat)
	if d.value == nil {
		return r
	}
	r.SetString(fmt.Sprintf("%de%d", d.value, d.exp))
	return r
}
func (d decimal) Equal(other decimal) bool { return d.rat().Cmp(other.rat()) == 0 }
func (d decimal) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%q", strings.TrimRight(d.rat().FloatString(8), "0")), nil
}

func (d *decimal) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	whole, part, _ := strings.Cut(text, ".")
	d.exp = -int32(len(part))
	d.value, _ = new(big.Int).SetString(whole+part, 10)
	return nil
}

func (o optional[T]) MarshalJSON() ([]byte, error)     { return json.Marshal(o.value) }
func (o *optional[T]) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &o.value) }

func (c colour) MarshalText() ([]byte, error) { return []byte([]string{"red", "green"}[c]), nil }
func (c *colour) UnmarshalText(b []byte) error {
	if *c = 0; string(b) == "green" {
		*c = 1
	}
	return nil
}

func (secret) MarshalText() ([]byte, error)    { return []byte("***"), nil }
func (s *secret) UnmarshalText(b []byte) error { *s = secret(b); return nil }

func (c *country) UnmarshalText(b []byte) error { *c = country(strings.ToLower(string(b))); return nil }

func (l *lenient) UnmarshalJSON(b []byte) error {
	return json.Unmarshal([]byte(strings.Trim(string(b), `"`)), (*int)(l))
}

func (e ownEvent) MarshalJSON() ([]byte, error) { return json.Marshal([]any{e.Time, e.Name}) }
func (e *ownEvent) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&e.Time, &e.Name})
}

func (s square) Area() float64 { return s.Side * s.Side }

func (marshalsOnly) MarshalJSON() ([]byte, error)  { return []byte("1"), nil }
func (*unmarshalsOnly) UnmarshalJSON([]byte) error { return nil }
func (*textOnly) MarshalText() ([]byte, error)     { return []byte("1"), nil }
func (t textKeyOnly) MarshalText() ([]byte, error) { return fmt.Append(nil, t.ID), nil }

// jsonType encodes a value and decodes it. want is "" if it has to come back as same says; else
// it is the field that is refused, or "altered" if that is seen at the value alone.
func jsonType[V any](name string, value V, want string) func(t *testing.T) {
	return func(t *testing.T) {
		f, err := newFormat[V](Options{Name: "product", MaxValue: 1 << 20}, nil)
		if want != "" && want != "altered" {
			if err == nil {
				t.Fatalf("%s: New takes %T, of which JSON does not bring back %s", name, value, want)
			}
			for _, part := range []string{want, "Codec: cache.JSON", "cache/codecs"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %v; it does not say %q", name, err, part)
				}
			}
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data, _, _, err := f.encode("1", &entry[V]{value: value, life: life{created: 1, expires: 10_000}})
		if want == "altered" {
			if data != nil || err != nil {
				t.Errorf("%s: %+v is to be stored although it comes back as another, %v", name, value, err)
			}
			return
		}
		if data == nil || err != nil {
			t.Fatalf("%s: %+v is not stored, %v", name, value, err)
		}
		back, ok := f.decode("1", data)
		if !ok {
			t.Fatalf("%s: it does not decode: %q", name, data[headerSize:])
		}
		first, _ := json.Marshal(&value)
		if second, _ := json.Marshal(&back.value); string(first) != string(second) {
			t.Errorf("%s: %s came back as %s", name, first, second)
		}
	}
}

func TestTypesThatPeopleCacheComeBackOrAreRefused(t *testing.T) {
	zone := time.FixedZone("CEST", 7200)
	noon := time.Date(2026, 5, 1, 12, 0, 0, 123456789, zone)
	next, number, count := "2", new(big.Int).Lsh(big.NewInt(3), 90), 7
	model := gormModel{ID: 1, CreatedAt: time.Now(), UpdatedAt: noon, DeletedAt: gormDeletedAt{Time: time.Now(), Valid: true}}
	var _ shape = square{}
	for _, test := range []func(*testing.T){
		// These come back.
		jsonType("int64", int64(4244637855813302974), ""),
		jsonType("struct", left{7}, ""),
		jsonType("time with a monotonic clock", time.Now(), ""),
		jsonType("time in a zone", noon, ""),
		jsonType("pointer to a time", &noon, ""),
		jsonType("duration", 3*time.Hour, ""),
		jsonType("gorm.Model", model, ""),
		jsonType("row of GORM", gormProduct{gormModel: model, Code: "D42", Price: 100}, ""),
		jsonType("pointer to a row of GORM", &gormProduct{Code: "D42"}, ""),
		jsonType("sql.NullString", sql.NullString{String: "a", Valid: true}, ""),
		jsonType("sql.NullTime", sql.NullTime{Time: time.Now(), Valid: true}, ""),
		jsonType("sql.NullInt64", sql.NullInt64{Int64: 1 << 60, Valid: true}, ""),
		jsonType("sql.Null", sql.Null[float64]{V: 1.5, Valid: true}, ""),
		jsonType("row of sqlc", sqlcAuthor{ID: 1, Name: "A"}, ""),
		jsonType("row of sqlc and pgx", sqlcTagged{1, pgText{"a", true}, pgDate{time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), true}, pgNumeric{Int: number, Exp: -2, Valid: true}, uuid{1, 2}, &noon}, ""),
		jsonType("pgtype.Interval", pgInterval{Days: 1, Valid: true}, ""),
		jsonType("pgtype.Range", pgRange[time.Time]{Lower: noon, Valid: true}, ""),
		jsonType("uuid.UUID", uuid{15: 1}, ""),
		jsonType("map of uuid.UUID", map[uuid]int{{1}: 1}, ""),
		jsonType("decimal.Decimal", decimal{big.NewInt(1500), -3}, ""),
		jsonType("map of decimals", map[string]decimal{"a": {big.NewInt(1500), -3}}, ""),
		jsonType("big.Int", *number, ""),
		jsonType("*big.Int", number, ""),
		jsonType("*big.Rat", big.NewRat(1, 3), ""),
		jsonType("netip.Addr", netip.MustParseAddr("fe80::1%eth0"), ""),
		jsonType("netip.Prefix", map[netip.Prefix]string{netip.MustParsePrefix("10.0.0.0/8"): "a"}, ""),
		jsonType("net.IP", net.IPv4(10, 0, 0, 1).To4(), ""),
		jsonType("json.RawMessage", json.RawMessage(`{"a": 1, "b": "<"}`), ""),
		jsonType("row with a RawMessage", struct{ Doc json.RawMessage }{}, ""),
		jsonType("map of ints", map[int][]left{-3: {{1}}}, ""),
		jsonType("map with any that came from JSON", map[string]any{"a": 1.5, "b": []any{"x", nil, true}}, ""),
		jsonType("generic page", page[left]{Items: []left{{1}}, Next: &next}, ""),
		jsonType("generic optional", optional[int]{&count}, ""),
		jsonType("recursive", node{Name: "a", Next: &node{Name: "b"}, Kids: map[int]*node{1: {}}}, ""),
		jsonType("embedded unexported struct", struct{ hidden }{hidden{"a"}}, ""),
		jsonType("enum with a text", map[colour][]colour{1: {0, 1}}, ""),
		jsonType("bytes in a struct", struct{ B []byte }{[]byte{0, 255}}, ""),
		jsonType("omitempty", struct {
			Tags []string `json:",omitempty"`
		}{[]string{}}, ""),
		jsonType("nil slice and map", struct {
			S []int
			M map[string]int
		}{}, ""),
		jsonType("embedded time alone", stamped{noon}, ""),
		jsonType("embedded time with methods of its own", ownEvent{noon, "a"}, ""),
		jsonType("url.URL without a user", url.URL{Scheme: "https", Host: "a.example", Path: "/b"}, "User"),
		jsonType("mutex", &locked{ID: 1}, ""),
		jsonType("tags", tagWins{1, 2}, ""),

		// These are refused.
		jsonType("row of GORM with a password", gormUser{}, "gormUser.Password"),
		jsonType("row of ent", entUser{}, "entUser.entConfig"),
		jsonType("edges of ent", entEdges{}, "entEdges.loadedTypes"),
		jsonType("protobuf", &protoMessage{}, "protoMessage.state"),
		jsonType("unexported field", []struct{ a int }{}, "a"),
		jsonType("embedded pointer to an unexported struct", maybe{}, "maybe.hidden"),
		jsonType("MarshalJSON alone", marshalsOnly{}, "MarshalJSON without UnmarshalJSON"),
		jsonType("UnmarshalJSON alone", unmarshalsOnly{}, "UnmarshalJSON without MarshalJSON"),
		jsonType("a lenient number", struct{ N lenient }{}, ".N"),
		jsonType("MarshalText alone", struct{ T textOnly }{}, "MarshalText without UnmarshalText"),
		jsonType("a key with MarshalText alone", map[textKeyOnly]int{}, "MarshalText without UnmarshalText"),
		jsonType("a key with UnmarshalText alone", map[country]int{}, "UnmarshalText without MarshalText"),
		jsonType("a method of pointers in a map", map[string]big.Int{}, "big.Int"),
		jsonType("a method of pointers deep in a map", map[string]struct{ N [2]big.Int }{}, ".N"),
		jsonType("same name at one depth", both{}, "both.left.ID and "),
		jsonType("hidden by another field", leftShadow{}, "leftShadow.left.ID"),
		jsonType("embedded time beside a field", event{}, "event.Name"),
		jsonType("interface", struct{ S shape }{}, ".S"),
		jsonType("error", struct{ Err error }{}, ".Err"),
		jsonType("itself", itself{}, "itself"),
		jsonType("sync.Map", &sync.Map{}, "sync.Map"),
		jsonType("any", any(1), "interface"),
		jsonType("error as a value", errors.New("a"), "error"),

		// These are seen at the value.
		jsonType("int64 in any", map[string]any{"a": int64(4244637855813302974)}, "altered"),
		jsonType("time in any", struct{ A any }{noon}, "altered"),
		jsonType("struct in any", []any{left{1}}, "altered"),
		jsonType("text that is no UTF-8", []string{"a\xff"}, "altered"),
		jsonType("key that is no UTF-8", map[string]int{"a\xff": 1}, "altered"),
		jsonType("a marshaler that hides", struct{ S secret }{"a"}, "altered"),
		jsonType("pointer to a nil pointer", struct{ P **int }{new(*int)}, "altered"),
	} {
		t.Run("", test)
	}
}

// Whoever names JSON means the loss.
func TestTheNamedJSONTakesWhatItLoses(t *testing.T) {
	o := Options{Name: "product", MaxValue: 1 << 20, Codec: JSON}
	f, err := newFormat[gormUser](o, nil)
	if err != nil {
		t.Fatal(err)
	}
	data, _, _, err := f.encode("1", &entry[gormUser]{value: gormUser{Name: "a", Password: "b"}, life: life{created: 1, expires: 10_000}})
	back, ok := f.decode("1", data)
	if err != nil || !ok || back.value.Name != "a" || back.value.Password != "" {
		t.Errorf("%+v, %v, %v", back, ok, err)
	}
	anything, err := newFormat[map[string]any](o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if data, _, _, err = anything.encode("1", &entry[map[string]any]{value: map[string]any{"a": 1}, life: life{created: 1, expires: 10_000}}); data == nil || err != nil {
		t.Errorf("a value that JSON alters is not stored with its name: %v", err)
	}
	if _, err := newFormat[shape](o, nil); err != nil {
		t.Error(err)
	}
	if _, err := newFormat[struct{ F func() }](o, nil); err == nil {
		t.Error("a func is taken")
	}
}

// Else the values that follow the first would be stored, although all of them are altered.
func TestAfterAnAlteredValueEachIsComparedForLong(t *testing.T) {
	f, err := newFormat[any1](Options{Name: "product", MaxValue: 1 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	store := func(v any) bool {
		data, _, _, err := f.encode("1", &entry[any1]{value: any1{v}, life: life{created: 1, expires: 10_000}})
		return data != nil && err == nil
	}
	for range 3 * sampleEvery {
		if store(1) {
			t.Fatal("an altered value is stored")
		}
	}
	for range sampleEvery + 1 {
		if !store("a") {
			t.Fatal("a value is not stored that comes back as it was")
		}
	}
	stored := 0
	for stored < sampleEvery && store(1) {
		stored++
	}
	if stored == sampleEvery || f.altered() != 3*sampleEvery+1 {
		t.Errorf("%d altered values in a row are stored, %d counted", stored, f.altered())
	}
}

type any1 struct{ A any }

// To compare costs little more than to decode, and what is not compared costs nothing more.
func BenchmarkCompare(b *testing.B) {
	value := gormProduct{gormModel: gormModel{ID: 1, CreatedAt: time.Now(), UpdatedAt: time.Now()}, Code: "D42", Price: 100}
	for name, sampled := range map[string]*sample{"never": nil, "one in 1,000": newSample(), "always": newSample()} {
		b.Run(name, func(b *testing.B) {
			f, _ := newFormat[gormProduct](Options{Name: "product", MaxValue: 1 << 20}, nil)
			if f.sample = sampled; name == "always" {
				f.sample.until.Store(1 << 62)
			}
			e := &entry[gormProduct]{value: value, life: life{created: 1, expires: 10_000}}
			for b.Loop() {
				_, _, _, _ = f.encode("1", e)
			}
		})
	}
}
