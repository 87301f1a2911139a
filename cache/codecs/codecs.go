// Package codecs has what goes into cache.Options.Codec and cache.Options.Seal: compression by
// [S2] and [Zstd], the encodings [Msgpack] and [Proto], and encryption by [AESGCM].
//
//	products, err := cache.New(rdb, store.Product, cache.Options{
//		Name: "product", Schema: 1, // one higher than without the codec
//		Codec: codecs.S2(codecs.Msgpack(), 1024),
//	})
//
// Each codec is a cache.Sizer: entries of the local tier count as what their values take decoded,
// not as their few compressed bytes. Each looks at what its input claims to become before it takes
// memory, since whoever can write to Redis may have written it. That bounds the bytes that the
// encoding has, not what is decoded from them: each byte of a
// []T in msgpack, every two in protobuf and every three in JSON may become an element, and take as
// much as a T does. Where others can write to Redis, seal the values too (cache.Options.Seal).
//
// # Rollout
//
// From no Codec to one, or from one encoding to another, raise cache.Options.Schema by one:
// releases n and n+1 then run side by side, each with values of its own. Without that levee takes JSON that
// it has written without a Codec for a value of another type, a miss; but it cannot tell two Codecs apart.
//
// Compression that is put around a Codec needs no Schema for new processes to read old
// values: what S2 and Zstd have compressed begins with a mark, and all else is read as the
// inner codec's. Processes without the compression do not read compressed values: they take them
// for a miss, load, and write their own over them, until the deployment has ended. A change of
// the threshold, of the dictionary (the old one stays in the list) or of the limit needs no Schema at all.
//
// A Codec's values carry no fingerprint of their type, as JSON without a Codec does: raise Schema
// whenever the type changes in a way that its encoding cannot read.
package codecs

import (
	"encoding/json"
	"reflect"

	"github.com/levee-go/levee/cache"
)

// plain stores values as a cache without a Codec does.
type plain struct{}

// orPlain is the codec itself, or JSON.
func orPlain(c cache.Codec) cache.Codec {
	if c == nil {
		return plain{}
	}
	return c
}

func (plain) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return v, nil
	case string:
		return []byte(v), nil
	}
	return json.Marshal(addressable(v))
}

// addressable returns a pointer to a copy of v: else the marshalers of pointers would be passed over.
func addressable(v any) any {
	if v == nil {
		return nil
	}
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	return p.Interface()
}

func (plain) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case *[]byte:
		*v = data
	case *string:
		*v = string(data)
	default:
		return json.Unmarshal(data, v)
	}
	return nil
}
