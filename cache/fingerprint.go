package cache

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Fingerprints
//
// JSON of one struct decodes into another without an error: a field that has another
// name now comes back as its zero value. So a value carries a fingerprint of the type
// that it was made from, and bytes of another type are a miss.
//
// A fingerprint is the hash of a text that names all that JSON makes of a type: the
// names of fields as JSON has them, their types, and the option "string" of their tags.
// It leaves out what changes no byte, such as the order of fields, the name of a
// struct, and unexported fields. A type with a marshaler of its own is known by its
// name alone.
//
// Two releases whose types differ, with one Schema, share the place of each value in
// Redis. Each takes the other's bytes for a miss, loads, and could write its own over
// them, back and forth. So a process writes over bytes of another type once a minute
// and id at the most (see doorkeeper.first). What it loads beyond that stays in its local
// tier, so each process loads a key once in its Local.TTL while the deployment lasts. Two
// minutes after its end, the next load settles the id. Who wins meanwhile is who reads more.

// overwriteEvery is how long a process at least waits before it writes over bytes of
// another type again, for each id. It is sure to do so after twice that.
const overwriteEvery = time.Minute

// A shape is that text, and what has been described already.
type shape struct {
	text strings.Builder
	seen map[reflect.Type]int
}

// fingerprintOf returns the fingerprint of a type that is stored as JSON, or why its values
// would not come back.
func fingerprintOf(t reflect.Type) (uint32, error) {
	if t.Kind() == reflect.Interface {
		return 0, fmt.Errorf("what is in an interface (%s) comes back from JSON as another type", t)
	}
	s := shape{seen: map[reflect.Type]int{}}
	if err := s.describe(t, t.String()); err != nil {
		return 0, err
	}
	hash := fnv1a(fnvOffset, s.text.String())
	return max(uint32(hash^hash>>32), 1), nil // 0 is that of what is not JSON
}

// describe adds t to the text. path says in an error where t stands.
func (s *shape) describe(t reflect.Type, path string) error {
	switch kind := t.Kind(); {
	case marshals(t):
		s.text.WriteString(t.PkgPath() + " " + t.String())
		return nil
	case s.known(t):
		return nil
	case kind == reflect.Struct:
		return s.describeFields(t, path, false)
	case kind == reflect.Pointer:
		s.text.WriteByte('*')
		return s.describe(t.Elem(), path)
	case kind == reflect.Slice:
		s.text.WriteString("[]")
		return s.describe(t.Elem(), path+"[]")
	case kind == reflect.Array:
		fmt.Fprintf(&s.text, "[%d]", t.Len())
		return s.describe(t.Elem(), path+"[]")
	case kind == reflect.Map:
		if k := t.Key(); k.Kind() != reflect.String && !isInteger(k.Kind()) && !marshals(k) {
			return fmt.Errorf("JSON cannot hold %s: keys of a map are strings, integers or encoding.TextMarshalers", path)
		}
		fmt.Fprintf(&s.text, "[%v]", t.Key().Kind())
		return s.describe(t.Elem(), path+"[]")
	case kind == reflect.Interface && t.NumMethod() > 0:
		return fmt.Errorf("what is in an interface (%s) does not come back from JSON", path)
	case kind == reflect.Func, kind == reflect.Chan, kind == reflect.Complex64, kind == reflect.Complex128, kind == reflect.UnsafePointer:
		return fmt.Errorf("JSON cannot hold %s, a %v", path, kind)
	default:
		s.text.WriteString(kind.String())
		return nil
	}
}

// known reports whether t, which may hold itself, has been described already, and adds
// its number if so.
func (s *shape) known(t reflect.Type) bool {
	n, ok := s.seen[t]
	if ok {
		fmt.Fprintf(&s.text, "#%d", n)
	} else {
		s.seen[t] = len(s.seen)
	}
	return ok
}

// describeFields adds the fields that JSON has of a struct. One without any comes back
// empty; embedded, as sync.Mutex is, it may.
func (s *shape) describeFields(t reflect.Type, path string, embedded bool) error {
	fields := map[string]reflect.StructField{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" && options == "", !f.IsExported() && embeddedStruct(f) == nil:
			continue
		case name == "" && embeddedStruct(f) != nil:
			name = "+" + f.Name // its fields are those of t
		case name == "":
			name = f.Name
		}
		if slices.Contains(strings.Split(options, ","), "string") {
			name += ",string"
		}
		fields[name] = f
	}
	if len(fields) == 0 && t.NumField() > 0 && !embedded {
		return fmt.Errorf("JSON holds nothing of %s: it has no exported fields (a field that need not be stored has the tag json:\"-\")", path)
	}
	s.text.WriteByte('{')
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		f := fields[name]
		fmt.Fprintf(&s.text, "%q ", name)
		var err error
		if inner := embeddedStruct(f); name[0] != '+' || marshals(inner) {
			err = s.describe(f.Type, path+"."+f.Name)
		} else if !s.known(inner) {
			err = s.describeFields(inner, path+"."+f.Name, true)
		}
		if err != nil {
			return err
		}
	}
	s.text.WriteByte('}')
	return nil
}

// embeddedStruct returns the type of an embedded struct, or nil.
func embeddedStruct(f reflect.StructField) reflect.Type {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !f.Anonymous || t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

func isInteger(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uintptr }

// marshals reports whether t, which is no interface, makes its own JSON.
func marshals(t reflect.Type) bool {
	if t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer {
		return false
	}
	p := reflect.PointerTo(t)
	return slices.ContainsFunc(marshalers, p.Implements)
}

var marshalers = []reflect.Type{
	reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
	reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
}

// A storedForm says how the values of an open cache are stored.
type storedForm struct {
	codec       byte
	fingerprint uint32
	values      reflect.Type
	users       int
}

// A storedName is where they stand.
type storedName struct {
	client redis.UniversalClient
	name   string
	schema int
}

// storedTypes are those of the open caches. Two types under one name would read each
// other's values as misses, and write over them, for ever.
var storedTypes = struct {
	mu     sync.Mutex
	byName map[storedName]*storedForm
}{byName: map[storedName]*storedForm{}}

// claimName keeps a name for values of type V until the returned function is called.
func claimName[V any](rdb redis.UniversalClient, o Options, f format[V]) (release func(), err error) {
	if rdb == nil || !reflect.ValueOf(rdb).Comparable() {
		return func() {}, nil
	}
	own := storedForm{codec: f.id, fingerprint: f.fingerprint, values: reflect.TypeFor[V]()}
	name := storedName{rdb, o.Name, o.Schema}
	storedTypes.mu.Lock()
	defer storedTypes.mu.Unlock()
	there := storedTypes.byName[name]
	switch {
	case there == nil:
		there = &own
		storedTypes.byName[name] = there
	case there.codec != own.codec || there.fingerprint != own.fingerprint:
		return nil, fmt.Errorf("cache: a cache named %q with values of type %s is open on this client, and values of type %s are not stored alike: give them another Name or Schema", o.Name, there.values, own.values)
	}
	there.users++
	return sync.OnceFunc(func() {
		storedTypes.mu.Lock()
		defer storedTypes.mu.Unlock()
		if there.users--; there.users == 0 {
			delete(storedTypes.byName, name)
		}
	}), nil
}
