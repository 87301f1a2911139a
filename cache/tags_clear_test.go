package cache_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

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
