package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// ClearTags ends the values of a tag and no others: at once in its own process, and in others with
// its message. Values that are loaded afterwards are kept.
//
// Catches a hit in the local tier or in Redis whose tags are not compared, an epoch of the last
// Clear alone (no value with the tag would count any more), and a ClearTags that ends everything.
func TestAClearOfATagEndsItsValuesAndNoOthers(t *testing.T) {
	inCells(t, fewCells, func(r *rig) {
		keys := []int64{1, 2, 11, 12}
		source := newRows(r, keys...)
		c, other := open(r, source.tagged()), open(r, source.tagged())
		for _, p := range []*probe[int64, string]{c, other} {
			for _, key := range keys {
				p.gives(r, key, "v1")
			}
		}
		for round := range 3 {
			value := fmt.Sprint("v2", round)
			for _, key := range keys {
				source.put(key, value)
			}
			before := c.Stats()
			if err := c.ClearTags(r.ctx, tenant(0), "of nothing"); err != nil {
				r.Fatal(err)
			}
			c.gives(r, 1, value)
			if got, err := c.GetMany(r.ctx, []int64{1, 2, 11}); err != nil || got[1] != value || got[2] != value {
				r.Errorf("%v, %v", got, err)
			}
			if r.rdb == nil {
				if err := other.ClearTags(r.ctx, tenant(0)); err != nil { // without Redis they know nothing of each other
					r.Fatal(err)
				}
			}
			r.eventually("the other follows", func() bool { got, err := other.Get(r.ctx, 1); return err == nil && got == value })
			other.gives(r, 2, value)
			if r.kept() {
				c.gives(r, 11, "v1")
				c.gives(r, 12, "v1")
				c.comesFrom(r, 1, r.near())
				if loads := c.Stats().Loads - before.Loads; loads != 2 {
					r.Errorf("%d loads, want one of each value with the tag", loads)
				}
			}
		}
		if err := c.ClearTags(r.ctx); err != nil {
			r.Error(err)
		}
		c.gives(r, 1, "v22")
		if err := c.ClearTags(r.ctx, "everybody"); err != nil {
			r.Fatal(err)
		}
		c.gives(r, 11, "v22")
	})
}

// The local tier keeps a value past its time for failed loads, and ClearTags ends this one too. Catches
// one that is served in place of an error.
func TestAClearOfATagEndsWhatIsKeptForErrors(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		c := open(r, source.tagged(), ttl(time.Minute), func(o *cache.Options) { o.Local.TTL, o.StaleWhileRevalidate = time.Minute, -1 })
		c.gives(r, 1, "v1")
		c.gives(r, 11, "v1")
		if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if r.rdb != nil {
			r.rdb.Del(r.ctx, valueKey(1), valueKey(11))
		}
		source.slowly(func(context.Context, int64) error { return errBroken })
		if got, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("it gives %v, %v", got, err)
		}
		c.gives(r, 11, "v1") // its tag was not cleared
	})
}

// Clear and ClearTags share one number, so each ends what it has to beside the other. Catches two
// numbers: a value loaded after a ClearTags would have a later epoch than a Clear that it has not seen.
func TestAClearBesideClearsOfTags(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real"}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		c := open(r, source.tagged())
		for round := range 20 {
			value := fmt.Sprint("v", round)
			source.put(1, value)
			source.put(11, value)
			var err error
			if tag := []string{tenant(0), "everybody", tenant(1), ""}[round%4]; tag == "" {
				err = c.Clear(r.ctx)
			} else {
				err = c.ClearTags(r.ctx, tag)
			}
			if err != nil {
				r.Fatal(err)
			}
			if round%4 != 2 {
				c.gives(r, 1, value)
			}
			if round%4 != 0 {
				c.gives(r, 11, value)
			}
		}
	})
}

// A transaction changes the rows of a tenant, and clears its tag at its end: also if it failed, if the
// tag was found inside, or if it is part of another one.
func TestAWriteClearsTags(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "real", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 11)
		c := open(r, source.tagged())
		failed := errors.New("failed")
		inTx := func(value string, err error) func(context.Context) error {
			return func(context.Context) error {
				source.put(1, value)
				source.put(11, value)
				return err
			}
		}
		for name, write := range map[string]func(value string) error{
			"named": func(value string) error { return cache.Write(r.ctx, inTx(value, nil), c.Tagged(tenant(0))) },
			"beside its key": func(value string) error {
				return cache.Write(r.ctx, inTx(value, nil), c.Changes(11), c.Tagged(tenant(0)))
			},
			"failed": func(value string) error { return cache.Write(r.ctx, inTx(value, failed), c.Tagged(tenant(0))) },
			"found inside": func(value string) error {
				return cache.Write(r.ctx, func(ctx context.Context) error {
					return errors.Join(cache.Also(ctx, c.Tagged(tenant(0))), inTx(value, nil)(ctx))
				})
			},
			"within another": func(value string) error {
				return cache.Write(r.ctx, func(ctx context.Context) error {
					err := cache.Write(ctx, inTx(value+"!", nil), c.Tagged(tenant(0)))
					_, _ = c.Get(r.ctx, 1) // what it loads must end with the outer one
					source.put(1, value)
					return err
				})
			},
		} {
			for _, key := range []int64{1, 11} {
				if _, err := c.Get(r.ctx, key); err != nil {
					r.Fatal(err)
				}
			}
			if err := write(name); err != nil && !errors.Is(err, failed) {
				r.Fatalf("%s: %v", name, err)
			}
			c.gives(r, 1, name)
		}
	})
}

// Redis does not confirm a ClearTags: the call returns an error, and the clear holds in its own process
// all the same. A later try confirms it for all processes.
func TestAClearOfATagThatIsNotConfirmedIsTriedAgain(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1, 11)
		c, other := open(r, source.tagged()), open(r, source.tagged())
		for _, p := range []*probe[int64, string]{c, other} {
			p.gives(r, 1, "v1")
			p.gives(r, 11, "v1")
		}
		source.put(1, "v2")
		source.put(11, "v2")
		m.SetError("LOADING")
		if err := c.ClearTags(r.ctx, tenant(0), "more"); !errors.Is(err, cache.ErrNotInvalidated) {
			r.Errorf("got %v", err)
		}
		c.gives(r, 1, "v2")
		m.SetError("")
		c.gives(r, 1, "v2")
		r.eventually("it is confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
		c.gives(r, 1, "v2")
		r.eventually("the other follows", func() bool { v, err := other.Get(r.ctx, 1); return err == nil && v == "v2" })
		other.gives(r, 11, "v1")
		_ = c.Close()
		if err := c.ClearTags(r.ctx, "a"); !errors.Is(err, cache.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
	})
}

// ClearTags is one command for any number of values.
func TestAClearOfATagIsOneCommand(t *testing.T) {
	t.Parallel()
	keys, tenants := redistest.Pick(5_000, 1_000_000), redistest.Pick[int64](200, 10_000)
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	tag := func(key int64) string { return tenant(key % tenants) }
	source := cache.Source[int64, string]{
		LoadMany: func(_ context.Context, keys []int64) (map[int64]string, error) {
			found := map[int64]string{}
			for _, key := range keys {
				found[key] = "v1"
			}
			return found, nil
		},
		Tags: func(key int64, _ string) []string { return []string{tag(key)} },
	}
	c := open(r, source, func(o *cache.Options) { o.RedisTimeout = 10 * time.Second })
	readAllOf(r, c, keys)
	r.eventually("messages arrive", func() bool { return c.Stats().Live })
	if err := c.ClearTags(r.ctx, "warm"); err != nil { // the server has the script
		r.Fatal(err)
	}
	before := server.Stat("total_commands_processed")
	began := time.Now()
	if err := c.ClearTags(r.ctx, tag(7)); err != nil {
		r.Fatal(err)
	}
	r.Logf("one tag of %d, of %d values, cleared in %v", tenants, keys, time.Since(began))
	// The script, the dozen commands in it, a heartbeat or two, and what this test asks.
	if sent := server.Stat("total_commands_processed") - before; sent > 20 {
		r.Errorf("%d commands", sent)
	}
	loads := c.Stats().Loads
	for _, key := range []int64{7, 7 + tenants, 8} {
		if _, err := c.Get(r.ctx, key); err != nil {
			r.Fatal(err)
		}
	}
	if n := c.Stats().Loads - loads; n != 2 {
		r.Errorf("%d loads, want one for each value with the tag", n)
	}
}
