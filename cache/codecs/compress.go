package codecs

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/levee-go/levee/cache"
)

// DefaultLimit bounds the decompressed size of a value, see [Compressor.Limit]. It is the default
// of cache.Options.MaxValue: with compression the same values are stored, in fewer bytes.
const DefaultLimit = 1 << 20

// A Compressor stores the bytes of the inner codec, or a mark and compressed bytes. Neither JSON,
// nor text, nor msgpack begins with the first byte of a mark, nor does a protobuf message whose
// lowest field number is below 1,000. Bytes of the inner codec that do begin with it get the mark
// markedBare.
const (
	mark       = 0xc1
	markedS2   = 'S'
	markedZstd = 'Z'
	markedBare = 'P' // as the inner codec made them
)

// A Compressor is a codec that compresses the bytes of another codec. Make it with [S2] or
// [Zstd].
type Compressor struct {
	inner cache.Codec
	from  int
	limit int
	kind  byte
	enc   *zstd.Encoder
	dec   *zstd.Decoder
	dicts []zstd.DOption
}

// S2 compresses the bytes of inner if there are at least from bytes and they get fewer. It is
// quick, and gains little below 500 bytes; docs/reference/codecs.md has figures. A nil inner
// stores []byte and string as they are and all other types as JSON.
func S2(inner cache.Codec, from int) *Compressor {
	return &Compressor{inner: orPlain(inner), from: from, limit: DefaultLimit, kind: markedS2}
}

// Zstd compresses the bytes of inner if they get fewer. It compresses better than S2 and takes
// more time. A nil inner is as for S2. With a dictionary, small values get smaller as well if
// they resemble the values that the dictionary was made from: it is a file that "zstd --train"
// writes from some hundred values, or simply some values, one after the other, up to 100 KB. The
// first dictionary compresses, and all are known for reading. To replace a dictionary, put the
// new one in front of the old one, and drop the old one when the values that it has compressed
// are gone, after the TTL and the longer stale window. Processes that do not know a dictionary
// take its values for a miss. Zstd returns an error if a dictionary cannot be used.
func Zstd(inner cache.Codec, dicts ...[]byte) (*Compressor, error) {
	c := &Compressor{inner: orPlain(inner), limit: DefaultLimit, kind: markedZstd}
	options := []zstd.EOption{zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(false),
		zstd.WithSingleSegment(true)} // so that a short frame says its length too
	for i, dict := range dicts {
		if len(dict) == 0 {
			return nil, fmt.Errorf("codecs: dictionary %d is empty", i)
		}
		compresses, reads := zstd.WithEncoderDict(dict), zstd.WithDecoderDicts(dict)
		if !isTrained(dict) {
			id := max(crc32.ChecksumIEEE(dict), 1)
			compresses, reads = zstd.WithEncoderDictRaw(id, dict), zstd.WithDecoderDictRaw(id, dict)
		}
		if c.dicts = append(c.dicts, reads); i == 0 {
			options = append(options, compresses)
		}
	}
	var err error
	if c.enc, err = zstd.NewWriter(nil, options...); err != nil {
		return nil, fmt.Errorf("codecs: %w", err)
	}
	if c.dec, err = c.decoder(); err != nil {
		return nil, fmt.Errorf("codecs: %w", err)
	}
	return c, nil
}

// isTrained reports whether "zstd --train" has made a dictionary, which then has a magic number.
func isTrained(dict []byte) bool { return len(dict) > 8 && string(dict[:4]) == "\x37\xa4\x30\xec" }

func (c *Compressor) decoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, append([]zstd.DOption{zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(uint64(c.limit))}, c.dicts...)...)
}

// Limit returns a codec like c that compresses values of up to so many bytes, as inner encodes
// them. For a larger value Marshal returns an error, and the value stays in the process.
// Compressed bytes that claim to become more are a miss, and take no memory. Limit replaces
// [DefaultLimit].
func (c *Compressor) Limit(bytes int) *Compressor {
	limited := *c
	limited.limit = max(bytes, 1)
	if c.kind == markedZstd {
		limited.dec, _ = limited.decoder() // its other options have been accepted before
	}
	return &limited
}

// Marshal encodes v with the inner codec, and compresses the result.
func (c *Compressor) Marshal(v any) ([]byte, error) {
	made, err := c.inner.Marshal(v)
	switch {
	case err != nil:
		return nil, err
	case len(made) > c.limit:
		return nil, fmt.Errorf("codecs: a value of %d bytes, more than the limit of %d", len(made), c.limit)
	case len(made) >= c.from:
		if packed := c.compress(made); len(packed) < len(made) {
			return packed, nil
		}
	}
	if len(made) > 0 && made[0] == mark {
		return append([]byte{mark, markedBare}, made...), nil
	}
	return made, nil
}

func (c *Compressor) compress(made []byte) []byte {
	if c.kind == markedZstd {
		return c.enc.EncodeAll(made, append(make([]byte, 0, 64+len(made)/2), mark, markedZstd))
	}
	room := make([]byte, 2+s2.MaxEncodedLen(len(made)))
	room[0], room[1] = mark, markedS2
	return room[:2+len(s2.Encode(room[2:], made))]
}

var (
	errMark    = errors.New("codecs: a mark that is not known")
	errTooLong = errors.New("codecs: more than the limit when decompressed")
)

// Unmarshal decodes the result of Marshal, and also bytes of the inner codec without compression.
func (c *Compressor) Unmarshal(data []byte, v any) error {
	made, err := c.expand(data)
	if err != nil {
		return err
	}
	return c.inner.Unmarshal(made, v)
}

// expand returns the bytes that the inner codec made.
func (c *Compressor) expand(data []byte) ([]byte, error) {
	switch {
	case len(data) == 0 || data[0] != mark:
		return data, nil
	case len(data) == 1:
		return nil, errMark
	}
	packed := data[2:]
	switch kind := data[1]; {
	case kind == markedBare:
		return packed, nil
	case kind == markedS2 && c.kind == markedS2:
		n, err := s2.DecodedLen(packed)
		if err == nil && n > c.limit {
			err = errTooLong
		}
		if err != nil {
			return nil, err
		}
		return s2.Decode(nil, packed)
	case kind == markedZstd && c.kind == markedZstd:
		return c.expandZstd(packed)
	}
	return nil, errMark
}

// expandZstd decompresses a frame that contains its decompressed length, as the frames of Marshal
// do.
func (c *Compressor) expandZstd(packed []byte) ([]byte, error) {
	var header zstd.Header
	switch err := header.Decode(packed); {
	case err != nil:
		return nil, err
	case !header.HasFCS || header.FrameContentSize > uint64(min(c.limit, math.MaxInt32)):
		return nil, errTooLong
	}
	return c.dec.DecodeAll(packed, make([]byte, 0, header.FrameContentSize))
}

// Size returns the inner codec's Size if it is a cache.Sizer, otherwise an estimate of the memory
// that v takes.
func (c *Compressor) Size(v any) int {
	if s, ok := c.inner.(cache.Sizer); ok {
		return s.Size(v)
	}
	return sizeOf(v)
}
