package tier_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/internal/tier"
)

type product struct {
	ID    int64
	Name  string
	Price int64
}

// BenchmarkGetBesideBare alternates between bare ristretto and this package
// every few thousand hits, so that both meet the same machine, and reports each
// one's time and the ratio. What bare ristretto does for "ttl" is to look at
// the clock; without it, an entry has no end.
//
//	go test -run '^$' -bench GetBesideBare -count 10 ./localcache/
func BenchmarkGetBesideBare(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		ints, strs := make([]int64, n), make([]string, n)
		for i, id := range rand.Perm(n) {
			ints[i], strs[i] = int64(id)+1e6, fmt.Sprintf("product:%d", id+1e6)
		}
		for _, ttl := range []time.Duration{0, time.Hour} {
			name := fmt.Sprintf("keys=%d/barettl=%v", n, ttl)
			b.Run("int64/"+name, func(b *testing.B) { getBesideBare(b, ints, ttl) })
			b.Run("string/"+name, func(b *testing.B) { getBesideBare(b, strs, ttl) })
		}
	}
}

func getBesideBare[K interface{ int64 | string }](b *testing.B, keys []K, bareTTL time.Duration) {
	bare, err := ristretto.NewCache(&ristretto.Config[K, *product]{
		NumCounters: 1 << 20, MaxCost: 1 << 26, BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer bare.Close()
	c := redistest.Must(tier.New[K, *product](tier.Options{TTL: time.Hour}))
	defer c.Close()
	for i, key := range keys {
		bare.SetWithTTL(key, &product{Price: 7}, 250, bareTTL)
		c.Fill(c.Mark(fmt.Sprint(key)), key, &product{Price: 7}, 50, time.Hour)
		if i%1000 == 0 {
			bare.Wait()
			c.Settle()
		}
	}
	bare.Wait()
	c.Settle()

	const slice = 4096
	var took [2]time.Duration
	missed, at, hits := 0, 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if hits++; hits%slice != 1 {
			continue // b.N counts hits
		}
		start := time.Now()
		for i := range slice {
			p, ok := bare.Get(keys[(at+i)%len(keys)])
			if !ok || p.Price != 7 {
				missed++
			}
		}
		middle := time.Now()
		for i := range slice {
			p, kind := c.Get(keys[(at+i)%len(keys)])
			if kind != tier.Value || (*p).Price != 7 {
				missed++
			}
		}
		took[0] += middle.Sub(start)
		took[1] += time.Since(middle)
		at += slice
	}
	rounds := float64((hits + slice - 1) / slice * slice)
	b.ReportMetric(float64(took[0])/rounds, "bare-ns/hit")
	b.ReportMetric(float64(took[1])/rounds, "levee-ns/hit")
	b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
	if missed > 0 {
		b.Fatalf("%d hits were misses", missed)
	}
}

// BenchmarkHotKey is one key read from all cores: what a lock shared by its
// readers costs.
func BenchmarkHotKey(b *testing.B) {
	bare, err := ristretto.NewCache(&ristretto.Config[int64, *product]{
		NumCounters: 1 << 20, MaxCost: 1 << 26, BufferItems: 64, IgnoreInternalCost: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer bare.Close()
	c := redistest.Must(tier.New[int64, *product](tier.Options{TTL: time.Hour}))
	defer c.Close()
	bare.Set(1, &product{}, 250)
	bare.Wait()
	c.Fill(c.Mark("1"), 1, &product{}, 50, time.Hour)
	c.Settle()

	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				bare.Get(1)
			}
		})
	})
	b.Run("levee", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.Get(1)
			}
		})
	})
}

func BenchmarkCalls(b *testing.B) {
	c := redistest.Must(tier.New[int, int](tier.Options{TTL: time.Hour}))
	defer c.Close()
	const keys = 1 << 14
	ids := make([]string, keys)
	for key := range ids {
		ids[key] = fmt.Sprint(key)
		fill(b, c, key, key, 8)
	}
	c.FillNull(c.Mark("null"), -1, time.Hour)
	c.Settle()
	for _, bench := range []struct {
		name string
		call func(i int)
	}{
		{"Miss", func(int) { c.Get(-2) }},
		{"Null", func(int) { c.Get(-1) }},
		{"Mark", func(i int) { c.Mark(ids[i]) }},
		{"MarkAndFill", func(i int) { c.Fill(c.Mark(ids[i]), i, i, 8, time.Hour) }},
		{"Put", func(i int) { c.Put(c.Mark(ids[i]), i, i, 8, time.Hour) }},
		{"Delete", func(i int) { c.Delete(ids[i]) }},
		{"Flush", func(int) { c.Flush() }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				bench.call(i % keys)
				i++
			}
		})
	}
}
