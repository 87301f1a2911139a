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

// A replica is away, and the master does all that Writes of several caches ask for. Their values are stored
// and stay, and are dropped once more when something may have been a failover, and when a replica is there.
//
// Catches keys that stay closed for the rest of Options.Rebuild.Hold, and drops that are repeated every second
// for as long as the replica is away: of the keys, of the tag or, of more than 10,000 keys, of the whole cache.
func TestWhileAReplicaIsMissingAWriteOfSeveralCachesIsNotRepeated(t *testing.T) {
	t.Parallel()
	type rowCache = *probe[int64, string]
	for name, changes := range map[string]func(rows rowCache) cache.Changes{
		"a key":     func(rows rowCache) cache.Changes { return rows.Changes(1) },
		"a tag":     func(rows rowCache) cache.Changes { return rows.Tagged("of 1") },
		"many keys": func(rows rowCache) cache.Changes { return rows.Changes(span(1, 10_002)...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			r := onServer(t, server, cell{redis: "real"})
			source := newRows(r, 1)
			tagged := source.source()
			tagged.Tags = func(int64, string) []string { return []string{"of 1"} }
			waits := func(name string) func(*cache.Options) {
				return func(o *cache.Options) { o.Name, o.RedisTimeout, o.Rebuild.WaitReplicas = name, 2*time.Second, 1 }
			}
			rows, pages := open(r, tagged, waits("rows")), open(r, source.source(), waits("pages"))
			read := func() bool {
				row, _ := rows.Fetch(r.ctx, 1)
				page, _ := pages.Fetch(r.ctx, 1)
				return row.Tier == cache.TierRedis && page.Tier == cache.TierRedis
			}
			write := func(changes cache.Changes) error {
				return cache.Write(r.ctx, func(context.Context) error { return nil }, changes, pages.Changes(1))
			}
			looks := func(more int64) func() bool {
				before := server.Calls("wait")
				return func() bool { return server.Calls("wait") >= before+more }
			}
			loads := 0
			stay := func(when string) {
				r.Helper()
				r.eventually("the values are stored "+when, read)
				loads = source.all()
				r.eventually("they look for the replica "+when, looks(4))
				if !read() || source.all() > loads {
					r.Errorf("%d loads more %s", source.all()-loads, when)
				}
			}
			for _, changes := range []cache.Changes{rows.Changes(1), changes(rows)} { // until the first is done, each round trip waits
				if err := write(changes); !errors.Is(err, cache.ErrNotInvalidated) {
					r.Fatalf("Write: %v", err)
				}
				stay("while the replica is away")
			}
			server.Stop()
			time.Sleep(5 * time.Second) // longer than RedisTimeout
			server.Cont()
			r.eventually("all is dropped once more after an outage", func() bool { return read() && source.all() >= loads+2 })
			r.eventually("all is dropped twice", looks(6))
			stay("after an outage")

			redistest.Start(t, "--replicaof", strings.Replace(server.Addr(), ":", " ", 1))
			r.eventually("all is dropped once more with the replica", func() bool { return read() && source.all() >= loads+2 })
			r.eventually("a Write is confirmed", func() bool { return write(rows.Changes(1)) == nil })
		})
	}
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
		r := newRig(t, cell{redis: "mini"}, func() redis.UniversalClient { return ofPages.Client(t) })
		p := &pagesAndRows{rig: r, source: newRows(r, 0, 1, 2, 3)}
		cutOff := ofRows.Client(t)
		cutOff.AddHook(unanswered{&p.cut})
		p.rows, p.pages = p.process(cutOff)
		_, p.other = p.process(ofRows.Client(t))
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
