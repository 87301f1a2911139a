package cache

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/levee-go/levee/internal/logonce"
)

// A Codec turns values into bytes and back. Unmarshal gets bytes of the size that
// Marshal gave, at most Options.MaxValue, and a pointer to a zero value. It may keep
// them. Both are called concurrently. A value that Marshal has an error for, or
// panics on, is returned and not stored; bytes that Unmarshal does not take are a
// miss.
//
// An entry of the local tier counts as the bytes that Marshal gave, unless the codec is a
// [Sizer]: one that compresses should be, or the local tier takes more than its budget by
// the ratio. Options.MaxValue bounds the bytes of Marshal as well. How much memory a few
// hostile bytes may become is for Unmarshal to bound.
type Codec interface {
	// Marshal gives the bytes of a value.
	Marshal(v any) ([]byte, error)
	// Unmarshal sets what v points to. An error says that data is no value of its type.
	Unmarshal(data []byte, v any) error
}

// A Sizer is a [Codec] that knows what values take in memory.
type Sizer interface {
	// Size returns what a value takes in this process, decoded, in bytes: that is what its
	// entry takes of the budget of the local tier. It gets what Marshal gets, is called
	// for every entry that goes to the local tier, and concurrently. If it panics, or
	// returns 0 or less, the entry counts as the bytes of Marshal.
	Size(v any) int
}

// What stands in Redis is a header of fixed size, the digests of the value's tags, its
// version, and what the codec made of the value; nothing behind the header of a null.
// Numbers are big-endian.
//
//	 0  2  magic "Lv"
//	 2  1  version of this layout
//	 3  1  kind
//	 4  1  codec; and 16 if the value or null is sealed, see seal.go
//	 5  1  number of tags, of 4 bytes each; and 128 if the value is hard
//	 6  1  length of the version, which the source gave the value (an ETag, say)
//	 7  1  mark: 0, and 1 since Cache.Expire. A script sets it, so the checksum leaves it out
//	 8  4  Options.Schema
//	12  8  created, Unix milliseconds
//	20  8  end of the TTL, Unix milliseconds
//	28  4  cost of the load in milliseconds
//	32  8  epoch of the cache when the load began, see Cache.Clear
//	40  8  digest of name and id, so that a value is never taken for another key's
//	48  4  fingerprint of the value's type, see fingerprint.go; 0 in a null and where the codec is not JSON
//	52  4  CRC-32C of everything else but the mark
//
// Bytes of which anything else is true are a miss.
const (
	headerSize = 56
	magic      = "Lv"
	version    = 3

	kindValue = 1
	kindNull  = 2

	codecRaw    = 1 // []byte and string as they are
	codecJSON   = 2
	codecCustom = 3 // Options.Codec; a change of it is a change of Schema

	offVersion     = 2
	offKind        = 3
	offCodec       = 4
	offTags        = 5
	offVersionSize = 6
	offMark        = 7
	offSchema      = 8
	offCreated     = 12
	offExpires     = 20
	offCost        = 28
	offEpoch       = 32
	offDigest      = 40
	offFingerprint = 48
	offSum         = 52

	hardFlag   = 1 << 7
	maxTags    = 16
	maxVersion = 64 // bytes
	tagBytes   = 4
	maxHeader  = headerSize + maxTags*tagBytes + maxVersion
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A format knows how the values of one cache are stored.
type format[V any] struct {
	name        string
	prefix      uint64 // digest of the name
	schema      int
	max         int
	id          byte
	codec       Codec
	sizer       Sizer // the codec, if it is one
	sealer      Sealer
	fingerprint uint32
	sample      *sample // of values to compare with what their JSON decodes to; nil: none
	after       windows
	log         *logonce.Log
}

// newFormat returns an error if values of type V would not come back.
func newFormat[V any](o Options, log *logonce.Log) (f format[V], err error) {
	f = format[V]{name: o.Name, prefix: fnv1a(fnvOffset, o.Name+":"), schema: o.Schema, max: o.MaxValue, id: codecCustom, codec: o.Codec, sealer: o.Seal, after: o.windows(), log: log}
	values, named := reflect.TypeFor[V](), false
	switch f.codec.(type) {
	case nil:
	case jsonCodec:
		named = true
	default:
		f.sizer, _ = f.codec.(Sizer)
		return f, nil
	}
	switch any(*new(V)).(type) {
	case string, []byte:
		if !named {
			f.id, f.codec = codecRaw, raw{}
			return f, nil
		}
	}
	f.id, f.codec = codecJSON, JSON
	if f.fingerprint, err = fingerprintOf(values); err != nil {
		return f, fmt.Errorf("cache: values of type %s cannot be stored as JSON: %w. Codec: cache.JSON leaves out a field with the tag json:\"-\", and a Codec of cache/codecs or of your own may keep it", values, err)
	}
	if named {
		return f, nil
	}
	f.sample = newSample()
	if err = lossOf(values); err != nil {
		return f, fmt.Errorf("cache: values of type %s cannot be stored without a Codec: %w. Codec: cache.JSON accepts that; a Codec of cache/codecs or of your own may keep it", values, err)
	}
	return f, nil
}

// altered is how many values were compared and came back differently.
func (f format[V]) altered() uint64 {
	if f.sample == nil {
		return 0
	}
	return f.sample.altered.Load()
}

// by says how values are encoded.
func (f format[V]) by() string {
	how := fmt.Sprintf("with the Codec %T", f.codec)
	switch f.id {
	case codecRaw:
		how = "as they are, without a Codec"
	case codecJSON:
		how = "as JSON, without a Codec"
	}
	if f.sealer != nil {
		how += ", sealed"
	}
	return how
}

// encode gives the bytes of an entry and how long Redis keeps them, or neither for
// one that is too large to be stored. size is what the entry counts as in the local tier
// without a Sizer: one that does not encode counts as the largest that could be stored.
func (f format[V]) encode(id string, e *entry[V]) (data []byte, size int, ttl time.Duration, err error) {
	var payload []byte
	kind, fingerprint := byte(kindNull), uint32(0)
	if !e.null {
		if payload, err = f.marshal(e.value); err != nil {
			return f.keep(id, nil, err)
		}
		if len(payload) > f.max {
			return f.keep(id, payload, nil)
		}
		if field, altered := f.alteredAt(&e.value, payload); altered {
			f.log.Warn("a value comes back from JSON as another one, and stays in this process", logonce.Name("key", id), "field", field)
			return nil, headerSize + len(payload), 0, nil
		}
		if e.more != nil && len(e.more.tags) > maxTags {
			f.log.Error("a value has more tags than there is room for, and stays in this process", logonce.Name("key", id), "tags", len(e.more.tags), "max", maxTags)
			return nil, headerSize + len(payload), 0, nil
		}
		kind, fingerprint = kindValue, f.fingerprint
	}
	data = make([]byte, headerSize, headerSize+e.more.encodedSize()+len(payload))
	copy(data, magic)
	data[offVersion] = version
	data[offKind] = kind
	data[offCodec] = f.codecByte()
	binary.BigEndian.PutUint32(data[offSchema:], uint32(f.schema))
	binary.BigEndian.PutUint64(data[offCreated:], uint64(e.created))
	binary.BigEndian.PutUint64(data[offExpires:], uint64(e.expires))
	binary.BigEndian.PutUint32(data[offCost:], e.cost)
	binary.BigEndian.PutUint64(data[offEpoch:], e.epoch)
	binary.BigEndian.PutUint64(data[offDigest:], f.digest(id))
	binary.BigEndian.PutUint32(data[offFingerprint:], fingerprint)
	if e.hard {
		data[offTags] = hardFlag
	}
	data = e.more.encode(data)
	if payload, err = f.seal(id, data, payload); err != nil || len(payload) > f.max {
		return f.keep(id, payload, err)
	}
	data = append(data, payload...)
	binary.BigEndian.PutUint32(data[offSum:], checksum(data))
	switch {
	case e.private:
		return data, len(data), 0, nil
	case e.null || e.hard:
		return data, len(data), e.ttl(), nil
	}
	return data, len(data), f.after.stored(e.ttl()), nil
}

// keep is what encode returns for a value that stays in this process: it does not encode, or
// is larger than Redis is to hold.
func (f format[V]) keep(id string, payload []byte, err error) ([]byte, int, time.Duration, error) {
	if err != nil {
		f.log.Warn("a value cannot be encoded and stays in this process", logonce.Name("key", id), "error", err)
		return nil, headerSize + f.max, 0, err
	}
	f.log.Warn("a value is larger than MaxValue and stays in this process", logonce.Name("key", id), "bytes", len(payload), "max_value", f.max)
	return nil, headerSize + len(payload), 0, nil
}

// decode reads an entry back, ok only if the bytes are one of this id, whole and
// of this cache's form. It allocates nothing before that is certain. Bytes that a codec makes
// a nil pointer of, as JSON does of "null", are none: a caller would get nil and no error.
func (f format[V]) decode(id string, data []byte) (*entry[V], bool) {
	if !f.fits(id, data) || !f.isOfType(data) {
		return nil, false
	}
	e := &entry[V]{life: life{
		created: int64(binary.BigEndian.Uint64(data[offCreated:])),
		expires: int64(binary.BigEndian.Uint64(data[offExpires:])),
		cost:    binary.BigEndian.Uint32(data[offCost:]),
		epoch:   binary.BigEndian.Uint64(data[offEpoch:]),
		hard:    data[offTags]&hardFlag != 0,
		expired: data[offMark] != 0,
	}}
	var payload []byte
	e.more, payload = decodeExtra(data)
	payload, err := f.open(id, data[:payloadAt(data)], payload)
	if err != nil {
		return nil, false
	}
	switch data[offKind] {
	case kindNull:
		e.null = true
		return e, len(payload) == 0
	case kindValue:
		return e, f.unmarshal(payload, &e.value) == nil && !isNil(&e.value)
	}
	return nil, false
}

// fits reports whether bytes are a whole entry of this id, of whatever type.
func (f format[V]) fits(id string, data []byte) bool {
	return len(data) >= headerSize && len(data) >= payloadAt(data) && len(data)-payloadAt(data) <= f.max && string(data[:2]) == magic &&
		data[offVersion] == version &&
		data[offTags]&^hardFlag <= maxTags && data[offVersionSize] <= maxVersion && data[offMark] <= 1 &&
		binary.BigEndian.Uint32(data[offSchema:]) == uint32(f.schema) &&
		binary.BigEndian.Uint64(data[offDigest:]) == f.digest(id) &&
		binary.BigEndian.Uint32(data[offSum:]) == checksum(data)
}

// isOfType reports whether an entry that fits is a value of this cache's type, or a null.
func (f format[V]) isOfType(data []byte) bool {
	want := f.fingerprint
	if data[offKind] == kindNull {
		want = 0
	}
	return data[offCodec] == f.codecByte() && binary.BigEndian.Uint32(data[offFingerprint:]) == want
}

// isOfOtherType reports whether bytes are a value of this id that a process has stored
// whose values are of another type. One that is sealed where this cache's are not, or the
// other way round, is none: anybody may have stored it.
func (f format[V]) isOfOtherType(id string, data []byte) bool {
	return f.fits(id, data) && !f.isOfType(data) && data[offCodec]&sealedFlag == f.codecByte()&sealedFlag
}

// marshal and unmarshal make errors of a codec's panics. Let through, one would fail
// the load and keep its lease until it ends; the other would fail everybody who
// reads the key, and never let anything else be written over it.
func (f format[V]) marshal(value V) (data []byte, err error) {
	defer f.contain(&err)
	if f.id == codecJSON {
		return f.codec.Marshal(&value) // else a marshaler of *V would be passed over
	}
	return f.codec.Marshal(value)
}

func (f format[V]) unmarshal(data []byte, value *V) (err error) {
	defer f.contain(&err)
	return f.codec.Unmarshal(data, value)
}

// sizeOf is what a value counts as in the local tier, whose entry has so many bytes encoded.
func (f format[V]) sizeOf(value V, encoded int) int {
	if f.sizer == nil {
		return encoded
	}
	size := 0
	_ = func() (err error) {
		defer f.contain(&err)
		size = f.sizer.Size(value)
		return nil
	}()
	if size <= 0 {
		return encoded
	}
	return size
}

func (f format[V]) contain(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
		f.log.Warn("the codec panicked", "error", *err)
	}
}

// digest binds bytes to the key they were stored under: FNV-1a of name and id, which a
// colon parts, since a name has none. FNV is enough against accidents, such as a reply
// that reaches the wrong command; who can write to Redis can forge it.
func (f format[V]) digest(id string) uint64 { return fnv1a(f.prefix, id) }

// fnv1a goes on with an FNV-1a hash: with fnvOffset it begins one. hash/fnv would
// allocate, and takes bytes.
func fnv1a(hash uint64, text string) uint64 {
	for i := range len(text) {
		hash = (hash ^ uint64(text[i])) * 1099511628211
	}
	return hash
}

const fnvOffset = 14695981039346656037

func checksum(data []byte) uint32 {
	sum := crc32.Update(0, castagnoli, data[:offMark])
	sum = crc32.Update(sum, castagnoli, data[offMark+1:offSum])
	return crc32.Update(sum, castagnoli, data[headerSize:])
}

// JSON is the codec of values of all types but string and []byte where [Options].Codec is nil. Named
// as the Codec, it says that what JSON loses may be lost: New takes every type that JSON can
// write, also those of which it leaves fields out, and values are not compared with what their JSON
// decodes to.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

// Marshal gives v an address if it has none: else methods of pointers would be passed over.
func (jsonCodec) Marshal(v any) ([]byte, error) {
	if t := reflect.TypeOf(v); t != nil && t.Kind() != reflect.Pointer {
		p := reflect.New(t)
		p.Elem().Set(reflect.ValueOf(v))
		v = p.Interface()
	}
	return json.Marshal(v)
}

func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// raw stores strings and bytes as they are.
type raw struct{}

var errNotRaw = errors.New("cache: neither string nor []byte")

func (raw) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return []byte(v), nil
	case []byte:
		return v, nil
	}
	return nil, errNotRaw
}

func (raw) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case *string:
		*v = unsafe.String(unsafe.SliceData(data), len(data)) // nobody writes to what a reply brought
	case *[]byte:
		*v = data
	default:
		return errNotRaw
	}
	return nil
}
