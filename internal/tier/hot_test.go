package tier_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// read makes Gets of which 20, 10 and 5 % are for the keys 1, 2 and 3, and the others
// for a thousand keys.
func read(c *tier.Cache[int, int], rng *rand.Rand, gets int) {
	for range gets {
		switch p := rng.IntN(100); {
		case p < 20:
			c.Get(1)
		case p < 30:
			c.Get(2)
		case p < 35:
			c.Get(3)
		default:
			c.Get(10 + rng.IntN(1000))
		}
	}
}

// The samples are drawn on three ways of Get: hits in the front, hits in ristretto, and
// what is not there. Each has to count alike.
func TestTopKeysAreThoseThatAreReadMost(t *testing.T) {
	for _, test := range []struct {
		name  string
		fills func(c *tier.Cache[int, int])
	}{
		{"misses", func(*tier.Cache[int, int]) {}},
		{"nulls", func(c *tier.Cache[int, int]) {
			for key := range 1010 {
				if c.FillNull(c.Mark("a"), key, time.Hour); key%50 == 0 {
					c.Settle()
				}
			}
			c.Settle()
		}},
		{"values", func(c *tier.Cache[int, int]) {
			for key := range 1010 {
				fill(t, c, key, key, 8)
			}
			c.Settle()
		}},
		{"the hottest is not there", func(c *tier.Cache[int, int]) {
			for key := 2; key < 1010; key++ {
				fill(t, c, key, key, 8)
			}
			c.Settle()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := open[int, int](t, tier.Options{HotKeys: 100})
			test.fills(c)
			read(c, rand.New(rand.NewPCG(1, 2)), 200_000)
			top := c.TopKeys(3)
			if len(top) != 3 {
				t.Fatalf("got %+v", top)
			}
			for i, want := range []float64{0.2, 0.1, 0.05} {
				if got := top[i]; got.Key != i+1 || math.Abs(got.Share-want) > 0.03 || got.Error > 0.03 {
					t.Errorf("rank %d is %+v, want key %d with %v", i, got, i+1, want)
				}
			}
		})
	}
}

func TestWithoutHotKeysNoKeyIsKept(t *testing.T) {
	c := open[int, int](t, tier.Options{})
	read(c, rand.New(rand.NewPCG(1, 2)), 10_000)
	if top := c.TopKeys(10); top != nil {
		t.Errorf("got %v", top)
	}
	var off *tier.Cache[int, int]
	if top := off.TopKeys(10); top != nil {
		t.Errorf("a cache that is off gave %v", top)
	}
}

// Keys may come from anywhere: of any number, not equal to themselves, of any length.
func TestHotKeysTakeNoMoreThanTheirCounters(t *testing.T) {
	c := open[float64, int](t, tier.Options{HotKeys: 10})
	for i := range 100_000 {
		c.Get(float64(i))
		c.Get(math.NaN())
	}
	if n := c.Counters(); n != 10 {
		t.Errorf("%d keys are counted, want 10", n)
	}
	type slug string
	long := strings.Repeat("x", 1<<11)
	keepsNone(t, long)
	keepsNone(t, slug(long))
	keepsNone(t, [2]any{1, struct{ text slug }{slug(long)}})
}

// keepsNone fails if key, which is too long, is counted.
func keepsNone[K comparable](t *testing.T, key K) {
	t.Helper()
	c := open[K, int](t, tier.Options{HotKeys: 10})
	for range 10_000 {
		c.Get(key)
	}
	if n := c.Counters(); n != 0 {
		t.Errorf("a long %T is kept", key)
	}
}

func TestAKeyThatWasHotCools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open[int, int](t, tier.Options{HotKeys: 10})
		for range 100_000 {
			c.Get(1)
		}
		time.Sleep(5 * time.Minute)
		for range 20_000 {
			c.Get(2)
		}
		if top := c.TopKeys(1); len(top) != 1 || top[0].Key != 2 {
			t.Errorf("got %+v", top)
		}
		time.Sleep(time.Hour)
		if top := c.TopKeys(10); len(top) != 0 {
			t.Errorf("an hour later there are still %+v", top)
		}
	})
}

func TestTopKeysBesideGets(t *testing.T) {
	c := open[int, int](t, tier.Options{HotKeys: 10})
	fill(t, c, 1, 1, 8)
	var all sync.WaitGroup
	for seed := range uint64(4) {
		all.Go(func() { read(c, rand.New(rand.NewPCG(seed, 0)), 50_000) })
		all.Go(func() {
			for range 100 {
				for _, key := range c.TopKeys(10) {
					if key.Share < 0 || key.Share > 1 || key.Error > key.Share {
						t.Errorf("got %+v", key)
					}
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkHotKeys is a local hit with and without the counting of hot keys, in turns of
// a few thousand hits, so that both meet the same machine. A hit without it has nothing
// more to do than before: the samples are drawn on the way that one hit in 64 takes
// anyway.
//
//	go test -run '^$' -bench 'HotKeys' -count 10 ./localcache/
func BenchmarkHotKeys(b *testing.B) {
	const keys, slice = 1000, 4096
	off, on := open[int, int](b, tier.Options{TTL: time.Hour}), open[int, int](b, tier.Options{TTL: time.Hour, HotKeys: 100})
	caches := []*tier.Cache[int, int]{off, on}
	for _, c := range caches {
		for key := range keys {
			fill(b, c, key, key, 8)
		}
		c.Settle()
		for i := range 64 * keys {
			c.Get(i % keys)
		}
	}
	var took [2]time.Duration
	hits := 0
	b.ReportAllocs()
	for b.Loop() {
		if hits++; hits%slice != 1 {
			continue // b.N counts hits
		}
		for i, c := range caches {
			began := time.Now()
			for key := range slice {
				c.Get(key % keys)
			}
			took[i] += time.Since(began)
		}
	}
	rounds := float64((hits + slice - 1) / slice * slice)
	b.ReportMetric(float64(took[0])/rounds, "off-ns/hit")
	b.ReportMetric(float64(took[1])/rounds, "on-ns/hit")
}
