package cache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/redistest"
)

// After an Expire the next reader loads, in every process. While the source fails the old value answers,
// marked; when it works again the new one does, unmarked, and stays. Nulls are gone at once.
//
// Catches an Expire that drops the value, one that leaves it to answer as before, and a value that is
// marked in the local tier of one process alone.
func TestAnExpiredValueAnswersOnlyForWantOfAnother(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}, {redis: "real", local: true}}, func(r *rig) {
		source, failing := newRows(r, 1, 2), &atomic.Bool{}
		source.slowly(func(context.Context, int64) error {
			if failing.Load() {
				return errors.New("the source is down")
			}
			return nil
		})
		quick := func(o *cache.Options) { o.Rebuild.ErrorHold = -1 }
		c, other := open(r, source.source(), quick), open(r, source.source(), quick)
		for _, p := range []*probe[int64, string]{c, other} {
			for range 3 {
				p.gives(r, 1, "v1")
				p.gives(r, 2, "v1")
				p.gives404(r, 7)
			}
		}
		source.put(1, "v2")
		source.put(2, "v2")
		source.put(7, "v2")
		failing.Store(true)
		if err := c.Expire(r.ctx, 1, 2, 7); err != nil {
			r.Fatal(err)
		}
		marked := func(p *probe[int64, string], key int64) bool {
			got, err := p.Fetch(r.ctx, key)
			return err == nil && got.Value == "v1" && got.Stale
		}
		for range 2 {
			if !marked(c, 1) {
				r.Error("the old value does not answer, or is not marked")
			}
		}
		if got, err := c.FetchMany(r.ctx, []int64{1, 2}); err != nil || !got[1].Stale || !got[2].Stale {
			r.Errorf("%v, %v", got, err)
		}
		r.eventually("the other follows", func() bool { return marked(other, 1) })
		if _, err := c.Get(r.ctx, 7); err == nil || errors.Is(err, cache.ErrNotFound) {
			r.Errorf("the null goes on to answer: %v", err)
		}
		failing.Store(false)
		for _, p := range []*probe[int64, string]{c, other} {
			if got, err := p.Fetch(r.ctx, 1); err != nil || got.Value != "v2" || got.Stale {
				r.Errorf("%+v, %v", got, err)
			}
			p.gives(r, 7, "v2")
		}
		loads := source.loads(1)
		other.gives(r, 1, "v2")
		if source.loads(1) != loads {
			r.Error("the new value is not kept")
		}
	})
}

// What an Expire left behind is ended by an Invalidate, a Clear and a ClearTags, as any value
// (FusionCache#648 and #553 are a hard clear after a soft one that does not end it), and by StaleIfError after
// the Expire. It is none of a cache without StaleIfError.
func TestWhatAnExpireLeftBehindEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, c *probe[int64, string]) error{
		"":                 func(*rig, *probe[int64, string]) error { return nil },
		"by an Invalidate": func(r *rig, c *probe[int64, string]) error { return c.Invalidate(r.ctx, 1) },
		"by a Clear":       func(r *rig, c *probe[int64, string]) error { return c.Clear(r.ctx) },
		"by a ClearTags":   func(r *rig, c *probe[int64, string]) error { return c.ClearTags(r.ctx, tenant(0)) },
		"by a Write": func(r *rig, c *probe[int64, string]) error {
			return c.Write(r.ctx, []int64{1}, func(context.Context) error { return nil })
		},
		"by its time": func(*rig, *probe[int64, string]) error { time.Sleep(21 * time.Minute); return nil },
		"by another Expire": func(r *rig, c *probe[int64, string]) error {
			time.Sleep(15 * time.Minute)
			_ = c.Expire(r.ctx, 1)
			time.Sleep(6 * time.Minute)
			return nil
		},
		"without StaleIfError": func(*rig, *probe[int64, string]) error { return nil },
		"with the StaleIfError of its TTL": func(r *rig, c *probe[int64, string]) error {
			r.rdb.Del(r.ctx, valueKey(1))
			return errors.Join(c.Set(r.ctx, 1, "v1"), sleep(90*time.Minute), c.Expire(r.ctx, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source, failing := newRows(r, 1), &atomic.Bool{}
				source.slowly(func(context.Context, int64) error {
					if failing.Load() {
						return errors.New("the source is down")
					}
					return nil
				})
				c := open(r, source.tagged(), ttl(time.Hour), func(o *cache.Options) {
					o.StaleIfError, o.Rebuild.ErrorHold = 20*time.Minute, -1
					switch name {
					case "without StaleIfError":
						o.StaleIfError = -1
					case "with the StaleIfError of its TTL":
						o.StaleWhileRevalidate = 3 * time.Hour
					}
				})
				c.gives(r, 1, "v1")
				failing.Store(true)
				if err := c.Expire(r.ctx, 1); err != nil {
					r.Fatal(err)
				}
				if err := end(r, c); err != nil {
					r.Fatal(err)
				}
				got, err := c.Fetch(r.ctx, 1)
				if left := name == ""; left != (err == nil) || left && (got.Value != "v1" || !got.Stale) {
					r.Errorf("it gives %+v, %v", got, err)
				}
			})
		})
	}
}

// A load that began before an Expire must not publish what it brings, nor fill a local tier with it.
func TestALoadUnderWayDoesNotOutliveAnExpire(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		c := open(r, source.source())
		source.slowly(gate.wait)
		first := c.getting(r.ctx, 1)
		gate.arrived(r)
		source.put(1, "v2")
		if err := c.Expire(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		later := c.getting(r.ctx, 1)
		r.eventually("it has joined", func() bool { return c.Stats().Gets == 2 })
		close(gate.open)
		<-first
		if got := <-later; got.value != "v2" {
			r.Errorf("who asked after Expire got %v", got)
		}
		c.gives(r, 1, "v2")
	})
}

// An Expire that Redis does not confirm is an error, holds for this process all the same, and is
// made up for by an invalidation.
func TestAnExpireThatIsNotConfirmedBecomesAnInvalidation(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		source.put(1, "v2")
		m.SetError("LOADING")
		if err := c.Expire(r.ctx, 1); !errors.Is(err, cache.ErrNotInvalidated) {
			r.Errorf("got %v", err)
		}
		c.gives(r, 1, "v2")
		m.SetError("")
		r.eventually("it is confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
		if n := r.rdb.Exists(r.ctx, valueKey(1)).Val(); n != 0 {
			r.Error("the old value is still there")
		}
		c.gives(r, 1, "v2")
	})
}

// An Invalidate that Redis has not confirmed is still to be done after an Expire of the key that it has:
// the Expire leaves the value, as a fallback, which the Invalidate has ended.
func TestAnExpireDoesNotConfirmAnInvalidation(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		source.slowly(func(context.Context, int64) error { return errBroken })
		m.SetError("LOADING")
		if err := c.Invalidate(r.ctx, 1); !errors.Is(err, cache.ErrNotInvalidated) {
			r.Errorf("got %v", err)
		}
		m.SetError("")
		r.do(c.Expire(r.ctx, 1))
		if got, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("it gives %q, %v", got, err)
		}
		r.eventually("it is confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
		if got, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("and then %q, %v", got, err)
		}
	})
}

// What an Expire left behind is served by nobody whose load succeeds. Catches an audit that compares it
// with the source, and accuses the writer who has expired it of having forgotten that.
func TestAnAuditPassesOverExpiredValues(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		if look, err := c.Inside().Audit.(inside.Audit[int64, string]).Look(r.ctx, 1); err != nil || !look.There {
			r.Errorf("%+v, %v", look, err)
		}
		source.put(1, "v2")
		if err := c.Expire(r.ctx, 1); err != nil {
			r.Fatal(err)
		}
		if look, err := c.Inside().Audit.(inside.Audit[int64, string]).Look(r.ctx, 1); err != nil || look.There {
			r.Errorf("of an expired value: %+v, %v", look, err)
		}
	})
}

// A server without memory cannot take the mark, so it drops the value. Catches an Expire that leaves
// the value as it was, and says nothing.
func TestAnExpireOnAFullServerDropsTheValue(t *testing.T) {
	t.Parallel()
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true})
	source := newRows(r, 1)
	c := open(r, source.source())
	c.gives(r, 1, "v1")
	source.put(1, "v2")
	r.do(r.rdb.ConfigSet(r.ctx, "maxmemory", "1").Err())
	r.do(c.Expire(r.ctx, 1))
	if n := r.rdb.Exists(r.ctx, valueKey(1)).Val(); n != 0 {
		r.Error("the value is still there")
	}
	c.gives(r, 1, "v2")
	r.do(r.rdb.ConfigSet(r.ctx, "maxmemory", "0").Err())
}

func sleep(d time.Duration) error { time.Sleep(d); return nil }

// What has no use as an old value is dropped: nulls, and what has not the header that has room for the
// mark, such as the values of other versions. Catches a mark in bytes that mean something else.
func TestAnExpireDropsWhatItCannotMark(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "real"}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.source())
		c.gives(r, 1, "v1")
		for range 3 { // the second miss puts a null into Redis
			c.gives404(r, 2)
		}
		value := r.rdb.Get(r.ctx, valueKey(1)).Val()
		r.rdb.Set(r.ctx, valueKey(3), value[:2]+"\x02"+value[3:], time.Hour)
		r.rdb.Set(r.ctx, valueKey(4), "something else", time.Hour)
		if n := r.rdb.Exists(r.ctx, valueKey(1), valueKey(2), valueKey(3), valueKey(4)).Val(); n != 4 {
			r.Fatalf("%d of 4 are there", n)
		}
		r.do(c.Expire(r.ctx, 1, 2, 3, 4))
		if n := r.rdb.Exists(r.ctx, valueKey(2), valueKey(3), valueKey(4)).Val(); n != 0 {
			r.Errorf("%d are left", n)
		}
		if got := r.rdb.Get(r.ctx, valueKey(1)).Val(); got != value[:7]+"\x01"+value[8:] {
			r.Errorf("the value is %q", got)
		}
	})
}

// A hard value is no fallback, nor is any in a process without StaleIfError, whatever that of the
// process says which has expired it.
func TestWhatIsNoFallbackIsNoneThoughItIsExpired(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		var failing atomic.Bool
		src := cache.Source[int64, string]{LoadEntry: func(_ context.Context, key int64, e *cache.Entry[string]) (string, error) {
			if failing.Load() {
				return "", errBroken
			}
			e.Hard = key == 1
			return "v1", nil
		}}
		c, without := open(r, src), open(r, src, func(o *cache.Options) { o.StaleIfError = -1 })
		c.gives(r, 1, "v1")
		c.gives(r, 2, "v1")
		failing.Store(true)
		r.do(c.Expire(r.ctx, 1, 2))
		if got, err := c.Get(r.ctx, 1); !errors.Is(err, errBroken) {
			r.Errorf("hard: %v, %v", got, err)
		}
		if got, err := without.Get(r.ctx, 2); !errors.Is(err, errBroken) {
			r.Errorf("without StaleIfError: %v, %v", got, err)
		}
		c.gives(r, 2, "v1")
	})
}
