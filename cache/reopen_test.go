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
// Catches a Write that opens the page though the row is not dropped, one that leaves the page to its TTL, and
// one whose drops end with the cache that it names first.
func TestAPageEndsWithARowWhoseDropIsLate(t *testing.T) {
	for _, how := range []string{"committed", "failed, and committed", "committed, and a cache closes"} {
		t.Run(how, func(t *testing.T) {
			inPagesAndRows(t, func(p *pagesAndRows) {
				failed := errors.New("the connection broke at the commit")
				for key := range int64(4) {
					p.other.gives(p.rig, key, "v1")
					p.cut.Store(true)
					listed := p.open(p.client(), p.source.source(), "lists")
					err := cache.Write(p.ctx, func(context.Context) error {
						p.source.put(key, "v2")
						if strings.HasPrefix(how, "failed") {
							return failed
						}
						return nil
					}, listed.Changes(key), p.rows.Changes(key), p.pages.Changes(key))
					if fails := strings.HasPrefix(how, "failed"); fails != errors.Is(err, failed) || fails == errors.Is(err, cache.ErrNotInvalidated) {
						t.Errorf("Write: %v", err)
					}
					if strings.HasSuffix(how, "closes") {
						_ = listed.Close()
					}
					time.Sleep(35 * time.Second)
					p.cut.Store(false)
					for range 50 { // while the rows and the pages are dropped
						_, _ = p.other.Get(p.ctx, key)
						time.Sleep(20 * time.Millisecond)
					}
					time.Sleep(5 * time.Second)
					p.other.gives(p.rig, key, "v2")
					p.pages.gives(p.rig, key, "v2")
					_ = listed.Close()
				}
			})
		})
	}
}

// A process ends before it has repeated the drops of a Write. Catches caches that close without a last try, of
// which the one with the page never drops it: Redis had answered it when the Write ended.
func TestAPageIsDroppedOnceMoreWhenTheCachesClose(t *testing.T) {
	for _, first := range []string{"rows", "pages"} {
		t.Run(first+" first", func(t *testing.T) { closesAndDrops(t, first == "rows") })
	}
}

func closesAndDrops(t *testing.T, rowsFirst bool) {
	inPagesAndRows(t, func(p *pagesAndRows) {
		p.other.gives(p.rig, 1, "v1")
		p.cut.Store(true)
		err := cache.Write(p.ctx, func(context.Context) error { p.source.put(1, "v2"); return nil }, p.rows.Changes(1), p.pages.Changes(1))
		if !errors.Is(err, cache.ErrNotInvalidated) {
			t.Errorf("Write: %v", err)
		}
		time.Sleep(35 * time.Second)
		p.other.gives(p.rig, 1, "v1") // the holds are over: a page of the old row
		p.cut.Store(false)
		if rowsFirst {
			_ = p.rows.Close()
		}
		_, _ = p.pages.Close(), p.rows.Close()
		p.other.gives(p.rig, 1, "v2")
	})
}

// The rows' cache closes while Redis is away, so that Redis can no longer confirm their drops. Catches a process
// that repeats them, and those of the page, without an end.
func TestTheDropsOfAPageEndWithTheCacheOfItsRows(t *testing.T) {
	inPagesAndRows(t, func(p *pagesAndRows) {
		p.other.gives(p.rig, 1, "v1")
		p.cut.Store(true)
		err := cache.Write(p.ctx, func(context.Context) error { return nil }, p.pages.Changes(1), p.rows.Changes(1))
		if !errors.Is(err, cache.ErrNotInvalidated) {
			t.Errorf("Write: %v", err)
		}
		_ = p.rows.Close()
		time.Sleep(5 * time.Second)
		before := p.rows.Stats().NotInvalidated
		if time.Sleep(time.Minute); p.rows.Stats().NotInvalidated != before {
			t.Error("the drops go on")
		}
	})
}

// After a transaction that failed, its drops are repeated too. They leave the old values for a source that
// cannot load: catches a repeated drop that ends them.
func TestAPageOfAFailedWriteWhoseDropIsLateIsAFallback(t *testing.T) {
	inPagesAndRows(t, func(p *pagesAndRows) {
		p.other.gives(p.rig, 1, "v1")
		p.cut.Store(true)
		down := errors.New("the database is down")
		if err := cache.Write(p.ctx, func(context.Context) error { return down }, p.rows.Changes(1), p.pages.Changes(1)); !errors.Is(err, down) {
			t.Errorf("Write: %v", err)
		}
		p.cut.Store(false)
		time.Sleep(10 * time.Second)
		p.source.slowly(func(context.Context, int64) error { return down })
		if got, err := p.other.Fetch(p.ctx, 1); err != nil || got.Value != "v1" || !got.Stale {
			t.Errorf("a reader gets %+v, %v; want the old page, marked stale", got, err)
		}
	})
}

// pagesAndRows are the caches of two processes, of pages that are made of rows in another Redis.
type pagesAndRows struct {
	*rig
	source      *rows
	pages, rows *probe[int64, string]
	cut         atomic.Bool           // whether the Redis of the rows answers pages and rows
	other       *probe[int64, string] // the pages of the process that it always answers
}

func inPagesAndRows(t *testing.T, test func(p *pagesAndRows)) {
	synctest.Test(t, func(t *testing.T) {
		ofPages, ofRows := redistest.Mini(t), redistest.Mini(t)
		t.Cleanup(synctest.Wait)
		r := newRig(t, cell{redis: "mini"}, func() redis.UniversalClient { return ofPages.Client(t, roomy) })
		p := &pagesAndRows{rig: r, source: newRows(r, 0, 1, 2, 3)}
		cutOff := ofRows.Client(t, roomy)
		cutOff.AddHook(unanswered{&p.cut})
		p.rows, p.pages = p.process(cutOff)
		_, p.other = p.process(ofRows.Client(t, roomy))
		test(p)
	})
}

// process opens caches of rows and of pages.
func (p *pagesAndRows) process(ofRows redis.UniversalClient) (rows, pages *probe[int64, string]) {
	rows = p.open(ofRows, p.source.source(), "rows")
	load := func(ctx context.Context, key int64) (string, error) { return rows.Get(ctx, key) }
	return rows, p.open(p.client(), cache.Source[int64, string]{Load: load}, "pages")
}

func (p *pagesAndRows) open(rdb redis.UniversalClient, src cache.Source[int64, string], name string) *probe[int64, string] {
	return openOn(p.rig, rdb, src, func(o *cache.Options) { o.Name = name })
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
