package tier_test

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a cache that is closed at the end of the test.
func open[K comparable, V any](t testing.TB, o tier.Options) *tier.Cache[K, V] {
	t.Helper()
	c, err := tier.New[K, V](o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// want fails unless Get answers like that.
func want[K, V comparable](t testing.TB, c *tier.Cache[K, V], key K, value V, kind tier.Kind) {
	t.Helper()
	if v, k := get(c, key); v != value || k != kind {
		t.Fatalf("Get(%v) = %v, %v; want %v, %v", key, v, k, value, kind)
	}
}

// get is Get with the zero V in place of nil.
func get[K comparable, V any](c *tier.Cache[K, V], key K) (value V, kind tier.Kind) {
	v, kind := c.Get(key)
	if v != nil {
		value = *v
	}
	return value, kind
}

const (
	miss  = tier.Miss
	value = tier.Value
	null  = tier.Null
	past  = tier.Past
)

func TestGetFindsWhatWasFilled(t *testing.T) {
	c := open[string, int](t, tier.Options{})
	want(t, c, "a", 0, miss)
	if !c.Fill(c.Mark("a"), "a", 1, 8, time.Minute) || !c.FillNull(c.Mark("b"), "b", time.Minute) {
		t.Fatal("a fill was not taken")
	}
	c.Settle()
	want(t, c, "a", 1, value)
	want(t, c, "b", 0, null)
	want(t, c, "c", 0, miss)

	c.Fill(c.Mark("b"), "b", 2, 8, time.Minute)
	c.Settle()
	want(t, c, "b", 2, value) // over the null
	c.Fill(c.Mark("a"), "a", 3, 8, time.Minute)
	want(t, c, "a", 3, value) // over the value, at once
}

func TestKeysOfEveryTypeAreFound(t *testing.T) {
	type id string
	type pair struct {
		shop int32
		name string
	}
	testKeys(t, "", "a", "\xff\x00")
	testKeys(t, id("a"), id("b"))
	testKeys[int64](t, 0, 1, -1, 1<<62)
	testKeys[int](t, 0, 1, -1)
	testKeys[uint64](t, 0, 1, 1<<63)
	testKeys[int32](t, 0, 1, -1)
	testKeys(t, pair{1, "a"}, pair{1, "b"}, pair{2, "a"})
	testKeys[any](t, 1, "1", pair{1, "a"})
	testKeys(t, [16]byte{1}, [16]byte{2})
}

func testKeys[K comparable](t *testing.T, keys ...K) {
	t.Run(fmt.Sprintf("%T", keys[0]), func(t *testing.T) {
		c := open[K, int](t, tier.Options{MaxBytes: 1 << 20})
		for i, key := range keys {
			c.Fill(c.Mark(fmt.Sprint(i)), key, i, 8, time.Minute)
		}
		c.Settle()
		for i, key := range keys {
			want(t, c, key, i, value)
		}
	})
}

// A hash says nothing of the type of what is in an interface, so these two,
// which are of one size on every platform, have the same.
//
// Catches a Get that trusts the hash, in ristretto or in the front.
func TestKeysThatHashAlikeAreToldApart(t *testing.T) {
	c := open[any, int](t, tier.Options{})
	mine, yours := any(1), any(uint(1))
	if c.Hash(mine) != c.Hash(yours) {
		t.Fatal("the hashes differ: find other keys")
	}
	c.Fill(c.Mark("mine"), mine, 1, 8, time.Minute)
	c.Settle()
	want(t, c, yours, 0, miss)
	heat(t, c, mine)
	want(t, c, yours, 0, miss)
	want(t, c, mine, 1, value)
}

// Catches a cache that keeps the caller's string: it would keep alive whatever
// the string is a piece of. That it is another string shows when the caller's
// changes.
func TestAKeyDoesNotHoldOnToTheCallersMemory(t *testing.T) {
	c := open[string, int](t, tier.Options{})
	request := []byte("GET /product/42")
	key := unsafe.String(&request[len(request)-2], 2)
	c.Fill(c.Mark(key), key, 1, 8, time.Minute)
	c.Settle()
	copy(request[len(request)-2:], "43")
	want(t, c, "42", 1, value)
}

func TestIntegerKeysSpreadOverTheShards(t *testing.T) {
	const keys, shards = 100_000, 256
	c := open[int64, int](t, tier.Options{MaxBytes: 1 << 20})
	for _, step := range []int64{1, 10, 256, 65_536, 1 << 32} {
		var filled [shards]int
		for i := range int64(keys) {
			filled[c.Hash(i*step)%shards]++
		}
		for shard, n := range filled {
			if n < keys/shards/2 || n > keys/shards*2 {
				t.Errorf("step %d: shard %d has %d of %d keys", step, shard, n, keys)
			}
		}
	}
}

func TestACacheThatIsOffDoesNothing(t *testing.T) {
	c, err := tier.New[string, int](tier.Options{MaxBytes: -1})
	if c != nil || err != nil {
		t.Fatalf("New = %v, %v; want nil, nil", c, err)
	}
	m := c.Mark("a")
	if c.Fill(m, "a", 1, 8, time.Minute) || c.FillNull(m, "a", time.Minute) || c.Put(c.Mark("a"), "a", 1, 8, time.Minute) {
		t.Error("a cache that is off took something")
	}
	want(t, c, "a", 0, miss)
	c.Delete("a")
	c.Flush()
	c.Trust(false)
	if s := c.Stats(); s != (tier.Stats{}) {
		t.Errorf("Stats = %+v", s)
	}
	c.Close()
}

func TestNullsCanBeSwitchedOff(t *testing.T) {
	c := open[string, int](t, tier.Options{MaxNullBytes: -1})
	if c.FillNull(c.Mark("a"), "a", time.Minute) {
		t.Error("the null was taken")
	}
	want(t, c, "a", 0, miss)
	c.Fill(c.Mark("a"), "a", 1, 8, time.Minute)
	c.Settle()
	want(t, c, "a", 1, value)
}

func TestGetDoesNotAllocate(t *testing.T) {
	if race.Detector {
		t.Skip("sync.Pool, which ristretto uses, drops things at random under the race detector")
	}
	type pair struct{ shop, id int64 }
	testAllocs(t, int64(1), 2, 3)
	testAllocs(t, "product:1", "product:2", "product:3")
	testAllocs(t, pair{1, 1}, pair{1, 2}, pair{1, 3})
}

func testAllocs[K comparable](t *testing.T, there, gone, unknown K) {
	c := open[K, *product](t, tier.Options{})
	c.Fill(c.Mark("there"), there, &product{}, 50, time.Minute)
	c.FillNull(c.Mark("gone"), gone, time.Minute)
	c.Settle()
	for key, kind := range map[K]tier.Kind{there: value, gone: null, unknown: miss} {
		allocs := testing.AllocsPerRun(10_000, func() {
			if _, k := c.Get(key); k != kind {
				t.Errorf("Get(%v) found %v, want %v", key, k, kind)
			}
		})
		if allocs != 0 {
			t.Errorf("Get(%v) allocates %v times", key, allocs)
		}
	}
}
