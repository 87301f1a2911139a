package cache_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Keys whose bytes choose slots, and batches over all nodes: a value and its lease
// in different slots, or a batch sent as one command, would be refused.
func TestOnAClusterNothingCrossesSlots(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t)
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("local ", local), func(t *testing.T) {
			r := newRig(t, cell{redis: "real", local: local}, nil)
			rdb := nodes.Client(t)
			var keys []string
			for _, odd := range []string{"", "{", "}", "{}", "{a}", "a}{b", "}{", "{{}}", "%", "%7B", "a:b", "v1:x", "\x00\r\n", "\xff"} {
				keys = append(keys, odd, "x"+odd, odd+odd+"y")
			}
			for i := range 100 {
				keys = append(keys, fmt.Sprint(i))
			}
			value := "v1"
			c := openOn(r, redis.UniversalClient(rdb), cache.Source[string, string]{
				Load: func(_ context.Context, key string) (string, error) { return value + key, nil },
			}, func(o *cache.Options) { o.Name, o.RedisTimeout = fmt.Sprint("test", local), 10*time.Second })
			for _, key := range keys {
				c.gives(r, key, "v1"+key)
			}
			value = "v2"
			if err := c.Invalidate(r.ctx, keys...); err != nil {
				t.Fatal(err)
			}
			got, err := c.GetMany(r.ctx, keys)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				if got[key] != "v2"+key {
					t.Errorf("key %q is %q", key, got[key])
				}
			}
			value = "v3"
			if err := c.Write(r.ctx, keys, func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				if err := c.Set(r.ctx, key, "v4"+key); err != nil {
					t.Errorf("Set(%q): %v", key, err)
				}
				c.gives(r, key, "v4"+key)
			}
			if s := c.Stats(); s.Rebuild.Unknown != 0 || s.Degraded != 0 || s.Unfit != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
