package cache

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
)

// Losses
//
// JSON writes some types that it cannot read, and leaves out parts of others: one process would
// serve the value that it has loaded, the next one that value without these parts. New refuses
// such types and names the field, unless Options.Codec is JSON. lossOf finds them.
//
// Other losses depend on the value: an int64 in an any, text that is not UTF-8. difference
// finds them by comparing a value with what its JSON decodes to.

// lossOf returns an error that names what JSON loses of type t, or nil. Values of t are
// addressable, because format.marshal passes pointers.
func lossOf(t reflect.Type) error {
	if t.Kind() == reflect.Interface {
		return fmt.Errorf("an interface (%s) comes back from JSON as another type", t)
	}
	l := losses{}
	return l.of(t, t.String(), true)
}

// losses are the types that have been checked or are being checked.
type losses map[lossKey]bool

type lossKey struct {
	of          reflect.Type
	addressable bool
}

// of returns what JSON loses of t. Errors call t path. Methods of pointers are called only for
// addressable values, which elements of maps are not.
func (l losses) of(t reflect.Type, path string, addressable bool) error {
	key := lossKey{t, addressable}
	if l[key] || isEmpty(t) {
		return nil
	}
	l[key] = true
	switch kind := t.Kind(); {
	case kind == reflect.Interface && t.NumMethod() > 0:
		return fmt.Errorf("JSON does not bring back an interface (%s)", path)
	case kind == reflect.Interface:
		return nil
	case kind == reflect.Pointer:
		return l.of(t.Elem(), path, true)
	}
	writer, reader := writerOf(t, addressable), readerOf(t)
	switch {
	case writer != reader && writerOf(t, true) == reader:
		return fmt.Errorf("JSON does not call the %s of *%s for %s, which is part of a map's element (a map of pointers works)", writerOf(t, true).marshal, t, path)
	case writer != reader:
		return unpaired(t, path)
	case writer != nil:
		return promotionLoss(t, path, writer)
	}
	switch t.Kind() {
	case reflect.Slice:
		return l.of(t.Elem(), path+"[]", true)
	case reflect.Array:
		return l.of(t.Elem(), path+"[]", addressable)
	case reflect.Map:
		if err := keyLoss(t.Key(), path); err != nil {
			return err
		}
		return l.of(t.Elem(), path+"[]", false)
	case reflect.Struct:
		return l.ofStruct(t, path, addressable)
	}
	return nil
}

// ofStruct returns what JSON loses of the fields of t.
func (l losses) ofStruct(t reflect.Type, path string, addressable bool) error {
	members, err := membersOf(t, path, addressable, []reflect.Type{t})
	if err != nil {
		return err
	}
	if err := hiddenMember(members); err != nil {
		return err
	}
	for _, m := range members {
		if err := l.of(m.of, m.path, m.addressable); err != nil {
			return err
		}
	}
	return nil
}

// A member is a field of a struct, or of a struct that is embedded in it.
type member struct {
	path        string
	name        string // in JSON
	tagged      bool
	depth       int
	of          reflect.Type
	addressable bool
}

// membersOf returns the fields of t as JSON flattens them, or an error for the first field that
// JSON leaves out.
func membersOf(t reflect.Type, path string, addressable bool, above []reflect.Type) (members []member, err error) {
	for i := range t.NumField() {
		f := t.Field(i)
		at, inner := path+"."+f.Name, embeddedStruct(f)
		name := jsonName(f)
		switch {
		case f.Name == "_" || isEmpty(f.Type):
			continue
		case f.Tag.Get("json") == "-":
			return nil, fmt.Errorf("JSON leaves out %s, whose tag is json:\"-\"", at)
		case !f.IsExported() && inner == nil:
			return nil, fmt.Errorf("JSON leaves out %s, which is not exported", at)
		case !f.IsExported() && f.Type.Kind() == reflect.Pointer:
			return nil, fmt.Errorf("JSON cannot set %s, an embedded pointer to a struct that is not exported", at)
		case name == "" && inner != nil:
			if slices.Contains(above, inner) {
				return nil, fmt.Errorf("JSON leaves out %s, which is embedded in itself", at)
			}
			deeper, err := membersOf(inner, at, addressable || f.Type.Kind() == reflect.Pointer, append(slices.Clip(above), inner))
			if err != nil {
				return nil, err
			}
			members = append(members, deeper...)
			continue
		}
		m := member{path: at, name: name, tagged: name != "", depth: len(above), of: f.Type, addressable: addressable}
		if name == "" {
			m.name = f.Name
		}
		members = append(members, m)
	}
	return members, nil
}

// hiddenMember returns an error that names a field whose JSON name another field has taken.
func hiddenMember(members []member) error {
	first := map[string]member{}
	for _, m := range members {
		other, twice := first[m.name]
		switch {
		case !twice:
			first[m.name] = m
		case m.depth == other.depth && m.tagged == other.tagged:
			return fmt.Errorf("JSON leaves out %s and %s, which have one name there, %q", other.path, m.path, m.name)
		case m.depth < other.depth, m.depth == other.depth && m.tagged:
			return fmt.Errorf("JSON leaves out %s: %s has its name there, %q", other.path, m.path, m.name)
		default:
			return fmt.Errorf("JSON leaves out %s: %s has its name there, %q", m.path, other.path, m.name)
		}
	}
	return nil
}

// isEmpty reports whether values of t hold no data, so that JSON loses nothing by leaving them
// out.
func isEmpty(t reflect.Type) bool {
	return t.Size() == 0 || t == reflect.TypeFor[sync.Mutex]() || t == reflect.TypeFor[sync.RWMutex]()
}

// jsonName returns the name that the tag of a field gives it, "" if it gives none.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return "" // encoding/json ignores it
		}
	}
	return name
}

// A methodPair is a pair of methods by which a type writes and reads its own JSON.
type methodPair struct {
	marshal, unmarshal string
	writes, reads      reflect.Type
	writer, reader     func(reflect.Type) (reflect.Method, bool)
}

// methodPairs are in the order in which encoding/json looks for them. The names of the methods
// are constants: otherwise the linker would keep all methods of all types.
var methodPairs = []*methodPair{
	{
		"MarshalJSON", "UnmarshalJSON", reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MarshalJSON") },
		func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("UnmarshalJSON") },
	},
	{
		"MarshalText", "UnmarshalText", reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
		func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MarshalText") },
		func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("UnmarshalText") },
	},
}

// writerOf returns the pair whose Marshal method JSON calls for values of t, or nil.
func writerOf(t reflect.Type, addressable bool) *methodPair {
	for _, p := range methodPairs {
		if t.Implements(p.writes) || addressable && reflect.PointerTo(t).Implements(p.writes) {
			return p
		}
	}
	return nil
}

// readerOf returns the pair whose Unmarshal method JSON calls for values of t, or nil.
func readerOf(t reflect.Type) *methodPair {
	for _, p := range methodPairs {
		if reflect.PointerTo(t).Implements(p.reads) {
			return p
		}
	}
	return nil
}

// unpaired returns an error that says which method of a pair t lacks.
func unpaired(t reflect.Type, path string) error {
	for _, p := range methodPairs {
		writes, reads := reflect.PointerTo(t).Implements(p.writes), reflect.PointerTo(t).Implements(p.reads)
		switch {
		case writes && !reads:
			return fmt.Errorf("%s (%s) has %s without %s", path, t, p.marshal, p.unmarshal)
		case reads && !writes:
			return fmt.Errorf("%s (%s) has %s without %s", path, t, p.unmarshal, p.marshal)
		}
	}
	return fmt.Errorf("%s (%s) is not read from JSON as it is written", path, t)
}

// keyLoss returns what JSON loses of the keys of a map. JSON writes keys of a string type as they
// are, but reads them by UnmarshalText.
func keyLoss(t reflect.Type, path string) error {
	text := methodPairs[1]
	writes, reads := t.Implements(text.writes), reflect.PointerTo(t).Implements(text.reads)
	if writes == reads || t.Kind() == reflect.String && !reads {
		return nil
	}
	if writes {
		return fmt.Errorf("the keys of %s (%s) have %s without %s", path, t, text.marshal, text.unmarshal)
	}
	return fmt.Errorf("the keys of %s (%s) have %s without %s", path, t, text.unmarshal, text.marshal)
}

// promotionLoss returns an error if a struct gets its pair of methods from an embedded field:
// JSON then leaves out all other fields.
func promotionLoss(t reflect.Type, path string, p *methodPair) error {
	if t.Kind() != reflect.Struct {
		return nil
	}
	var owner *reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && (f.Type.Implements(p.writes) || reflect.PointerTo(f.Type).Implements(p.writes) || f.Type.Implements(p.reads) || reflect.PointerTo(f.Type).Implements(p.reads)) {
			owner = &f
		}
	}
	if owner == nil {
		return nil
	}
	writes, reads := isPromoted(t, p.writer), isPromoted(t, p.reader)
	switch {
	case !writes && !reads:
		return nil
	case !reads:
		return fmt.Errorf("%s (%s) has %s, and %s only of its embedded %s", path, t, p.unmarshal, p.marshal, owner.Name)
	case !writes:
		return fmt.Errorf("%s (%s) has %s, and %s only of its embedded %s", path, t, p.marshal, p.unmarshal, owner.Name)
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Name != owner.Name && f.Name != "_" && !isEmpty(f.Type) {
			return fmt.Errorf("JSON leaves out %s.%s: the %s of the embedded %s is that of the whole struct", path, f.Name, p.marshal, owner.Name)
		}
	}
	return nil
}

// isPromoted reports whether a method of t is promoted from an embedded field: the compiler has
// then generated it, for values and for pointers.
func isPromoted(t reflect.Type, find func(reflect.Type) (reflect.Method, bool)) bool {
	m, ok := find(t)
	if !ok {
		m, ok = find(reflect.PointerTo(t))
	}
	if !ok {
		return false
	}
	f := runtime.FuncForPC(m.Func.Pointer())
	if f == nil {
		return false
	}
	file, _ := f.FileLine(f.Entry())
	return file == "<autogenerated>"
}

// A cache compares its first sampleFirst values with what their JSON decodes to, and then one in
// sampleEvery. After a value that differs, it compares each of the next sampleEvery.
const (
	sampleFirst = 16
	sampleEvery = 1000
)

// A sample decides which values of a cache to compare. A nil sample compares none.
type sample struct {
	encoded, until atomic.Uint64
	altered        atomic.Uint64 // number of values that differed
}

func newSample() *sample {
	s := &sample{}
	s.until.Store(sampleFirst)
	return s
}

// due counts a value, and reports whether to compare it.
func (s *sample) due() bool {
	if s == nil {
		return false
	}
	n := s.encoded.Add(1)
	return n <= s.until.Load() || n%sampleEvery == 0
}

// differed counts a value that was altered.
func (s *sample) differed() {
	s.altered.Add(1)
	s.until.Store(s.encoded.Load() + sampleEvery)
}

// alteredAt reports whether payload, the JSON of value, decodes to another value, and in which
// field. It compares only the values that f.sample picks.
func (f format[V]) alteredAt(value *V, payload []byte) (field string, altered bool) {
	if !f.sample.due() {
		return "", false
	}
	root := reflect.TypeFor[V]().String()
	field, altered = root, true // if a method panics
	var err error
	func() {
		defer f.contain(&err)
		var back V
		if err := f.codec.Unmarshal(payload, &back); err != nil {
			var wrong *json.UnmarshalTypeError
			if errors.As(err, &wrong) && wrong.Field != "" {
				field += "." + wrong.Field
			}
			return
		}
		field, altered = difference(reflect.ValueOf(value).Elem(), reflect.ValueOf(&back).Elem(), root)
	}()
	if altered {
		f.sample.differed()
	}
	return field, altered
}

// difference compares a value with what its JSON has decoded to, and returns the path of the
// first difference. Nil and empty slices and maps are equal. Values that write their own JSON are
// compared by their method Equal or Cmp, or by their JSON: so the monotonic clock and the zone
// name of a time.Time do not count, nor does white space in a json.RawMessage.
func difference(a, b reflect.Value, path string) (field string, differs bool) {
	if a.Kind() == reflect.Interface {
		if a.IsNil() || b.IsNil() {
			return path, a.IsNil() != b.IsNil()
		}
		if a, b = a.Elem(), b.Elem(); a.Type() != b.Type() {
			return path, true
		}
	}
	if marshals(a.Type()) {
		return path, !sameMarshaler(a, b)
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return path, a.IsNil() != b.IsNil()
		}
		return difference(a.Elem(), b.Elem(), path)
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return path, true
		}
		if a.Kind() == reflect.Slice && a.Type().Elem().Kind() == reflect.Uint8 {
			return path, !bytes.Equal(a.Bytes(), b.Bytes())
		}
		for i := range a.Len() {
			if field, differs := difference(a.Index(i), b.Index(i), path+"[]"); differs {
				return field, true
			}
		}
		return "", false
	case reflect.Map:
		return differenceOfMaps(a, b, path)
	case reflect.Struct:
		for i := range a.NumField() {
			if f := a.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" || embeddedStruct(f) != nil {
				if field, differs := difference(a.Field(i), b.Field(i), path+"."+f.Name); differs {
					return field, true
				}
			}
		}
		return "", false
	}
	return path, !a.Equal(b)
}

func differenceOfMaps(a, b reflect.Value, path string) (field string, differs bool) {
	if a.Len() != b.Len() {
		return path, true
	}
	for keys := a.MapRange(); keys.Next(); {
		there := b.MapIndex(keys.Key())
		if !there.IsValid() {
			if there = lookAlike(b, keys.Key()); !there.IsValid() {
				return path, true
			}
		}
		if field, differs := difference(keys.Value(), there, path+"[]"); differs {
			return field, true
		}
	}
	return "", false
}

// lookAlike returns the element of m whose key equals key by the key's own methods.
func lookAlike(m, key reflect.Value) reflect.Value {
	if !marshals(key.Type()) {
		return reflect.Value{}
	}
	for keys := m.MapRange(); keys.Next(); {
		if sameMarshaler(keys.Key(), key) {
			return keys.Value()
		}
	}
	return reflect.Value{}
}

// sameMarshaler reports whether two values of a type that writes its own JSON are equal.
func sameMarshaler(a, b reflect.Value) bool {
	if isEmpty(a.Type()) || !a.CanInterface() {
		return true
	}
	p, q := reflect.New(a.Type()), reflect.New(b.Type())
	p.Elem().Set(a)
	q.Elem().Set(b)
	for _, method := range []reflect.Value{p.MethodByName("Equal"), p.MethodByName("Cmp")} {
		if !method.IsValid() || method.Type().NumIn() != 1 || method.Type().NumOut() != 1 {
			continue
		}
		other := q
		if method.Type().In(0) == b.Type() {
			other = b
		} else if method.Type().In(0) != q.Type() {
			continue
		}
		switch out := method.Call([]reflect.Value{other})[0]; out.Kind() {
		case reflect.Bool:
			return out.Bool()
		case reflect.Int:
			return out.Int() == 0
		}
	}
	if kind := a.Kind(); kind <= reflect.Complex128 || kind == reflect.String {
		return a.Equal(b)
	}
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return true
	}
	first, err := json.Marshal(p.Interface())
	second, err2 := json.Marshal(q.Interface())
	return err == nil && err2 == nil && bytes.Equal(first, second)
}
