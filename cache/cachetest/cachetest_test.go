package cachetest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cachetest"
	"github.com/levee-go/levee/localcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A product has a field that JSON leaves out.
type product struct {
	Name   string
	Secret string `json:"-"`
}

// lossy accepts what JSON loses.
var lossy = cache.Options{Codec: cache.JSON}

// A test without Redis sees a value as another process reads it, whichever loader has loaded it.
func TestWithoutRedisAValueGoesThroughTheCodec(t *testing.T) {
	row := product{"lamp", "s"}
	one := func(context.Context, int64) (product, error) { return row, nil }
	for name, src := range map[string]cache.Source[int64, product]{
		"Load":      {Load: one},
		"LoadEntry": {LoadEntry: func(context.Context, int64, *cache.Entry[product]) (product, error) { return row, nil }},
		"LoadMany": {LoadMany: func(context.Context, []int64) (map[int64]product, error) {
			return map[int64]product{1: row}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := cachetest.NewFrom(t, nil, src, lossy)
			for range 2 { // loaded, and from memory
				if got, err := c.Get(t.Context(), 1); err != nil || got != (product{Name: "lamp"}) {
					t.Errorf("%+v, %v", got, err)
				}
			}
			if got, err := c.GetMany(t.Context(), []int64{1}); err != nil || got[1] != (product{Name: "lamp"}) {
				t.Errorf("GetMany: %+v, %v", got, err)
			}
		})
	}
}

// A value that the caller may change is not the one that the loader has returned.
func TestBytesAreCopied(t *testing.T) {
	row := []byte("lamp")
	c := cachetest.New(t, nil, func(context.Context, int64) ([]byte, error) { return row, nil }, cache.Options{})
	got, err := c.Get(t.Context(), 1)
	row[0] = 'd'
	if err != nil || string(got) != "lamp" {
		t.Errorf("%q, %v", got, err)
	}
	nothing := cachetest.New(t, nil, func(context.Context, int64) ([]byte, error) { return nil, nil }, cache.Options{})
	if got, err := nothing.Get(t.Context(), 1); got == nil || err != nil {
		t.Errorf("%v, %v: a nil []byte comes back from Redis as an empty one", got, err)
	}
}

// A nil pointer says that the key does not exist, and no codec gets it.
func TestANilPointerIsAbsent(t *testing.T) {
	o := cache.Options{Codec: brokenCodec{marshal: errors.New("broken")}}
	c := cachetest.New(t, nil, func(context.Context, int64) (*product, error) { return nil, nil }, o)
	if _, err := c.Get(t.Context(), 1); !errors.Is(err, cache.ErrNotFound) {
		t.Error(err)
	}
}

// brokenCodec fails in one of its methods.
type brokenCodec struct{ marshal, unmarshal error }

func (b brokenCodec) Marshal(any) ([]byte, error) { return nil, b.marshal }
func (b brokenCodec) Unmarshal([]byte, any) error { return b.unmarshal }

func TestAnErrorOfTheCodecIsAnErrorOfTheLoad(t *testing.T) {
	broken := errors.New("broken")
	for _, codec := range []brokenCodec{{marshal: broken}, {unmarshal: broken}} {
		c := cachetest.New(t, nil, func(context.Context, int64) (int, error) { return 1, nil }, cache.Options{Codec: codec})
		if _, err := c.Get(t.Context(), 1); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
}

// Over Redis the loading process returns what the loader has returned, and another one what Redis has.
func TestOverRedisTheCacheIsThatOfProduction(t *testing.T) {
	rdb := client(t)
	var rows cachetest.Store[int64, product]
	rows.Put(1, product{"lamp", "s"})
	o := cache.Options{Name: "product", Codec: cache.JSON}
	one, two := cachetest.New(t, rdb, rows.Load, o), cachetest.New(t, rdb, rows.Load, o)
	if got, err := one.Get(t.Context(), 1); err != nil || got.Secret == "" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := two.Fetch(t.Context(), 1); err != nil || got.Value.Secret != "" || got.Tier != cache.TierRedis {
		t.Errorf("%+v, %v", got, err)
	}
	if n := rows.Loads(1); n != 1 {
		t.Errorf("%d loads by two processes", n)
	}
}

func client(t *testing.T) redis.UniversalClient {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// The cache is closed when its test ends: later calls return ErrClosed, and goleak finds nothing.
func TestTheCacheEndsWithItsTest(t *testing.T) {
	var c *cache.Cache[int64, string]
	var rows cachetest.Store[int64, string]
	t.Run("test", func(t *testing.T) { c = cachetest.New(t, nil, rows.Load, cache.Options{}) })
	if _, err := c.Get(t.Context(), 1); !errors.Is(err, cache.ErrClosed) {
		t.Error(err)
	}
}

// A wrong option fails the test, by the name of the field.
func TestAnErrorOfNewFailsTheTest(t *testing.T) {
	failed := failure(t, func(t testing.TB) {
		cachetest.New(t, nil, func(context.Context, int64) (product, error) { return product{}, nil }, cache.Options{})
	})
	if !strings.Contains(failed, "Secret") {
		t.Errorf("%q does not name the field that JSON leaves out", failed)
	}
}

// failure returns with what text fn fails the test that it gets.
func failure(t *testing.T, fn func(testing.TB)) string {
	inner := newTest()
	defer inner.end()
	done := make(chan struct{})
	go func() { // which Fatalf ends
		defer close(done)
		fn(inner)
		t.Error("the test has not failed")
	}()
	<-done
	return inner.failed
}

// What a cache logs is in the output of its test, and nothing that it logs after its end: package
// testing may panic then.
func TestLogLinesEndWithTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, release := newTest(), make(chan struct{})
		var rows cachetest.Store[int64, string]
		c := cachetest.New(inner, nil, rows.Load, cache.Options{})
		if err := c.Write(t.Context(), nil, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		synctest.Wait() // for the goroutine that logs
		if got := inner.out.String(); !strings.Contains(got, "a Write has named no key") {
			t.Errorf("the output of the test is %q", got)
		}
		time.Sleep(time.Minute) // each kind of line comes once a minute
		inner.out.Reset()
		go func() {
			_ = c.Write(context.Background(), nil, func(context.Context) error { <-release; return nil })
		}()
		synctest.Wait()
		inner.end()
		close(release)
		synctest.Wait()
		if got := inner.out.String(); got != "" {
			t.Errorf("after the end of the test: %q", got)
		}
	})
}

// A value is cached for its TTL and not for a random part of it.
func TestATTLIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rows cachetest.Store[int64, string]
		c := cachetest.New(t, nil, rows.Load, cache.Options{TTL: time.Hour, StaleWhileRevalidate: cache.Off})
		for key := range int64(100) {
			rows.Put(key, "lamp")
			_, _ = c.Get(t.Context(), key)
		}
		time.Sleep(time.Hour - time.Millisecond)
		for key := range int64(100) {
			if _, err := c.Get(t.Context(), key); err != nil || rows.Loads(key) != 1 {
				t.Fatalf("%v, %d loads within the TTL", err, rows.Loads(key))
			}
		}
		time.Sleep(time.Millisecond)
		if _, err := c.Get(t.Context(), 1); err != nil || rows.Loads(1) != 2 {
			t.Errorf("%v, %d loads after the TTL", err, rows.Loads(1))
		}
	})
}

func TestAStoreFailsUntilItIsToldOtherwise(t *testing.T) {
	var rows cachetest.Store[int64, string]
	rows.Put(1, "lamp")
	away := errors.New("connection refused")
	rows.Fail(away)
	if got, err := rows.Load(t.Context(), 1); got != "" || err != away {
		t.Errorf("Load: %q, %v", got, err)
	}
	if got, err := rows.LoadMany(t.Context(), []int64{1, 2}); got != nil || err != away {
		t.Errorf("LoadMany: %v, %v", got, err)
	}
	if err := rows.Update(1, func(name *string) { *name = "desk" }); err != away {
		t.Errorf("Update: %v", err)
	}
	rows.Fail(nil)
	if got, err := rows.Load(t.Context(), 1); got != "lamp" || err != nil {
		t.Errorf("%q, %v: the failed Update has changed the row", got, err)
	}
	if err := rows.Update(2, func(*string) {}); !errors.Is(err, cache.ErrNotFound) {
		t.Errorf("Update of no row: %v", err)
	}
	if one, two := rows.Loads(1), rows.Loads(2); one != 3 || two != 1 {
		t.Errorf("%d and %d loads; failed ones count too", one, two)
	}
}

func TestInvalidatedKnowsWhatEachCallEnds(t *testing.T) {
	broken := errors.New("rolled back")
	for name, rdb := range map[string]redis.UniversalClient{"without Redis": nil, "with Redis": client(t)} {
		absent := int64(404)
		if rdb != nil {
			absent = 4 // which exists
		}
		var rows cachetest.Store[int64, string]
		for key := range int64(5) {
			rows.Put(key, "lamp")
		}
		c := cachetest.NewFrom(t, rdb, cache.Source[int64, string]{
			Load: rows.Load,
			Tags: func(key int64, _ string) []string { return []string{[]string{"even", "odd"}[key%2]} },
		}, cache.Options{Name: "product"})
		keys, ctx := []int64{0, 1, 2, 3, absent}, t.Context()
		commit := func(context.Context) error { return nil }
		for call, test := range map[string]struct {
			do   func() error
			want []int64
		}{
			"nothing": {func() error { return nil }, nil},
			"a read":  {func() error { _, err := c.Get(ctx, 1); return err }, nil},
			"a Set":   {func() error { return c.Set(ctx, 1, "desk") }, nil},
			"Write":   {func() error { return c.Write(ctx, []int64{absent, 2}, commit) }, []int64{2, absent}},
			"Also": {func() error {
				return cache.Write(ctx, func(ctx context.Context) error { return cache.Also(ctx, c.Changes(3)) })
			}, []int64{3}},
			"a rollback": {func() error {
				return ignore(c.Write(ctx, []int64{1}, func(context.Context) error { return broken }), broken)
			}, []int64{1}},
			"Invalidate": {func() error { return c.Invalidate(ctx, 0) }, []int64{0}},
			"Expire":     {func() error { return c.Expire(ctx, 0) }, []int64{0}},
			"ClearTags":  {func() error { return c.ClearTags(ctx, "odd") }, []int64{1, 3}},
			"Clear":      {func() error { return c.Clear(ctx) }, keys},
		} {
			var err error
			if got := cachetest.Invalidated(t, c, keys, func() { err = test.do() }); err != nil || !slices.Equal(got, test.want) {
				t.Errorf("%s, %s: %v, %v; want %v", name, call, got, err, test.want)
			}
		}
	}
}

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// Without these failures Invalidated would report keys that nothing has invalidated.
func TestInvalidatedNeedsKeysThatAreCached(t *testing.T) {
	var rows cachetest.Store[int64, string]
	rows.Put(1, "lamp")
	off := cache.Options{Local: localcache.Options{MaxBytes: cache.Off}}
	failed := failure(t, func(t testing.TB) {
		cachetest.Invalidated(t, cachetest.New(t, nil, rows.Load, off), []int64{1}, func() {})
	})
	if !strings.Contains(failed, "[1]") {
		t.Errorf("a cache that keeps nothing: %q", failed)
	}
	rows.Fail(errors.New("connection refused"))
	failed = failure(t, func(t testing.TB) {
		cachetest.Invalidated(t, cachetest.New(t, nil, rows.Load, cache.Options{}), []int64{1}, func() {})
	})
	if !strings.Contains(failed, "connection refused") {
		t.Errorf("a database that fails: %q", failed)
	}
}
