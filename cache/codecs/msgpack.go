package codecs

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/levee-go/levee/cache"
)

// Msgpack stores values as msgpack: smaller than JSON, and []byte without base64. Fields have
// their Go names, or the names in tags like `msgpack:"name"`; JSON tags are ignored.
func Msgpack() cache.Codec { return msgpackCodec{} }

type msgpackCodec struct{}

func (msgpackCodec) Marshal(v any) ([]byte, error) {
	var to bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&to)
	enc.SetSortMapKeys(true) // equal values give equal bytes
	err := enc.Encode(addressable(v))
	return to.Bytes(), err
}

func (msgpackCodec) Unmarshal(data []byte, v any) error {
	if err := checkMsgpack(data); err != nil {
		return err
	}
	return msgpack.Unmarshal(data, v)
}

// Size returns an estimate of the memory that a value takes.
func (msgpackCodec) Size(v any) int { return sizeOf(v) }

var errMsgpack = errors.New("codecs: no msgpack")

const deepestMsgpack = 1000

// checkMsgpack returns an error unless data is one msgpack value whose lengths are true and which
// is not nested deeper than a goroutine's stack allows. The decoder allocates memory for up to a
// million elements on the word of five bytes, and calls itself for each level.
func checkMsgpack(data []byte) error {
	open := []uint64{1} // values that are still to come, by level
	for len(open) > 0 {
		last := &open[len(open)-1]
		if *last == 0 {
			open = open[:len(open)-1]
			continue
		}
		*last--
		rest, values, ok := skipMsgpack(data)
		if !ok || values > uint64(len(rest)) || len(open) > deepestMsgpack {
			return errMsgpack
		}
		if data = rest; values > 0 {
			open = append(open, values)
		}
	}
	if len(data) > 0 {
		return errMsgpack
	}
	return nil
}

// skipMsgpack skips the head of a value, and the bytes of a string or the like. values is how
// many values follow as its elements.
func skipMsgpack(data []byte) (rest []byte, values uint64, ok bool) {
	if len(data) == 0 {
		return nil, 0, false
	}
	code, data := data[0], data[1:]
	switch {
	case code <= 0x7f || code >= 0xe0: // small integers
		return data, 0, true
	case code <= 0x8f:
		return data, 2 * uint64(code&0xf), true
	case code <= 0x9f:
		return data, uint64(code & 0xf), true
	case code <= 0xbf:
		return skipBytes(data, uint64(code&0x1f))
	}
	head := heads[code-0xc0]
	if head.length == 0 {
		return skipBytes(data, head.bytes)
	}
	if len(data) < head.length {
		return nil, 0, false
	}
	var length [8]byte
	copy(length[8-head.length:], data)
	n := binary.BigEndian.Uint64(length[:])
	data = data[head.length:]
	if head.values > 0 {
		return data, n * head.values, true
	}
	return skipBytes(data, n+head.bytes)
}

func skipBytes(data []byte, n uint64) ([]byte, uint64, bool) {
	if n > uint64(len(data)) {
		return nil, 0, false
	}
	return data[n:], 0, true
}

// heads says what follows each code from 0xc0 on: length bytes of a number n; then n × values
// values, or, if values is 0, n + bytes bytes.
var heads = [0x20]struct {
	length int
	bytes  uint64
	values uint64
}{
	0x01: {bytes: 1 << 62},                                  // 0xc1 is not used
	0x04: {length: 1}, 0x05: {length: 2}, 0x06: {length: 4}, // bin
	0x07: {length: 1, bytes: 1}, 0x08: {length: 2, bytes: 1}, 0x09: {length: 4, bytes: 1}, // ext
	0x0a: {bytes: 4}, 0x0b: {bytes: 8}, // float
	0x0c: {bytes: 1}, 0x0d: {bytes: 2}, 0x0e: {bytes: 4}, 0x0f: {bytes: 8}, // uint
	0x10: {bytes: 1}, 0x11: {bytes: 2}, 0x12: {bytes: 4}, 0x13: {bytes: 8}, // int
	0x14: {bytes: 2}, 0x15: {bytes: 3}, 0x16: {bytes: 5}, 0x17: {bytes: 9}, 0x18: {bytes: 17}, // fixext
	0x19: {length: 1}, 0x1a: {length: 2}, 0x1b: {length: 4}, // str
	0x1c: {length: 2, values: 1}, 0x1d: {length: 4, values: 1}, // array
	0x1e: {length: 2, values: 2}, 0x1f: {length: 4, values: 2}, // map
}
