// Package codecs provides codecs for cache.Options.Codec and a sealer for cache.Options.Seal:
// compression by [S2] and [Zstd], the encodings [Msgpack] and [Proto], and encryption by [AESGCM].
//
//	products, err := cache.New(rdb, store.Product, cache.Options{
//		Name: "product", Schema: 1, // one higher than without the codec
//		Codec: codecs.S2(codecs.Msgpack(), 1024),
//	})
//
// Each codec is a cache.Sizer: an entry of the local tier counts as the memory that its decoded value
// takes, not as its few compressed bytes. Each codec checks the length that its input claims before it
// allocates memory, since anybody who can write to Redis may have written the input. That bounds the
// encoded bytes, not the memory of the decoded value: each byte of a
// []T in msgpack, every two in protobuf and every three in JSON may become an element, and take as
// much memory as a T does. If others can write to Redis, seal the values too (cache.Options.Seal).
//
// # Rollout
//
// When you set a Codec for the first time, or change the encoding, raise cache.Options.Schema by
// one: releases n and n+1 then run side by side, each with values of its own. Without a new Schema,
// levee takes JSON that it has written without a Codec for a value of another type, a miss; but it
// cannot tell two Codecs apart.
//
// When you put compression around a Codec, new processes can read old values without a new Schema:
// bytes that S2 and Zstd have compressed begin with a mark, and all other bytes are read by the
// inner codec. Processes without the compression take compressed values for a miss, load, and
// overwrite them, until the deployment has ended. A change of the threshold, of the dictionary (the
// old one stays in the list) or of the limit needs no new Schema.
//
// Unlike JSON without a Codec, a Codec's values carry no fingerprint of their type: raise Schema
// whenever the type changes in a way that its encoding cannot read.
package codecs

import (
	"encoding/json"
	"reflect"

	"github.com/levee-go/levee/cache"
)

// plain stores values as a cache without a Codec does.
type plain struct{}

// orPlain returns c, or plain if c is nil.
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

// addressable returns a pointer to a copy of v, so that marshalers of pointers are called.
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
