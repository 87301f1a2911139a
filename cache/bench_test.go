package cache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
)

// inMemory opens a cache without Redis that has all keys in its local tier.
func inMemory[K comparable](t testing.TB, keys []K) *cache.Cache[K, *product] {
	t.Helper()
	c := must(cache.New(nil, func(context.Context, K) (*product, error) { return &product{ID: 7}, nil }, cache.Options{
		Name: "bench", TTL: time.Hour, Local: localcache.Options{TTL: time.Hour, MaxBytes: 256 << 20},
	}))
	t.Cleanup(func() { _ = c.Close() })
	for tries := 0; ; tries++ {
		missed := 0
		for _, key := range keys {
			if got, err := c.Fetch(t.Context(), key); err != nil {
				t.Fatal(err)
			} else if got.Tier != cache.TierLocal {
				missed++
			}
		}
		if missed == 0 {
			return c
		}
		if tries == 1000 {
			t.Fatalf("%d of %d keys do not get into the local tier", missed, len(keys))
		}
		time.Sleep(time.Millisecond)
	}
}

// benchKeys are n keys in random order.
func benchKeys(n int) (ints []int64, strs []string) {
	for _, id := range rand.Perm(n) {
		ints, strs = append(ints, int64(id)+1e6), append(strs, fmt.Sprintf("product:%d", id+1e6))
	}
	return ints, strs
}

func TestALocalHitAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	ints, strs := benchKeys(100)
	allocatesNothing(t, ints)
	allocatesNothing(t, strs)
}

func allocatesNothing[K comparable](t *testing.T, keys []K) {
	t.Helper()
	c, ctx, at := inMemory(t, keys), t.Context(), 0
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
// each and their ratio. What bare ristretto does for "ttl" is to look at the clock.
//
//	go test -run '^$' -bench LocalHit -count 10 ./cache
func BenchmarkLocalHit(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		ints, strs := benchKeys(n)
		for _, ttl := range []time.Duration{0, time.Hour} {
			name := fmt.Sprintf("keys=%d/barettl=%v", n, ttl)
			b.Run("int64/"+name, func(b *testing.B) { localHit(b, ints, ttl) })
			b.Run("string/"+name, func(b *testing.B) { localHit(b, strs, ttl) })
		}
	}
}

func localHit[K interface{ int64 | string }](b *testing.B, keys []K, bareTTL time.Duration) {
	bare := must(ristretto.NewCache(&ristretto.Config[K, *product]{
		NumCounters: 1 << 20, MaxCost: 256 << 20, BufferItems: 64, IgnoreInternalCost: true,
	}))
	defer bare.Close()
	for i, key := range keys {
		bare.SetWithTTL(key, &product{ID: 7}, 250, bareTTL)
		if i%1000 == 0 {
			bare.Wait()
		}
	}
	bare.Wait()
	c, ctx := inMemory(b, keys), b.Context()

	const slice = 4096
	alternate(b, slice, func(at int) bool {
		p, ok := bare.Get(keys[at%len(keys)])
		return ok && p.ID == 7
	}, func(at int) bool {
		p, err := c.Get(ctx, keys[at%len(keys)])
		return err == nil && p.ID == 7
	})
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

// BenchmarkLocalHitParallel is a local hit of one hot key on all processors.
func BenchmarkLocalHitParallel(b *testing.B) {
	keys, _ := benchKeys(1)
	c, ctx := inMemory(b, keys), b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Get(ctx, keys[0]); err != nil {
				b.Error(err)
			}
		}
	})
}
