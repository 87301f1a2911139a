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

// A Codec encodes values as bytes and decodes them. Unmarshal gets bytes of the size that Marshal
// returned, at most Options.MaxValue, and a pointer to a zero value. It may keep the bytes and
// must not change them, because other callers may have the same. Both methods are called concurrently. If Marshal returns an error or panics, the value is returned
// to its caller and not stored; if Unmarshal does, the read is a miss.
//
// An entry of the local tier counts as the number of bytes that Marshal returned, unless the
// codec is a [Sizer]: a codec that compresses should be one, or the local tier exceeds its budget
// by the compression ratio. Options.MaxValue bounds the bytes of Marshal as well. Unmarshal
// itself has to bound how much memory a few hostile bytes may become.
type Codec interface {
	// Marshal returns the encoded bytes of a value.
	Marshal(v any) ([]byte, error)
	// Unmarshal stores the decoded value in what v points to. It returns an error if data does
	// not encode a value of its type.
	Unmarshal(data []byte, v any) error
}

// A Sizer is a [Codec] that knows how much memory a value takes.
type Sizer interface {
	// Size returns how many bytes a decoded value takes in this process. Its entry counts as that
	// much of the budget of the local tier. Size gets the same argument as Marshal. It is called
	// for every entry that is put into the local tier, and concurrently. If it panics, or returns
	// 0 or less, the entry counts as the bytes of Marshal.
	Size(v any) int
}

// An entry is stored in Redis as a header of fixed size, the digests of the value's tags, its
// version, and the bytes that the codec made of the value; a null is a header only.
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
// Bytes that do not fit this description are a miss.
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

// A format encodes and decodes the values of one cache.
type format[V any] struct {
	name        string // with Options.Prefix in front, in braces
	prefix      uint64 // digest of the name
	schema      int
	max         int
	id          byte
	codec       Codec
	sizer       Sizer // the codec, if it is one
	sealer      Sealer
	fingerprint uint32
	sample      *sample // picks values to compare with what their JSON decodes to; nil: none
	after       windows
	log         *logonce.Log
}

// newFormat makes the format of a cache. It returns an error if JSON would lose parts of values
// of type V.
func newFormat[V any](o Options, log *logonce.Log) (f format[V], err error) {
	name := o.Name
	if o.Prefix != "" { // no prefix has a brace, and no name begins with one
		name = "{" + o.Prefix + "}" + name
	}
	f = format[V]{name: name, prefix: fnv1a(fnvOffset, name+":"), schema: o.Schema, max: o.MaxValue, id: codecCustom, codec: o.Codec, sealer: o.Seal, after: o.windows(), log: log}
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

// altered returns how many of the compared values came back differently.
func (f format[V]) altered() uint64 {
	if f.sample == nil {
		return 0
	}
	return f.sample.altered.Load()
}

// by describes, in words, how values are encoded.
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

// encode returns the bytes of an entry and how long Redis keeps them, or neither for an entry
// that is not to be stored in Redis. size is what the entry counts as in the local tier without a
// Sizer; an entry that cannot be encoded counts as the largest that could be stored.
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

// keep logs and returns the results of encode for a value that stays in this process: it cannot
// be encoded, or is larger than MaxValue.
func (f format[V]) keep(id string, payload []byte, err error) ([]byte, int, time.Duration, error) {
	if err != nil {
		f.log.Warn("a value cannot be encoded and stays in this process", logonce.Name("key", id), "error", err)
		return nil, headerSize + f.max, 0, err
	}
	f.log.Warn("a value is larger than MaxValue and stays in this process", logonce.Name("key", id), "bytes", len(payload), "max_value", f.max)
	return nil, headerSize + len(payload), 0, nil
}

// decode decodes an entry. It reports ok only if the bytes are a complete entry of this id in
// this cache's form, and allocates nothing before that is certain. Bytes that a codec decodes to
// a nil pointer, as JSON does "null", are not ok: a caller would get nil and no error.
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

// fits reports whether bytes are a complete entry of this id, of any type.
func (f format[V]) fits(id string, data []byte) bool {
	return len(data) >= headerSize && len(data) >= payloadAt(data) && len(data)-payloadAt(data) <= f.max && string(data[:2]) == magic &&
		data[offVersion] == version &&
		data[offTags]&^hardFlag <= maxTags && data[offVersionSize] <= maxVersion && data[offMark] <= 1 &&
		binary.BigEndian.Uint32(data[offSchema:]) == uint32(f.schema) &&
		binary.BigEndian.Uint64(data[offDigest:]) == f.digest(id) &&
		binary.BigEndian.Uint32(data[offSum:]) == checksum(data)
}

// isOfType reports whether an entry that fits is a null or has this cache's type.
func (f format[V]) isOfType(data []byte) bool {
	want := f.fingerprint
	if data[offKind] == kindNull {
		want = 0
	}
	return data[offCodec] == f.codecByte() && binary.BigEndian.Uint32(data[offFingerprint:]) == want
}

// isOfOtherType reports whether bytes are an entry of this id that a process with values of
// another type has stored. It is false if the entry is sealed and this cache's are not, or the
// other way round: anybody may have stored such an entry.
func (f format[V]) isOfOtherType(id string, data []byte) bool {
	return f.fits(id, data) && !f.isOfType(data) && data[offCodec]&sealedFlag == f.codecByte()&sealedFlag
}

// marshal calls the codec and returns a panic of it as an error. A panic would fail the load and
// keep its lease until the lease ends.
func (f format[V]) marshal(value V) (data []byte, err error) {
	defer f.contain(&err)
	if f.id == codecJSON {
		return f.codec.Marshal(&value) // a pointer, so that a marshaler of *V is called
	}
	return f.codec.Marshal(value)
}

// unmarshal calls the codec and returns a panic of it as an error. A panic would fail every
// reader of the key, and nothing could ever be written over the value.
func (f format[V]) unmarshal(data []byte, value *V) (err error) {
	defer f.contain(&err)
	return f.codec.Unmarshal(data, value)
}

// sizeOf returns how many bytes a value refers to in the local tier, beyond the entry that it lies in, if
// its entry has so many bytes encoded.
func (f format[V]) sizeOf(value V, encoded int) int {
	if f.id == codecRaw {
		return encoded
	}
	return max(0, f.wholeSize(value, encoded)-int(unsafe.Sizeof(value)))
}

// wholeSize returns how many bytes a value takes, all in all.
func (f format[V]) wholeSize(value V, encoded int) int {
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

// digest binds bytes to the key they were stored under. It is FNV-1a of name and id, separated by
// a colon, which no name contains. FNV is enough against accidents, such as a reply to the wrong
// command; whoever can write to Redis can forge it.
func (f format[V]) digest(id string) uint64 { return fnv1a(f.prefix, id) }

func checksum(data []byte) uint32 {
	sum := crc32.Update(0, castagnoli, data[:offMark])
	sum = crc32.Update(sum, castagnoli, data[offMark+1:offSum])
	return crc32.Update(sum, castagnoli, data[headerSize:])
}

// JSON encodes values as JSON, as the cache does by default for all types but string and []byte.
// If you set it as [Options].Codec, you accept what JSON loses: New takes every type that JSON
// can write, even if JSON leaves out fields, and values are not compared with what their JSON
// decodes to.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

// Marshal passes a pointer to json.Marshal, so that methods of pointers are called.
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
		*v = unsafe.String(unsafe.SliceData(data), len(data)) // nobody writes to the bytes of a reply
	case *[]byte:
		*v = data
	default:
		return errNotRaw
	}
	return nil
}
