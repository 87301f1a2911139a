package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

var errDown = errors.New("the source is down")

// A fragile source answers until it is down.
func fragile(r *rig, keys ...int64) (source *rows, down *atomic.Bool) {
	source, down = newRows(r, keys...), &atomic.Bool{}
	source.slowly(func(context.Context, int64) error {
		if down.Load() {
			return errDown
		}
		return nil
	})
	return source, down
}

// fallsBack reports whether a read of key brings the old value, marked.
func (p *probe[K, V]) fallsBack(r *rig, key K, old any) bool {
	got, err := p.Fetch(r.ctx, key)
	return err == nil && any(got.Value) == old && got.Stale
}

// retrying has a failed load answer for nobody else, and the breaker aside.
func retrying(o *cache.Options) { o.Rebuild.ErrorHold = -1 }

// failedWrites are the ways in which a Write of key 1 may fail, or be part of one that does.
var failedWrites = map[string]func(ctx context.Context, c *probe[int64, string]) error{
	"its tx fails": func(ctx context.Context, c *probe[int64, string]) error {
		return c.Write(ctx, []int64{1}, func(context.Context) error { return errDown })
	},
	"its tx panics": func(ctx context.Context, c *probe[int64, string]) (err error) {
		defer func() { err = fmt.Errorf("%v", recover()) }()
		return c.Write(ctx, []int64{1}, func(context.Context) error { panic("down") })
	},
	"the key is found in tx": func(ctx context.Context, c *probe[int64, string]) error {
		return cache.Write(ctx, func(ctx context.Context) error {
			return errors.Join(cache.Also(ctx, c.Changes(1)), errDown)
		})
	},
	"a nested one fails, and so the outer one": func(ctx context.Context, c *probe[int64, string]) error {
		return c.Write(ctx, []int64{2}, func(ctx context.Context) error {
			return c.Write(ctx, []int64{1}, func(context.Context) error { return errDown })
		})
	},
	"a nested one succeeds, and the outer one fails": func(ctx context.Context, c *probe[int64, string]) error {
		return c.Write(ctx, []int64{2}, func(ctx context.Context) error {
			return errors.Join(c.Write(ctx, []int64{1}, func(context.Context) error { return nil }), errDown)
		})
	},
	"of a tag": func(ctx context.Context, c *probe[int64, string]) error {
		return cache.Write(ctx, func(context.Context) error { return errDown }, c.Tagged(tenant(0)))
	},
	"of keys and tags": func(ctx context.Context, c *probe[int64, string]) error {
		return cache.Write(ctx, func(context.Context) error { return errDown }, c.Changes(1), c.Tagged(tenant(0)))
	},
}

// The database is down, and users press Save: readers go on to get the old value, marked, in every process,
// also while a transaction is under way. When the database is back they get what it has, since a
// transaction that reports failure may have committed.
//
// Catches a Write that drops what it holds before tx, or after a tx that failed, and one after which the
// old value is served though the database answers.
func TestAFailedWriteLeavesTheOldValueForErrors(t *testing.T) {
	for name, write := range failedWrites {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}}, func(r *rig) {
				source, down := fragile(r, 1, 2)
				c, other := open(r, source.tagged(), retrying), open(r, source.tagged(), retrying)
				for _, p := range []*probe[int64, string]{c, other} {
					p.gives(r, 1, "v1")
				}
				down.Store(true)
				for range 3 {
					if err := write(r.ctx, c); err == nil {
						r.Fatal("the Write succeeds")
					}
					for range 2 {
						if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
							r.Fatalf("after a failed Write: %+v, %v", got, err)
						}
					}
					if got, err := c.FetchMany(r.ctx, []int64{1}); err != nil || got[1].Value != "v1" || !got[1].Stale {
						r.Errorf("after a failed Write: %+v, %v", got, err)
					}
					r.eventually("the other process has the old value, marked", func() bool { return other.fallsBack(r, 1, "v1") })
				}
				source.put(1, "v2")
				down.Store(false)
				for _, p := range []*probe[int64, string]{c, other} {
					if got, err := p.Fetch(r.ctx, 1); err != nil || got.Value != "v2" || got.Stale {
						r.Errorf("with the source back: %+v, %v", got, err)
					}
				}
				other.gives(r, 1, "v2")
			})
		})
	}
}

// While tx waits for a database that hangs, readers whose loads fail have the old value, marked.
func TestTheOldValueAnswersForErrorsBesideAWriter(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}}, func(r *rig) {
		source, down := fragile(r, 1)
		c, other := open(r, source.source(), retrying), open(r, source.source(), retrying)
		other.gives(r, 1, "v1")
		c.gives(r, 1, "v1")
		down.Store(true)
		_ = c.Write(r.ctx, []int64{1}, func(context.Context) error {
			if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
				r.Errorf("beside the writer: %+v, %v", got, err)
			}
			r.eventually("the other process has the old value, marked", func() bool { return other.fallsBack(r, 1, "v1") })
			return errDown
		})
	})
}

// A Write that has succeeded leaves nothing of what was there before: neither to the readers of its keys nor
// to those of its tags, in no process.
func TestAWriteThatSucceedsLeavesNothingForErrors(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, c *probe[int64, string]) error{
		"of a key": func(ctx context.Context, c *probe[int64, string]) error {
			return c.Write(ctx, []int64{1}, func(context.Context) error { return nil })
		},
		"of a key found in tx": func(ctx context.Context, c *probe[int64, string]) error {
			return cache.Write(ctx, func(ctx context.Context) error { return cache.Also(ctx, c.Changes(1)) })
		},
		"of a tag": func(ctx context.Context, c *probe[int64, string]) error {
			return cache.Write(ctx, func(context.Context) error { return nil }, c.Tagged(tenant(0)))
		},
		"after a nested one that failed": func(ctx context.Context, c *probe[int64, string]) error {
			return c.Write(ctx, []int64{2}, func(ctx context.Context) error {
				_ = c.Write(ctx, []int64{1}, func(context.Context) error { return errDown })
				return nil
			})
		},
		"after one that failed": func(ctx context.Context, c *probe[int64, string]) error {
			_ = c.Write(ctx, []int64{1}, func(context.Context) error { return errDown })
			return c.Write(ctx, []int64{1}, func(context.Context) error { return nil })
		},
		"of a tag, after one that failed": func(ctx context.Context, c *probe[int64, string]) error {
			_ = cache.Write(ctx, func(context.Context) error { return errDown }, c.Tagged(tenant(0)))
			return cache.Write(ctx, func(context.Context) error { return nil }, c.Tagged(tenant(0)))
		},
		"of a tag, before one that fails": func(ctx context.Context, c *probe[int64, string]) error {
			err := cache.Write(ctx, func(context.Context) error { return nil }, c.Tagged(tenant(0)))
			_ = cache.Write(ctx, func(context.Context) error { return errDown }, c.Tagged(tenant(0)))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real", local: true}}, func(r *rig) {
				source, down := fragile(r, 1, 2)
				c, other := open(r, source.tagged(), retrying), open(r, source.tagged(), retrying)
				other.gives(r, 1, "v1")
				c.gives(r, 1, "v1")
				if err := write(r.ctx, c); err != nil {
					r.Fatal(err)
				}
				down.Store(true)
				if got, err := c.Fetch(r.ctx, 1); !errors.Is(err, errDown) {
					r.Errorf("after the Write: %+v, %v", got, err)
				}
				r.eventually("the other process has nothing either", func() bool {
					_, err := other.Fetch(r.ctx, 1)
					return errors.Is(err, errDown)
				})
			})
		})
	}
}

// A writer dies in tx, whether the database has committed or not: once its hold has ended, readers get
// what the database has. If that is down they get the old value, marked, and none without StaleIfError.
func TestAWriterThatDiesLeavesAtMostAFallback(t *testing.T) {
	for _, staleIfError := range []time.Duration{0, cache.Off} {
		t.Run(fmt.Sprint("StaleIfError ", staleIfError), func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source, down := fragile(r, 1)
				c := open(r, source.source(), retrying, func(o *cache.Options) { o.StaleIfError = staleIfError })
				c.gives(r, 1, "v1")
				end := make(chan struct{})
				done := make(chan struct{})
				writer := open(r, source.source(), func(o *cache.Options) { o.StaleIfError = staleIfError })
				go func() { // in place of a process that dies: its hold ends before it does
					defer close(done)
					_ = writer.Write(r.ctx, []int64{1}, func(context.Context) error {
						source.put(1, "v2")
						<-end
						return errDown
					})
				}()
				time.Sleep(31 * time.Second)
				down.Store(true)
				if staleIfError == 0 {
					if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
						r.Errorf("with the source down: %+v, %v", got, err)
					}
				} else if got, err := c.Fetch(r.ctx, 1); !errors.Is(err, errDown) {
					r.Errorf("without StaleIfError, with the source down: %+v, %v", got, err)
				}
				down.Store(false)
				if got, err := c.Fetch(r.ctx, 1); err != nil || got.Value != "v2" || got.Stale {
					r.Errorf("with the source back: %+v, %v", got, err)
				}
				close(end)
				<-done
			})
		})
	}
}
