package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// The rows of a page are in a Redis that does not answer the writer of both, and answers another process.
// That makes a page of the old row, after the hold of the page has ended: it must end with the row.
//
// Catches a Write that opens the page though the row is not dropped, and one that leaves the page to its TTL.
func TestAPageEndsWithARowWhoseDropIsLate(t *testing.T) {
	for name, fails := range map[string]bool{"committed": false, "failed, and committed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ofPages, ofRows := redistest.Mini(t), redistest.Mini(t)
				t.Cleanup(synctest.Wait)
				r := newRig(t, cell{redis: "mini"}, func() redis.UniversalClient { return ofPages.Client(t, roomy) })
				source := newRows(r, 0, 1, 2, 3)
				var cut atomic.Bool
				process := func(hook redis.Hook) (pages, rows *probe[int64, string]) {
					rdb := ofRows.Client(t, roomy)
					if hook != nil {
						rdb.AddHook(hook)
					}
					rows = openOn(r, rdb, source.source(), func(o *cache.Options) { o.Name = "rows" })
					load := func(ctx context.Context, key int64) (string, error) { return rows.Get(ctx, key) }
					return openOn(r, r.client(), cache.Source[int64, string]{Load: load}, func(o *cache.Options) { o.Name = "pages" }), rows
				}
				writersPages, writersRows := process(unanswered{&cut})
				other, _ := process(nil)
				failed := errors.New("the connection broke at the commit")
				for key := range int64(4) {
					other.gives(r, key, "v1")
					cut.Store(true)
					err := cache.Write(r.ctx, func(context.Context) error {
						source.put(key, "v2")
						if fails {
							return failed
						}
						return nil
					}, writersRows.Changes(key), writersPages.Changes(key))
					if fails != errors.Is(err, failed) || fails == errors.Is(err, cache.ErrNotInvalidated) {
						t.Errorf("Write: %v", err)
					}
					time.Sleep(35 * time.Second)
					cut.Store(false)
					for range 50 { // while the rows and the pages are dropped
						_, _ = other.Get(r.ctx, key)
						time.Sleep(20 * time.Millisecond)
					}
					time.Sleep(5 * time.Second)
					other.gives(r, key, "v2")
					writersPages.gives(r, key, "v2")
				}
			})
		})
	}
}

// unanswered is a hook of a client that gets no answer while it is cut off, and else a late one.
type unanswered struct{ cut *atomic.Bool }

var errCut = errors.New("i/o timeout")

func (u unanswered) DialHook(next redis.DialHook) redis.DialHook { return next }

func (u unanswered) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if u.cut.Load() {
			cmd.SetErr(errCut)
			return errCut
		}
		if strings.HasPrefix(cmd.Name(), "eval") { // on a new connection go-redis holds a mutex, and a bubble's time would stand still
			time.Sleep(rand.N(100 * time.Millisecond))
		}
		return next(ctx, cmd)
	}
}

func (u unanswered) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if u.cut.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(errCut)
			}
			return errCut
		}
		if strings.HasPrefix(cmds[0].Name(), "eval") {
			time.Sleep(rand.N(100 * time.Millisecond))
		}
		return next(ctx, cmds)
	}
}
