package cache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// A page is stored for its TTL, and so must not be made of what the memory of its process has not heard the
// end of yet: no message arrives here between the end of the write and that of the load.
func TestAPageIsMadeOfRowsThatNoWriteHasEnded(t *testing.T) {
	t.Parallel()
	type rowCache = *probe[int64, string]
	ways := map[string]func(ctx context.Context, rows rowCache) (string, error){
		"Get": func(ctx context.Context, rows rowCache) (string, error) { return rows.Get(ctx, 7) },
		"Fetch": func(ctx context.Context, rows rowCache) (string, error) {
			got, err := rows.Fetch(ctx, 7)
			return got.Value, err
		},
		"GetMany": func(ctx context.Context, rows rowCache) (string, error) {
			got, err := rows.GetMany(ctx, []int64{7})
			return got[7], err
		},
		"FetchMany": func(ctx context.Context, rows rowCache) (string, error) {
			got, err := rows.FetchMany(ctx, []int64{7})
			return got[7].Value, err
		},
		"With": func(ctx context.Context, rows rowCache) (string, error) {
			return rows.With(cache.Reads{MaxAge: time.Hour}).Get(ctx, 7)
		},
		"With, no load": func(ctx context.Context, rows rowCache) (string, error) {
			got, err := rows.With(cache.Reads{NoLoad: true}).GetMany(ctx, []int64{7})
			if _, ok := got[7]; !ok {
				return rows.Get(ctx, 7)
			}
			return got[7], err
		},
		"a context of its own": func(ctx context.Context, rows rowCache) (string, error) {
			ctx, cancel := context.WithTimeout(context.WithValue(ctx, pageKey{}, 1), time.Minute)
			defer cancel()
			return rows.Get(ctx, 7)
		},
		"another goroutine": func(ctx context.Context, rows rowCache) (value string, err error) {
			done := make(chan struct{})
			go func() { defer close(done); value, err = rows.Get(ctx, 7) }()
			<-done
			return value, err
		},
	}
	ends := map[string]func(r *rig, rows, pages rowCache, commit func(context.Context) error) error{
		"Write": func(r *rig, rows, pages rowCache, commit func(context.Context) error) error {
			return cache.Write(r.ctx, commit, rows.Changes(7), pages.Changes(7))
		},
		"Clear": func(r *rig, rows, pages rowCache, commit func(context.Context) error) error {
			return errors.Join(commit(r.ctx), rows.Clear(r.ctx), pages.Invalidate(r.ctx, 7))
		},
		"tags": func(r *rig, rows, pages rowCache, commit func(context.Context) error) error {
			return cache.Write(r.ctx, commit, rows.Tagged("a"), pages.Changes(7))
		},
	}
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	for wayName, way := range ways {
		for endName, end := range ends {
			t.Run(wayName+", "+endName, func(t *testing.T) {
				r := onServer(t, server, cell{redis: "real", local: true})
				proxy.DropMessages(false)
				near, far := r.client(), proxy.Client(t)
				source := newRows(r, 7)
				tagged := source.source()
				tagged.Tags = func(int64, string) []string { return []string{"a"} }
				named := func(name string) func(*cache.Options) { return func(o *cache.Options) { o.Name = name } }
				farRows := openOn(r, far, tagged, named("row"))
				page := cache.Source[int64, string]{Load: func(ctx context.Context, _ int64) (string, error) { return way(ctx, farRows) }}
				nearRows, nearPages := openOn(r, near, tagged, named("row")), openOn(r, near, page, named("page"))
				farPages := openOn(r, far, page, named("page"))
				farRows.comesFrom(r, 7, cache.TierLocal)
				proxy.DropMessages(true)
				r.do(end(r, nearRows, nearPages, func(context.Context) error { source.put(7, "v2"); return nil }))
				farPages.gives(r, 7, "v2")
				nearPages.gives(r, 7, "v2") // stored for all
			})
		}
	}
}

type pageKey struct{}

// What answers in place of an error may be old. Such a part is better than none, and a page of it must not
// live for the TTL of pages.
func TestAPageThatIsMadeOfAFallbackIsNotStored(t *testing.T) {
	t.Parallel()
	for name, compose := range map[string]func(r *rig, rows *probe[int64, string]) func(context.Context) (string, error){
		"a cache": func(r *rig, rows *probe[int64, string]) func(context.Context) (string, error) {
			pages := open(r, cache.Source[int64, string]{Load: rows.Get}, func(o *cache.Options) { o.Name = "page"; hard(o) })
			return func(ctx context.Context) (string, error) { return pages.Get(ctx, 7) }
		},
		"many": func(r *rig, rows *probe[int64, string]) func(context.Context) (string, error) {
			pages := open(r, cache.Source[int64, string]{LoadMany: rows.GetMany}, func(o *cache.Options) { o.Name = "page"; hard(o) })
			return func(ctx context.Context) (string, error) {
				got, err := pages.GetMany(ctx, []int64{7})
				return got[7], err
			}
		},
		"within another": func(r *rig, rows *probe[int64, string]) func(context.Context) (string, error) {
			parts := open(r, cache.Source[int64, string]{Load: rows.Get}, func(o *cache.Options) { o.Name = "part"; hard(o) })
			pages := open(r, cache.Source[int64, string]{Load: parts.Get}, func(o *cache.Options) { o.Name = "page"; hard(o) })
			return func(ctx context.Context) (string, error) { return pages.Get(ctx, 7) }
		},
		"bytes": func(r *rig, rows *probe[int64, string]) func(context.Context) (string, error) {
			pages := redistest.Must(mutexrebuild.New(r.client(), mutexrebuild.Keyspace{Name: "page"}, mutexrebuild.Options{}))
			r.Cleanup(pages.Close)
			return func(ctx context.Context) (string, error) {
				data, err := pages.Rebuild(ctx, "7", func(ctx context.Context) ([]byte, time.Duration, error) {
					value, err := rows.Get(ctx, 7)
					return []byte(value), time.Hour, err
				})
				return string(data), err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := onServer(t, redistest.Start(t), cell{redis: "real"})
			source := newRows(r, 7)
			rows := open(r, source.source(), func(o *cache.Options) { o.Rebuild.ErrorHold = -1 })
			pages := compose(r, rows)
			rows.gives(r, 7, "v1")
			r.do(rows.Expire(r.ctx, 7))
			var down atomic.Bool
			down.Store(true)
			source.slow = func(context.Context, int64) error {
				if down.Load() {
					return errors.New("the source is down")
				}
				return nil
			}
			if got, err := pages(r.ctx); got != "v1" || err != nil {
				t.Fatalf("beside a source that is down the page is %q, %v", got, err)
			}
			if n := r.rdb.Exists(r.ctx, valueKeyOf("page", 7), valueKeyOf("part", 7)).Val(); n != 0 {
				t.Errorf("%d values that are made of it are stored", n)
			}
			source.put(7, "v2")
			down.Store(false)
			r.eventually("the page is new", func() bool {
				got, err := pages(r.ctx)
				return got == "v2" && err == nil
			})
		})
	}
}
