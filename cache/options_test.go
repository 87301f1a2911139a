package cache_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

func loadNothing(context.Context, int64) (string, error) { return "", cache.ErrNotFound }

// Whoever reads the error has to know which line to change.
func TestNewNamesTheOptionItCannotUse(t *testing.T) {
	var negative time.Duration = -1
	for _, test := range []struct {
		names  string // what the error has to hold
		change func(*cache.Options)
	}{
		{"Name", func(o *cache.Options) { o.Name = "" }},
		{"Name", func(o *cache.Options) { o.Name = "a:b" }},
		{"Name", func(o *cache.Options) { o.Name = " " }},
		{"Name", func(o *cache.Options) { o.Name = "a\nb" }},
		{"Name", func(o *cache.Options) { o.Name = "{a" }},
		{"Name", func(o *cache.Options) { o.Name = "a}" }},
		{"Schema", func(o *cache.Options) { o.Schema = -1 }},
		{"Schema", func(o *cache.Options) { more := int64(1 << 31); o.Schema = int(more) }},
		{"Jitter", func(o *cache.Options) { o.Jitter = 1 }},
		{"Jitter", func(o *cache.Options) { o.Jitter = 2 }},
		{"Jitter", func(o *cache.Options) { o.Jitter = math.NaN() }},
		{"Jitter", func(o *cache.Options) { o.Jitter = math.Inf(1) }},
		{"TTL", func(o *cache.Options) { o.TTL = negative }},
		{"TTL", func(o *cache.Options) { o.TTL = -time.Hour }},
		{"TTL", func(o *cache.Options) { o.TTL = time.Microsecond }},
		{"NullTTL", func(o *cache.Options) { o.NullTTL = negative }},
		{"StaleWhileRevalidate", func(o *cache.Options) { o.StaleWhileRevalidate = time.Microsecond }},
		{"StaleIfError", func(o *cache.Options) { o.StaleIfError = time.Microsecond }},
		{"EarlyRefresh", func(o *cache.Options) { o.EarlyRefresh = math.NaN() }},
		{"EarlyRefresh", func(o *cache.Options) { o.EarlyRefresh = math.Inf(1) }},
		{"RedisTimeout", func(o *cache.Options) { o.RedisTimeout = negative }},
		{"ReplicaLag", func(o *cache.Options) { o.ReplicaLag = negative }},
		{"MaxKey", func(o *cache.Options) { o.MaxKey = -1 }},
		{"MaxValue", func(o *cache.Options) { o.MaxValue = -1 }},
		{"Local: localcache: TTL", func(o *cache.Options) { o.Local.TTL = negative }},
		{"Local: localcache: TTL", func(o *cache.Options) { o.Local.TTL = time.Millisecond }},
		{"Local: localcache: MaxBytes", func(o *cache.Options) { o.Local.MaxBytes = 1 }},
		{"Local: localcache: MaxNullBytes", func(o *cache.Options) { o.Local.MaxNullBytes = 1 }},
		{"Local: localcache: DistrustTTL", func(o *cache.Options) { o.Local.DistrustTTL = 1 }},
		{"Breaker.Timeout limits a load, set that to 3s", func(o *cache.Options) { o.Rebuild.LoadTimeout = 3 * time.Second }},
		{"Lease", func(o *cache.Options) { o.Rebuild.Lease = negative }},
		{"Lease", func(o *cache.Options) { o.Rebuild.Lease = time.Millisecond }},
		{"WaitBudget", func(o *cache.Options) { o.Rebuild.WaitBudget = negative }},
		{"Hold", func(o *cache.Options) { o.Rebuild.Hold = negative }},
	} {
		o := cache.Options{Name: "test"}
		test.change(&o)
		for _, rdb := range []redis.UniversalClient{nil, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})} {
			c, err := cache.New(rdb, loadNothing, o)
			if err == nil || c != nil || !strings.HasPrefix(err.Error(), "cache: ") || !strings.Contains(err.Error(), test.names) {
				t.Errorf("%s: %v with %+v", test.names, err, o)
			}
			if rdb != nil {
				_ = rdb.Close()
			}
		}
	}
}

func TestOptionsThatLookOddAndAreNot(t *testing.T) {
	for name, change := range map[string]func(*cache.Options){
		"nothing":                  func(*cache.Options) {},
		"a name of any other text": func(o *cache.Options) { o.Name = "Käse% 🦆" },
		"largest schema":           func(o *cache.Options) { o.Schema = 1<<31 - 1 },
		"no jitter":                func(o *cache.Options) { o.Jitter = math.Inf(-1) },
		"nearly all jitter":        func(o *cache.Options) { o.Jitter = math.Nextafter(1, 0) },
		"longest TTL":              func(o *cache.Options) { o.TTL = math.MaxInt64 },
		"shortest TTL":             func(o *cache.Options) { o.TTL = time.Millisecond },
		"no local tier":            func(o *cache.Options) { o.Local.MaxBytes = -1 },
		"no local nulls":           func(o *cache.Options) { o.Local.MaxNullBytes = -1 },
		"no error hold":            func(o *cache.Options) { o.Rebuild.ErrorHold = -1 },
		"no limits": func(o *cache.Options) {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{FailureRatio: -1, MaxConcurrent: -1, MaxDegraded: -1, Timeout: -1}))
		},
		"a load longer than any": within(time.Hour),
		"a short load":           within(time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
				c := open(r, newRows(r, 1).source(), func(o *cache.Options) { o.Breaker = nil }, change)
				c.gives(r, 1, "v1")
				if err := c.Set(r.ctx, 1, "v1"); err != nil {
					r.Error(err)
				}
			})
		})
	}
}

// The defaults are a promise: the README has them in a table.
func TestDefaults(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source(), func(o *cache.Options) { *o = cache.Options{Name: "test"} })
		c.gives(r, 1, "v1")
		c.gives404(r, 2)
		_ = c.Invalidate(r.ctx, 2)
		c.gives404(r, 2) // Redis takes a null at its second miss
		for key, want := range map[string]struct{ ttl, after time.Duration }{valueKey(1): {10 * time.Minute, time.Hour}, valueKey(2): {30 * time.Second, 0}} {
			left := r.rdb.PTTL(r.ctx, key).Val() - want.after
			if left > want.ttl || left < want.ttl*9/10-time.Second {
				r.Errorf("%s stays for %v and %v, with a default of %v less a tenth at most", key, left, want.after, want.ttl)
			}
		}
		c.comesFrom(r, 1, cache.TierLocal)
		time.Sleep(4 * time.Minute)
		c.comesFrom(r, 1, cache.TierLocal)
		time.Sleep(61 * time.Second)
		if got, _ := c.Fetch(r.ctx, 1); got.Tier != cache.TierRedis {
			r.Errorf("after 5 min it comes from %v", got.Tier)
		}
	})
}

func TestNewRefusesWhatItCannotLoadWith(t *testing.T) {
	o := cache.Options{Name: "test"}
	refused := func(what string, names string, err error) {
		t.Helper()
		if err == nil || !strings.HasPrefix(err.Error(), "cache: ") || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := cache.New[int64, string](nil, nil, o)
	refused("a nil loader", "Load", err)
	_, err = cache.NewFrom(nil, cache.Source[int64, string]{}, o)
	refused("an empty source", "Source.Load, Source.LoadMany and Source.LoadEntry", err)

	_, err = cache.New((*redis.Client)(nil), loadNothing, o)
	refused("a nil client", "nil *redis.Client", err)
	_, err = cache.New((*redis.ClusterClient)(nil), loadNothing, o)
	refused("a nil cluster client", "nil *redis.ClusterClient", err)
}
