package cost_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// BenchmarkRedisHit is a hit in Redis of one caller beside a bare GET of the same
// bytes, by turns; "json" decodes them, on both sides. The allocations are those
// of "bare" and "levee", each alone.
//
//	go test -run '^$' -bench RedisHit -count 10 ./internal/cost
func BenchmarkRedisHit(b *testing.B) {
	server := redistest.Start(b)
	rdb := server.Client(b)
	ctx := b.Context()
	lamp := product{7, "lamp", []string{"a", "b"}, nil, time.Unix(1e9, 0)}

	text := strings.Repeat("x", 200)
	raw := noLocal(b, rdb, "raw", text)
	redisHit(b, "raw", func(int) bool {
		got, err := rdb.Get(ctx, keys.OfCache("raw").Value(0, fmt.Sprint(42))).Result()
		return err == nil && len(got) > 200
	}, func(int) bool {
		got, err := raw.Get(ctx, 42)
		return err == nil && len(got) == 200
	})

	structs := noLocal(b, rdb, "json", lamp)
	redisHit(b, "json", func(int) bool {
		data, err := rdb.Get(ctx, keys.OfCache("json").Value(0, fmt.Sprint(42))).Bytes()
		if err != nil {
			return false
		}
		var p product
		return json.Unmarshal(data[56:], &p) == nil && p.ID == 7 // behind our header
	}, func(int) bool {
		p, err := structs.Get(ctx, 42)
		return err == nil && p.ID == 7
	})
}

func redisHit(b *testing.B, name string, bare, ours func(int) bool) {
	b.Run(name+"/beside", func(b *testing.B) { alternate(b, 64, bare, ours) })
	for side, read := range map[string]func(int) bool{"bare": bare, "levee": ours} {
		b.Run(name+"/"+side, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !read(0) {
					b.Fatal("a wrong answer")
				}
			}
		})
	}
}

// A hit takes no more allocations than the command alone, and at most 200 bytes more. What a caller
// notes of its read stays on the stack: it took 176 bytes of the heap once, and a flight before that as
// much again.
func TestARedisHitAllocatesLittle(t *testing.T) {
	if race.Detector {
		t.Skip("the race detector allocates")
	}
	server := redistest.Start(t)
	rdb := server.Client(t)
	ctx := t.Context()
	c := noLocal(t, rdb, "raw", strings.Repeat("x", 200))
	memory := func(read func() error) (allocations, size float64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const times = 2000
		for range times {
			if err := read(); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / times, float64(after.TotalAlloc-before.TotalAlloc) / times
	}
	bare, bareSize := memory(func() error { return rdb.GetRange(ctx, keys.OfCache("raw").Value(0, fmt.Sprint(42)), 0, 1<<20).Err() })
	ours, size := memory(func() error { _, err := c.Get(ctx, 42); return err })
	if ours > bare+0.5 || size > bareSize+200 {
		t.Error("more allocations than the command's, or 200 bytes beside them")
	}
	t.Logf("a hit: %.1f allocations, %.0f bytes; a command: %.1f, %.0f", ours, size, bare, bareSize)
}

// noLocal opens a cache without a local tier that has value in Redis under 42.
func noLocal[V any](b testing.TB, rdb redis.UniversalClient, name string, value V) *cache.Cache[int64, V] {
	b.Helper()
	c := redistest.Must(cache.New(rdb, func(context.Context, int64) (V, error) { return value, nil }, cache.Options{
		Name: name, TTL: time.Hour, Local: localcache.Options{MaxBytes: -1}, RedisTimeout: 10 * time.Second, // a busy machine is no outage
	}))
	b.Cleanup(func() { _ = c.Close() })
	if _, err := c.Get(b.Context(), 42); err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkMiss is a key that is nowhere: three round trips and the loader.
func BenchmarkMiss(b *testing.B) {
	server := redistest.Start(b)
	c := redistest.Must(cache.New(server.Client(b), func(context.Context, int64) (string, error) { return "v", nil }, cache.Options{
		Name: "miss", Local: localcache.Options{MaxBytes: -1},
	}))
	defer c.Close()
	key := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		if key++; redistest.Must(c.Get(b.Context(), key)) != "v" {
			b.Fatal("a wrong answer")
		}
	}
	if n := c.Stats().Loads; n != uint64(key) {
		b.Fatal(fmt.Sprint(n, " loads"))
	}
}

// BenchmarkPage is GetMany of 10, 100 and 1,000 keys that are in Redis, beside a bare pipeline of as many
// GETRANGEs of the same bytes, by turns.
//
//	go test -run '^$' -bench Page -count 5 ./internal/cost
func BenchmarkPage(b *testing.B) {
	server := redistest.Start(b)
	rdb := server.Client(b)
	ctx := b.Context()
	text := strings.Repeat("x", 200)
	c := redistest.Must(cache.New(rdb, func(context.Context, int64) (string, error) { return text, nil }, cache.Options{
		Name: "page", TTL: time.Hour, Local: localcache.Options{MaxBytes: -1},
	}))
	defer c.Close()
	for _, size := range []int{10, 100, 1000} {
		ids, names := make([]int64, size), make([]string, size)
		for i := range ids {
			ids[i], names[i] = int64(i), keys.OfCache("page").Value(0, fmt.Sprint(i))
		}
		_ = redistest.Must(c.GetMany(ctx, ids))
		bare := func(int) bool {
			p := rdb.Pipeline()
			replies := make([]*redis.StringCmd, size)
			for i, name := range names {
				replies[i] = p.GetRange(ctx, name, 0, 1<<20)
			}
			_, err := p.Exec(ctx)
			return err == nil && len(replies[size-1].Val()) > 200
		}
		ours := func(int) bool {
			got, err := c.GetMany(ctx, ids)
			return err == nil && len(got) == size
		}
		b.Run(fmt.Sprintf("beside/%d", size), func(b *testing.B) { alternate(b, 8, bare, ours) })
		b.Run(fmt.Sprintf("levee/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !ours(0) {
					b.Fatal("a wrong answer")
				}
			}
		})
	}
}

// BenchmarkRedisHits is a hit in Redis of many callers at a time. "fresh" callers are each a
// goroutine that has just begun, as those of requests are.
//
//	go test -run '^$' -bench RedisHits -benchtime 0.5s -count 3 ./internal/cost
func BenchmarkRedisHits(b *testing.B) {
	server := redistest.Start(b)
	load := func(context.Context, int64) ([]byte, error) { return []byte(strings.Repeat("x", 200)), nil }
	c := redistest.Must(cache.New(server.Client(b), load, cache.Options{
		Name: "hits", TTL: time.Hour, Local: localcache.Options{MaxBytes: -1},
	}))
	defer c.Close()
	for key := range int64(10000) {
		_ = redistest.Must(c.Get(b.Context(), key))
	}
	get := func(b *testing.B, caller, i int) {
		if got, err := c.Get(context.Background(), int64((caller*39+7*i)%10000)); err != nil || len(got) != 200 {
			b.Errorf("got %d bytes, %v", len(got), err)
		}
	}
	for _, callers := range []int{1, 16, 256, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			b.ReportAllocs()
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := range b.N/callers + 1 {
						get(b, caller, i)
					}
				})
			}
			all.Wait()
		})
	}
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprint("fresh/", callers), func(b *testing.B) {
			for i := range b.N/callers + 1 {
				var all sync.WaitGroup
				for caller := range callers {
					all.Go(func() { get(b, caller, i) })
				}
				all.Wait()
			}
		})
	}
}
