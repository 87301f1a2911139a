package cache_test

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
)

// typeCells are for what depends on types alone.
var typeCells = []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}

// keyed checks that a key of type K reads what was stored for it, in Redis under
// id, and that another key does not.
func keyed[K comparable](t *testing.T, toText func(K) string, key, other K, id string) {
	t.Helper()
	t.Run(fmt.Sprintf("%T", key), func(t *testing.T) {
		inCells(t, typeCells, func(r *rig) {
			c := open(r, cache.Source[K, string]{
				Load: func(_ context.Context, key K) (string, error) { return fmt.Sprint(key), nil },
				Key:  toText,
			})
			for range 2 {
				c.gives(r, key, fmt.Sprint(key))
				c.gives(r, other, fmt.Sprint(other))
				c.comesFrom(r, key, r.near())
			}
			if r.rdb != nil && r.rdb.Exists(r.ctx, valueKey(id)).Val() != 1 {
				r.Errorf("no key of %s in Redis, but %q", id, r.rdb.Keys(r.ctx, "*").Val())
			}
			if err := c.Invalidate(r.ctx, key); err != nil {
				r.Error(err)
			}
			if got, err := c.Fetch(r.ctx, key); err != nil || got.Tier != cache.TierSource {
				r.Errorf("after Invalidate: %+v, %v", got, err)
			}
		})
	})
}

// What the text of a key is, TestTheTextOfAKey looks at; a cache for each type
// would take the compiler minutes.
func TestTypesOfKeys(t *testing.T) {
	keyed(t, nil, "plain", "plain ", "plain")
	keyed(t, nil, "", " ", "")
	keyed(t, nil, "{}%\x00\r\n\xff", "{}%\x00\r\n", "{}%\x00\r\n\xff")
	keyed(t, nil, "v1:x", "x", "v1:x") // not what Schema 1 calls x
	keyed(t, nil, int64(-42), int64(42), "-42")
	keyed(t, func(key int64) string { return fmt.Sprintf("%x", key) }, int64(255), int64(254), "ff") // Key goes first
	keyed[encoding.TextMarshaler](t, nil, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), "10.0.0.1")
}

func TestAKeyWithoutTextIsInvalid(t *testing.T) {
	inCells(t, typeCells, func(r *rig) {
		c := open(r, cache.Source[encoding.TextMarshaler, string]{
			Load: func(context.Context, encoding.TextMarshaler) (string, error) { return "v", nil },
		})
		if _, err := c.Get(r.ctx, nil); !errors.Is(err, cache.ErrInvalidKey) {
			r.Errorf("Get(nil): %v", err)
		}
	})
}

func TestTheLongestKey(t *testing.T) {
	longest := strings.Repeat("{", 512) // which takes three times as much in Redis
	inCells(t, typeCells, func(r *rig) {
		c := open(r, cache.Source[string, string]{
			Load: func(context.Context, string) (string, error) { return "v", nil },
		})
		c.gives(r, longest, "v")
		c.comesFrom(r, longest, r.near())
		if _, err := c.Get(r.ctx, longest+"x"); !errors.Is(err, cache.ErrInvalidKey) {
			r.Errorf("one byte more: %v", err)
		}
	})
	inCells(t, typeCells, func(r *rig) {
		c := open(r, cache.Source[string, string]{
			Load: func(context.Context, string) (string, error) { return "v", nil },
		}, func(o *cache.Options) { o.MaxKey = 3 })
		c.gives(r, "abc", "v")
		if _, err := c.Get(r.ctx, "abcd"); !errors.Is(err, cache.ErrInvalidKey) {
			r.Errorf("over MaxKey: %v", err)
		}
	})
}

type product struct {
	ID    int64
	Name  string
	Tags  []string          `json:",omitempty"`
	Notes map[string]string `json:",omitempty"`
	Until time.Time
}

// valued checks that a value of type V survives the way through Redis and back.
func valued[V any](t *testing.T, name string, value V) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		inCells(t, typeCells, func(r *rig) {
			src := cache.Source[int64, V]{Load: func(context.Context, int64) (V, error) { return value, nil }}
			processes := []*probe[int64, V]{open(r, src), open(r, src)}
			for _, c := range append(processes, processes...) {
				got, err := c.Get(r.ctx, 1)
				if err != nil || !reflect.DeepEqual(got, value) {
					r.Errorf("Get gives %#v, %v; want %#v", got, err, value)
				}
			}
			if n := processes[0].Stats().Loads + processes[1].Stats().Loads; r.rdb != nil && n != 1 {
				r.Errorf("%d loads", n)
			}
		})
	})
}

// TestEachTypeOfValueIsReadAsItWasWritten has more of them.
func TestTypesOfValues(t *testing.T) {
	lamp := product{7, "lamp\x00é", []string{"a", ""}, map[string]string{"k": "v"}, time.Unix(1e9, 5).UTC()}
	valued(t, "string", "a\x00\xff b")
	valued(t, "empty string", "")
	valued(t, "foreign magic", "Lv\x01\x02")
	valued(t, "bytes", []byte{0, 255, 'L', 'v'})
	valued(t, "empty bytes", []byte{})
	valued(t, "struct", lamp)
	valued(t, "pointer", &lamp)
	valued(t, "nil slice", []string(nil)) // an empty list is a value
}

// Loaders written by hand return a nil pointer without an error for a row that is not there.
// When that was a value, a caller who looked at the error alone panicked.
func TestANilPointerOfALoaderIsNotFound(t *testing.T) {
	one := func(context.Context, int64) (*product, error) { return nil, nil }
	many := func(_ context.Context, keys []int64) (map[int64]*product, error) {
		return map[int64]*product{keys[0]: nil}, nil
	}
	for name, src := range map[string]cache.Source[int64, *product]{"Load": {Load: one}, "LoadMany": {LoadMany: many}} {
		t.Run(name, func(t *testing.T) {
			inCells(t, typeCells, func(r *rig) {
				c := open(r, src)
				for range 3 {
					c.gives404(r, 1)
				}
				if got, err := c.GetMany(r.ctx, []int64{1}); err != nil || len(got) != 0 {
					r.Errorf("GetMany: %v, %v", got, err)
				}
				if s := c.Stats(); s.Errors != 0 || s.LoadErrors != 0 {
					r.Errorf("%+v", s)
				}
			})
		})
	}
}

// A pointer whose JSON is "null" comes back from Redis as a nil pointer. Catches one that a
// caller in another process gets beside a nil error.
func TestNoNilPointerComesOutOfRedis(t *testing.T) {
	inCells(t, typeCells, func(r *rig) {
		src := cache.Source[int64, *nullable]{Load: func(context.Context, int64) (*nullable, error) { return &nullable{}, nil }}
		for _, c := range []*probe[int64, *nullable]{open(r, src), open(r, src)} { // two processes
			for range 2 {
				if got, err := c.Get(r.ctx, 1); got == nil || err != nil {
					r.Errorf("got %v, %v", got, err)
				}
			}
			if got, err := c.GetMany(r.ctx, []int64{1}); got[1] == nil || err != nil {
				r.Errorf("GetMany: got %v, %v", got, err)
			}
		}
	})
}

// A nullable is null in JSON, as a column's value that is not valid.
type nullable struct{}

func (*nullable) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// One rule for nil pointers: what a Loader says by one, Set says too. Catches a Set that
// stores it as a value, which Get then returned beside a nil error.
func TestANilPointerThatIsSetIsNotFound(t *testing.T) {
	inCells(t, typeCells, func(r *rig) {
		var loads atomic.Int32
		c := open(r, cache.Source[int64, *product]{
			Load:  func(context.Context, int64) (*product, error) { loads.Add(1); return &product{ID: 1}, nil },
			TTL:   func(_ int64, p *product) time.Duration { return time.Duration(p.ID) * time.Hour }, // no nil
			Clone: func(p *product) *product { clone := *p; return &clone },
		})
		for name, set := range map[string]func() error{
			"Set":     func() error { return c.Set(r.ctx, 1, nil) },
			"SetMany": func() error { return c.SetMany(r.ctx, map[int64]*product{1: nil}) },
		} {
			if err := set(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			before := loads.Load()
			for range 3 {
				c.gives404(r, 1)
			}
			if n := loads.Load() - before; n != 0 {
				r.Errorf("%s: %d loads of a key that is known to be absent", name, n)
			}
			time.Sleep(31 * time.Second) // NullTTL
			if p, err := c.Get(r.ctx, 1); err != nil || p == nil {
				r.Errorf("%s: after NullTTL Get returns %v, %v", name, p, err)
			}
		}
	})
}

func TestEachValueMayHaveATTLOfItsOwn(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2, 3, 4)
		src := source.source()
		src.TTL = func(key int64, value string) time.Duration {
			if value != "v1" {
				r.Errorf("TTL is asked about %q", value)
			}
			return map[int64]time.Duration{1: time.Minute, 2: 0, 3: -time.Second, 4: 10 * time.Hour}[key]
		}
		c := open(r, src, func(o *cache.Options) { o.TTL, o.Jitter = time.Hour, -1 }, hard)
		for key, want := range map[int64]time.Duration{1: time.Minute, 2: time.Hour, 3: time.Hour, 4: 10 * time.Hour} {
			for path, store := range map[string]func(){
				"Get": func() { c.gives(r, key, "v1") },
				"Set": func() { _ = c.Set(r.ctx, key, "v1") },
			} {
				_ = c.Invalidate(r.ctx, key)
				store()
				if left := r.rdb.PTTL(r.ctx, valueKey(key)).Val(); left != want {
					r.Errorf("%s: key %d stays for %v, want %v", path, key, left, want)
				}
			}
		}
		time.Sleep(time.Minute)
		loads := source.loads(1)
		c.gives(r, 1, "v1")
		if source.loads(1) != loads+1 {
			r.Error("key 1 has outlived its minute")
		}
	})
}

// Without Redis it is the local tier that has to know.
func TestWithoutRedisValuesHaveATTLToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cell{redis: "none", local: true}, nil)
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { o.TTL, o.Local.TTL = time.Minute, time.Hour }, hard)
		for path, store := range map[string]func(){
			"Get": func() { c.gives(r, 1, "v1") },
			"Set": func() { _ = c.Set(r.ctx, 1, "v1") },
		} {
			source.put(1, "v1")
			_ = c.Invalidate(r.ctx, 1)
			store()
			c.comesFrom(r, 1, cache.TierLocal)
			source.put(1, "v2")
			time.Sleep(48 * time.Second) // a life loses a tenth at the most, and the local one another
			c.gives(r, 1, "v1")
			time.Sleep(12 * time.Second)
			if got, _ := c.Get(r.ctx, 1); got != "v2" {
				r.Errorf("%s: v1 has outlived its minute", path)
			}
		}
	})
}

// Taking the Clone out of any of the ways on which a value comes to a caller fails
// this, under the race detector or by the value.
func TestCloneKeepsCallersApart(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none"}, {redis: "none", local: true}}, func(r *rig) {
		gate := newLatch()
		c := open(r, cache.Source[int64, []string]{
			Load: func(ctx context.Context, key int64) ([]string, error) {
				return []string{"a", "b"}, gate.wait(ctx, key)
			},
			Clone: func(v []string) []string { return append([]string(nil), v...) },
		})
		check := func(got []string, err error) {
			if err != nil || len(got) != 2 || got[0] != "a" || got[1] != "b" {
				r.Errorf("got %v, %v", got, err)
				return
			}
			got[0] = "changed" // as a caller may who has a copy of its own
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { check(c.Get(r.ctx, 1)) })
		}
		r.eventually("all are in", func() bool { return c.Stats().Gets == 20 })
		close(gate.open)
		wg.Wait()
		for range 20 {
			check(c.Get(r.ctx, 1))
		}
		if r.kept() {
			c.comesFrom(r, 1, r.near())
		}
		check(c.Get(r.ctx, 1))
		many, err := c.GetMany(r.ctx, []int64{1})
		check(many[1], err)

		mine := []string{"a", "b"}
		if err := c.Set(r.ctx, 1, mine); err != nil {
			r.Error(err)
		}
		mine[1] = "changed" // the writer goes on with what it has
		for range 20 {
			check(c.Get(r.ctx, 1))
		}
	})
}
