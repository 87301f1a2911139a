package codecs_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/codecs"
)

// jsonCodec is what a cache does without a Codec, but for the Size.
type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }
func (jsonCodec) Size(v any) int                     { return codecs.S2(nil, 0).Size(v) }

// BenchmarkCodecs is the table of docs/reference/codecs.md: for each codec and size of a product,
// as JSON has it, the time to encode and to decode it, its bytes in Redis, and what the local tier
// counts for it.
//
//	go test -run '^$' -bench Codecs -benchtime 200ms ./cache/codecs
func BenchmarkCodecs(b *testing.B) {
	dict := dictionary(1000)
	for _, bench := range []struct {
		name  string
		codec cache.Codec
		proto bool
	}{
		{"JSON", jsonCodec{}, false},
		{"S2(JSON)", codecs.S2(nil, 0), false},
		{"Zstd(JSON)", must(codecs.Zstd(nil)), false},
		{"Zstd(JSON,dictionary)", must(codecs.Zstd(nil, dict)), false},
		{"Msgpack", codecs.Msgpack(), false},
		{"S2(Msgpack)", codecs.S2(codecs.Msgpack(), 0), false},
		{"Proto", codecs.Proto(), true},
		{"S2(Proto)", codecs.S2(codecs.Proto(), 0), true},
	} {
		for _, size := range []int{200, 2000, 20_000} {
			name, p := fmt.Sprintf("%s/%d", bench.name, size), productOf(7, size)
			if bench.proto {
				measured(b, name, bench.codec, p.message())
			} else {
				measured(b, name, bench.codec, p)
			}
		}
	}
}

func measured[V any](b *testing.B, name string, c cache.Codec, value V) {
	data := must(c.Marshal(value))
	run := func(what string, fn func() error) {
		b.Run(name+"/"+what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := fn(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(data)), "redis-B")
			b.ReportMetric(float64(c.(cache.Sizer).Size(value)), "process-B")
		})
	}
	run("encode", func() error { _, err := c.Marshal(value); return err })
	run("decode", func() error { var v V; return c.Unmarshal(data, &v) })
}

// BenchmarkSeal is what AESGCM adds.
func BenchmarkSeal(b *testing.B) {
	s := must(codecs.AESGCM(make([]byte, 32)))
	for _, size := range []int{200, 2000, 20_000} {
		plain, bound := make([]byte, size), make([]byte, 80)
		sealed := must(s.Seal(plain, bound))
		b.Run(fmt.Sprintf("%d/seal", size), func(b *testing.B) {
			for b.Loop() {
				_, _ = s.Seal(plain, bound)
			}
		})
		b.Run(fmt.Sprintf("%d/open", size), func(b *testing.B) {
			for b.Loop() {
				_, _ = s.Open(sealed, bound)
			}
		})
	}
}

func BenchmarkSize(b *testing.B) {
	p := productOf(7, 2000)
	for b.Loop() {
		codecs.S2(nil, 0).Size(p)
	}
}
