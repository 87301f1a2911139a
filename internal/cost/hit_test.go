package cost_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// inMemory opens a cache without Redis that has all keys in its local tier.
func inMemory[K comparable, V any](t testing.TB, keys []K, value V, tags ...string) *cache.Cache[K, V] {
	t.Helper()
	source := cache.Source[K, V]{Load: func(context.Context, K) (V, error) { return copied(value), nil }}
	if len(tags) > 0 {
		source.Tags = func(K, V) []string { return tags }
	}
	c := redistest.Must(cache.NewFrom(nil, source, cache.Options{
		Name: "bench", TTL: time.Hour, Local: localcache.Options{TTL: time.Hour, MaxBytes: 256 << 20},
	}))
	t.Cleanup(func() { _ = c.Close() })
	for _, key := range keys {
		if _, err := c.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Fetch(t.Context(), key); err != nil || got.Tier != cache.TierLocal {
			t.Fatalf("%v: %+v, %v", key, got, err)
		}
	}
	return c
}

// benchKeys are n keys in random order.
func benchKeys(n int) (ints []int64, strs []string) {
	for _, id := range rand.Perm(n) {
		ints, strs = append(ints, int64(id)+1e6), append(strs, fmt.Sprintf("product:%d", id+1e6))
	}
	return ints, strs
}

func TestALocalHitAllocatesNothing(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector allocates")
	}
	ints, strs := benchKeys(100)
	allocatesNothing(t, ints)
	allocatesNothing(t, strs)
	var structs []pair
	for _, id := range ints {
		structs = append(structs, pair{1, id})
	}
	allocatesNothing(t, structs)
}

func allocatesNothing[K comparable](t *testing.T, keys []K) {
	t.Helper()
	c, ctx, at := inMemory(t, keys, "a lamp"), t.Context(), 0
	for name, read := range map[string]func(K) error{
		"Get":   func(key K) error { _, err := c.Get(ctx, key); return err },
		"Fetch": func(key K) error { _, err := c.Fetch(ctx, key); return err },
	} {
		allocs := testing.AllocsPerRun(10_000, func() {
			if at++; read(keys[at%len(keys)]) != nil {
				t.Error("no value")
			}
		})
		if allocs != 0 {
			t.Errorf("%s with %T keys: %v allocations a hit", name, keys[0], allocs)
		}
	}
}

// BenchmarkLocalHit alternates between a bare ristretto and the whole of Get every
// few thousand hits, so that both meet the same machine, and reports the time of
// each and their ratio.
//
//	go test -run '^$' -bench LocalHit -benchtime 300ms -count 5 -cpu 1,2 ./internal/cost
func BenchmarkLocalHit(b *testing.B) {
	hot, many := benchReads(1), benchReads(100_000)
	structs, pointers, slices := product{ID: 7, Name: "lamp"}, &product{ID: 7}, []byte("a lamp")
	for _, reads := range []struct {
		name string
		of   reads
	}{{"hot", hot}, {"zipf", many}} {
		b.Run(reads.name+"/int64/struct", func(b *testing.B) {
			localHit(b, reads.of, structs, func(v product) bool { return v.ID == 7 })
		})
		b.Run(reads.name+"/int64/bytes", func(b *testing.B) {
			localHit(b, reads.of, slices, func(v []byte) bool { return len(v) == 6 })
		})
		b.Run(reads.name+"/int64/pointer", func(b *testing.B) {
			localHit(b, reads.of, pointers, func(v *product) bool { return v.ID == 7 })
		})
	}
}

// BenchmarkLocalHitOfTags alternates between values without tags, which it calls bare, and values with
// two, before and after a clear of another tag.
func BenchmarkLocalHitOfTags(b *testing.B) {
	for name, of := range map[string]reads{"hot": benchReads(1), "zipf": benchReads(100_000)} {
		for _, clears := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/cleared=%t", name, clears), func(b *testing.B) {
				value, ctx := product{ID: 7, Name: "lamp"}, b.Context()
				hit := func(c *cache.Cache[int64, product]) func(at int) bool {
					return func(at int) bool { v, err := c.Get(ctx, of.reads[at]); return err == nil && v.ID == 7 }
				}
				plain, tagged := inMemory(b, of.keys, value), inMemory(b, of.keys, value, "a", "b")
				if clears {
					if err := tagged.ClearTags(ctx, "c"); err != nil {
						b.Fatal(err)
					}
				}
				inTurns(b, len(of.reads), hit(plain), hit(tagged))
			})
		}
	}
}

// reads are keys and the order in which they are read.
type reads struct{ keys, reads []int64 }

// benchReads are n keys, read as often as Zipf's law says with an exponent of 1.01.
func benchReads(n int) (r reads) {
	r.keys, _ = benchKeys(n)
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.01, 1, uint64(n-1))
	for range 1 << 20 {
		r.reads = append(r.reads, r.keys[zipf.Uint64()])
	}
	return r
}

// localHit reads on all processors, each with a place in the order of its own.
func localHit[V any](b *testing.B, o reads, value V, good func(V) bool) {
	bare := redistest.Must(ristretto.NewCache(&ristretto.Config[int64, V]{
		NumCounters: 1 << 20, MaxCost: 256 << 20, BufferItems: 64, IgnoreInternalCost: true,
	}))
	defer bare.Close()
	for i, key := range o.keys {
		bare.Set(key, copied(value), 250)
		if i%1000 == 0 {
			bare.Wait()
		}
	}
	bare.Wait()
	c, ctx := inMemory(b, o.keys, value), b.Context()
	inTurns(b, len(o.reads), func(at int) bool {
		v, ok := bare.Get(o.reads[at])
		return ok && good(v)
	}, func(at int) bool {
		v, err := c.Get(ctx, o.reads[at])
		return err == nil && good(v)
	})
}

// copied is a value with memory of its own.
func copied[V any](value V) V {
	switch v := any(value).(type) {
	case *product:
		p := *v
		return any(&p).(V)
	case []byte:
		return any(bytes.Clone(v)).(V)
	}
	return value
}

// inTurns runs bare and ours by turns, a slice of reads each on every processor, and
// reports the processors' time of both. b.N counts the reads of one of them on one processor.
func inTurns(b *testing.B, n int, bare, ours func(at int) bool) {
	const slice = 1 << 14
	var took [2]time.Duration
	var wrong atomic.Int64
	reads := 0
	turn := func(read func(int) bool) time.Duration {
		var wg sync.WaitGroup
		began := processorTime()
		for proc := range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				at, bad := (reads+proc*n/7)%n, int64(0)
				for range slice {
					if !read(at) {
						bad++
					}
					if at++; at == n {
						at = 0
					}
				}
				wrong.Add(bad)
			})
		}
		wg.Wait()
		return processorTime() - began
	}
	for range n / slice { // warm
		turn(bare)
		turn(ours)
		reads += slice
	}
	reads = 0
	b.ReportAllocs()
	for b.Loop() {
		if reads++; reads%slice == 1 {
			took[0] += turn(bare)
			took[1] += turn(ours)
		}
	}
	counted := float64((reads + slice - 1) / slice * slice * runtime.GOMAXPROCS(0))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[0])/counted, "bare-ns/hit")
	b.ReportMetric(float64(took[1])/counted, "levee-ns/hit")
	b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
	if wrong.Load() > 0 {
		b.Fatalf("%d reads were wrong", wrong.Load())
	}
}

// alternate runs bare and ours by turns, a slice of reads each, and reports both.
// b.N counts the reads of one of them.
func alternate(b *testing.B, slice int, bare, ours func(at int) bool) {
	var took [2]time.Duration
	wrong, at, reads := 0, 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if reads++; reads%slice != 1 {
			continue
		}
		for side, read := range []func(int) bool{bare, ours} {
			began := time.Now()
			for i := range slice {
				if !read(at + i) {
					wrong++
				}
			}
			took[side] += time.Since(began)
		}
		at += slice
	}
	b.ReportMetric(float64(took[0])/float64(at), "bare-ns/hit")
	b.ReportMetric(float64(took[1])/float64(at), "levee-ns/hit")
	b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
	if wrong > 0 {
		b.Fatalf("%d reads were wrong", wrong)
	}
}

// A hit in the local tier allocates nothing, before and after clears of tags.
func TestALocalHitBesideClearsOfTagsAllocatesNothing(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector allocates")
	}
	loads := 0
	c, err := cache.NewFrom(nil, cache.Source[int64, string]{
		Load: func(context.Context, int64) (string, error) { loads++; return "v1", nil },
		Tags: func(int64, string) []string { return []string{"a", "b"} },
	}, cache.Options{Name: "product"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if n := testing.AllocsPerRun(1000, func() { _, _ = c.Get(t.Context(), 1) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if err := c.ClearTags(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
	}
	if loads != 1 {
		t.Errorf("%d loads", loads)
	}
}
