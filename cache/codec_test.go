package cache_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/levee-go/levee/cache"
)

// testCodec is JSON that fails or panics when told to.
type testCodec struct {
	marshal, unmarshal atomic.Pointer[func() error]
	marshals           atomic.Int64
}

func (c *testCodec) Marshal(v any) ([]byte, error) {
	c.marshals.Add(1)
	if fault := c.marshal.Load(); fault != nil {
		if err := (*fault)(); err != nil {
			return nil, err
		}
	}
	data, err := json.Marshal(v)
	return append([]byte("custom "), data...), err
}

func (c *testCodec) Unmarshal(data []byte, v any) error {
	if fault := c.unmarshal.Load(); fault != nil {
		if err := (*fault)(); err != nil {
			return err
		}
	}
	text, ok := strings.CutPrefix(string(data), "custom ")
	if !ok {
		return errors.New("not ours")
	}
	return json.Unmarshal([]byte(text), v)
}

func (c *testCodec) set(o *cache.Options) { o.Codec = c }

var (
	errCodec    = errors.New("cannot do that")
	codecFails  = func() error { return errCodec }
	codecPanics = func() error { panic("bug in the codec") }
)

func TestACodecOfTheUsersOwn(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		codec, source := &testCodec{}, newRows(r, 1)
		c, other := open(r, source.source(), codec.set), open(r, source.source(), codec.set)
		c.gives(r, 1, "v1")
		other.gives(r, 1, "v1")
		if r.rdb == nil {
			return
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads", n)
		}
		if stored := r.rdb.Get(r.ctx, valueKey(1)).Val(); !strings.HasSuffix(stored, `custom "v1"`) {
			r.Errorf("in Redis stands %q", stored)
		}
	})
}

// The value is there, so whoever asks gets it. If the lease were not given back,
// the next one would wait for its end.
func TestAValueThatCannotBeEncodedIsKeptInTheProcess(t *testing.T) {
	for name, fault := range map[string]func() error{"fails": codecFails, "panics": codecPanics} {
		t.Run(name, func(t *testing.T) {
			inCells(t, fewCells, func(r *rig) {
				codec, source := &testCodec{}, newRows(r, 1)
				codec.marshal.Store(&fault)
				c := open(r, source.source(), codec.set, func(o *cache.Options) {
					o.Local.MaxBytes = min(o.Local.MaxBytes, 0) // what has no encoding counts as Options.MaxValue, 1 MiB
				})
				for i := range 3 {
					got, err := c.Fetch(r.ctx, 1)
					if err != nil || got.Value != "v1" || got.Tier != r.withoutRedis(i) {
						r.Errorf("Fetch: %+v, %v", got, err)
					}
				}
				if s := c.Stats(); r.rdb != nil && (s.Unpublished != uint64(source.loads(1)) || s.Rebuild.Waits != 0) {
					r.Errorf("%+v", s)
				}

				err := c.Set(r.ctx, 1, "v2")
				var panicked *cache.PanicError
				if !errors.Is(err, errCodec) && !(errors.As(err, &panicked) && panicked.Value == "bug in the codec") {
					r.Errorf("Set: %v", err)
				}
				codec.marshal.Store(nil)
				c.gives(r, 1, "v1")
				c.comesFrom(r, 1, r.near())
			})
		})
	}
}

// Bytes that the codec does not take are a miss like all other foreign bytes.
func TestAValueThatCannotBeDecodedIsLoadedAnew(t *testing.T) {
	for name, fault := range map[string]func() error{"fails": codecFails, "panics": codecPanics} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
				codec, source := &testCodec{}, newRows(r, 1)
				c := open(r, source.source(), codec.set)
				c.gives(r, 1, "v1")

				var once sync.Once
				onceFault := func() (err error) {
					once.Do(func() { err = fault() })
					return err
				}
				codec.unmarshal.Store(&onceFault)
				other := open(r, source.source(), codec.set)
				got, err := other.Fetch(r.ctx, 1)
				if err != nil || got.Value != "v1" || got.Tier != cache.TierSource {
					r.Errorf("Fetch: %+v, %v", got, err)
				}
				if n := other.Stats().Unfit; n != 1 {
					r.Errorf("%d counted as unfit", n)
				}
				other.comesFrom(r, 1, r.near())
			})
		})
	}
}

// A nul value of a pointer type passes a codec like any other value; a null does
// not, there is nothing to encode.
func TestNullsNeedNoCodec(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		codec := &testCodec{}
		codec.marshal.Store(&codecPanics)
		c := open(r, cache.Source[int64, *product]{
			Load: func(context.Context, int64) (*product, error) { return nil, cache.ErrNotFound },
		}, codec.set)
		for range 3 {
			c.gives404(r, 1)
		}
		if n := codec.marshals.Load(); n != 0 {
			r.Errorf("%d nulls were encoded", n)
		}
	})
}

// Otherwise it would be loaded at every Get.
func TestAValueTooLargeForRedisIsKeptInTheProcess(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		fits, large := strings.Repeat("x", 1000), strings.Repeat("x", 1001)
		source := newRows(r, 1, 2)
		source.put(1, large)
		source.put(2, fits)
		c := open(r, source.source(), func(o *cache.Options) { o.MaxValue = 1000 })
		for i := range 3 {
			got, err := c.Fetch(r.ctx, 1)
			if err != nil || got.Value != large || got.Tier != r.withoutRedis(i) {
				r.Errorf("Fetch: %d bytes from %v, %v", len(got.Value), got.Tier, err)
			}
		}
		if r.rdb != nil && (r.rdb.Exists(r.ctx, valueKey(1)).Val() != 0 || c.Stats().Unpublished != uint64(source.loads(1))) {
			r.Errorf("it has been stored, or not counted: %+v", c.Stats().Rebuild)
		}
		if err := c.Invalidate(r.ctx, 1); err != nil {
			r.Error(err)
		}
		source.put(1, fits)
		c.gives(r, 1, fits)
		c.gives(r, 2, fits)
		c.comesFrom(r, 2, r.near())
	})
}
