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

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
)

// Fingerprints
//
// JSON of one struct decodes into another without an error: a field that has another
// name now comes back as its zero value. So a value carries a fingerprint of the type
// that it was made from, and bytes of another type are a miss.
//
// A fingerprint is the hash of a text that describes how JSON writes a type: the JSON names
// of its fields, their types, and the option "string" of their tags. It leaves out what
// changes no byte, such as the order of fields, the name of a struct, and unexported
// fields. Of a type with a marshaler of its own the text is only the type's name.
//
// Two releases with different types and the same Schema use the same Redis key for a value:
// each takes the other's bytes for a miss, loads, and overwrites them. Their local tiers
// bound that: each process loads a key once in its Local.TTL during the deployment. The
// first load after it ends the overwriting.

// fingerprintOf returns the fingerprint of a type that is stored as JSON, or an error that says
// why JSON cannot write it.
func fingerprintOf(t reflect.Type) (uint32, error) {
	d := describer{done: map[reflect.Type]string{}}
	text, err := d.describe(t, t.String())
	if err != nil {
		return 0, err
	}
	hash := fnv1a(fnvOffset, text)
	return max(uint32(hash^hash>>32), 1), nil // 0 means: not JSON
}

// A describer makes the text that describes a type.
type describer struct {
	above []reflect.Type // the types around the present one, which may contain them again
	done  map[reflect.Type]string
}

// describe returns the text of t. Errors call it path.
func (d *describer) describe(t reflect.Type, path string) (string, error) {
	switch kind := t.Kind(); {
	case marshals(t):
		return t.PkgPath() + " " + t.String(), nil
	case kind == reflect.Func, kind == reflect.Chan, kind == reflect.Complex64, kind == reflect.Complex128, kind == reflect.UnsafePointer:
		return "", fmt.Errorf("JSON cannot hold %s, a %v", path, kind)
	case kind != reflect.Struct && kind != reflect.Pointer && kind != reflect.Slice && kind != reflect.Array && kind != reflect.Map:
		return kind.String(), nil
	}
	if text, ok := d.done[t]; ok {
		return text, nil
	}
	if i := slices.Index(d.above, t); i >= 0 {
		return fmt.Sprintf("^%d", len(d.above)-i), nil
	}
	d.above = append(d.above, t)
	text, err := d.describeParts(t, path)
	d.above = d.above[:len(d.above)-1]
	d.done[t] = text
	return text, err
}

func (d *describer) describeParts(t reflect.Type, path string) (string, error) {
	switch t.Kind() {
	case reflect.Struct:
		return d.describeFields(t, path)
	case reflect.Pointer:
		text, err := d.describe(t.Elem(), path)
		return "*" + text, err
	case reflect.Map:
		if k := t.Key(); k.Kind() != reflect.String && !isInteger(k.Kind()) && !k.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return "", fmt.Errorf("JSON cannot hold %s: keys of a map are strings, integers or encoding.TextMarshalers", path)
		}
		text, err := d.describe(t.Elem(), path+"[]")
		return fmt.Sprintf("[%v]%s", t.Key().Kind(), text), err
	case reflect.Array:
		text, err := d.describe(t.Elem(), path+"[]")
		return fmt.Sprintf("[%d]%s", t.Len(), text), err
	default:
		text, err := d.describe(t.Elem(), path+"[]")
		return "[]" + text, err
	}
}

// describeFields returns a hash of the fields of a struct as JSON writes them: their text may be
// long, and be needed in many places.
func (d *describer) describeFields(t reflect.Type, path string) (string, error) {
	hash, fields := uint64(fnvOffset), fieldsOf(t)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		f := fields[name]
		text, err := d.describe(f.of, path+"."+f.name)
		if err != nil {
			return "", err
		}
		hash = fnv1a(hash, fmt.Sprintf("%q %s;", name, text))
	}
	return fmt.Sprintf("{%x}", hash), nil
}

// A jsonField is a field of a struct that JSON writes.
type jsonField struct {
	name string // in Go
	of   reflect.Type
}

// fieldsOf returns the fields of a struct that JSON writes, by their JSON names.
func fieldsOf(t reflect.Type) map[string]jsonField {
	fields := map[string]jsonField{}
	for i := range t.NumField() {
		f := t.Field(i)
		inner := embeddedStruct(f)
		name := jsonName(f)
		_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Tag.Get("json") == "-", !f.IsExported() && inner == nil:
			continue
		case name == "" && inner != nil:
			fields["+"+f.Name] = jsonField{f.Name, inner}
			continue
		case name == "":
			name = f.Name
		}
		if slices.Contains(strings.Split(options, ","), "string") {
			name += ",string"
		}
		fields[name] = jsonField{name: f.Name, of: f.Type}
	}
	return fields
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

// marshals reports whether t writes or reads its own JSON. It is false for interfaces.
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

// A storedForm describes how the values of an open cache are stored.
type storedForm struct {
	codec       byte
	fingerprint uint32
	values      reflect.Type
	by          string // in words
	users       int
}

// A storedName identifies where values are stored.
type storedName struct {
	client redis.UniversalClient
	name   string
	schema int
}

// storedTypes are the stored forms of all open caches. Two types under one name would read each
// other's values as misses, and overwrite them, for ever.
var storedTypes = struct {
	mu     sync.Mutex
	byName map[storedName]*storedForm
}{byName: map[storedName]*storedForm{}}

// claimName reserves a name for values of type V until the returned function is called.
func claimName[V any](rdb redis.UniversalClient, o Options, f format[V]) (release func(), err error) {
	if rdb == nil || !reflect.ValueOf(rdb).Comparable() {
		return func() {}, nil
	}
	own := storedForm{codec: f.codecByte(), fingerprint: f.fingerprint, values: reflect.TypeFor[V](), by: f.by()}
	name := storedName{rdb, keys.Under(o.Prefix, o.Name), o.Schema}
	storedTypes.mu.Lock()
	defer storedTypes.mu.Unlock()
	there := storedTypes.byName[name]
	switch {
	case there == nil:
		there = &own
		storedTypes.byName[name] = there
	case there.codec != own.codec:
		return nil, fmt.Errorf("cache: a cache named %q that is open on this client stores values %s, and this one would store them %s: give them another Name or Schema, or the same Codec", o.Name, there.by, own.by)
	case there.fingerprint != own.fingerprint:
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

// fnv1a continues an FNV-1a hash with text; fnvOffset is the hash to begin with. hash/fnv would
// allocate, and takes bytes.
func fnv1a(hash uint64, text string) uint64 {
	for i := range len(text) {
		hash = (hash ^ uint64(text[i])) * 1099511628211
	}
	return hash
}

const fnvOffset = 14695981039346656037
