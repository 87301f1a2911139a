package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A Write of a row and of the page that is made of it ends, and Redis is slow to open the row. Catches
// a page that is opened first, and made of the old row, which a local tier keeps beside the writer:
// this page was published, and stayed for its TTL.
func TestAPageIsNotMadeOfTheRowFromBeforeAWriteOfBoth(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}}, func(r *rig) {
		name := func(name string) func(*cache.Options) {
			return func(o *cache.Options) { o.Name, o.RedisTimeout = name, 10*time.Second }
		}
		source, rdb := newRows(r, 7), r.client()
		var away distant
		rdb.AddHook(away.hook())
		changed, rows := openOn(r, rdb, source.source(), name("row")), open(r, source.source(), name("row"))
		pages := open(r, cache.Source[int64, string]{Load: rows.Get}, name("page"))
		r.known(7)
		var reading sync.WaitGroup
		err := cache.Write(r.ctx, func(context.Context) error {
			rows.gives(r, 7, "v1")
			source.put(7, "v2")
			away.Store(true)
			for range 5 {
				reading.Go(func() {
					for range 20 {
						time.Sleep(time.Millisecond)
						if _, err := pages.Get(r.ctx, 7); err != nil {
							r.Error(err)
						}
					}
				})
			}
			return nil
		}, changed.Changes(7), pages.Changes(7))
		if err != nil {
			r.Error(err)
		}
		pages.gives(r, 7, "v2")
		reading.Wait()
		away.Store(false)
		time.Sleep(time.Second) // a heartbeat on its way comes back before the bubble ends
		pages.gives(r, 7, "v2")
	})
}

// The loader of a page reads rows of another cache. A transaction changes a row, and its end clears or
// invalidates both. The end for the rows takes longer than that for the pages, and a reader gets a
// page meanwhile: a page of the old row must not stay.
//
// Catches a page that is opened or cleared while the old row is still served.
func TestAWriteOfTagsEndsWhatIsMadeOfTheOldValuesMeanwhile(t *testing.T) {
	for name, of := range map[string]struct{ page, row bool }{ // whether it is named by its tag
		"the tag of the rows":  {row: true},
		"the tag of the pages": {page: true},
		"both by tags":         {page: true, row: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source := newRows(r, 1)
				var slow atomic.Bool
				process := func(hook redis.Hook) (pages, rows *probe[int64, string]) {
					rdb := r.client()
					if hook != nil {
						rdb.AddHook(hook)
					}
					rows = openOn(r, rdb, source.tagged(), func(o *cache.Options) { o.Name = "rows" })
					src := source.tagged()
					src.Load = func(ctx context.Context, key int64) (string, error) { return rows.Get(ctx, key) }
					return openOn(r, r.client(), src, func(o *cache.Options) { o.Name = "pages" }), rows
				}
				pages, _ := process(nil)
				ends := func(cmd redis.Cmder) {
					if args := cmd.Args(); slow.Load() && strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(fmt.Sprint(args[3]), "{rows") {
						time.Sleep(50 * time.Millisecond)
						_, _ = pages.Get(r.ctx, 1)
					}
				}
				writtenPages, writtenRows := process(redistest.EachCommand(ends))
				pages.gives(r, 1, "v1")
				changes := []cache.Changes{writtenPages.Changes(1), writtenRows.Changes(1)}
				if of.page {
					changes[0] = writtenPages.Tagged(tenant(0))
				}
				if of.row {
					changes[1] = writtenRows.Tagged(tenant(0))
				}
				err := cache.Write(r.ctx, func(context.Context) error {
					source.put(1, "v2")
					slow.Store(true)
					return nil
				}, changes...)
				slow.Store(false)
				if err != nil {
					r.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				pages.gives(r, 1, "v2")
				open(r, cache.Source[int64, string]{Load: source.load}, func(o *cache.Options) { o.Name = "pages" }).gives(r, 1, "v2")
			})
		})
	}
}

// The replica that the rows are read from lags behind a Write of a row and its page, or behind a clear of
// the rows. Catches a page of the old row that stays for its TTL.
func TestAPageOfARowFromALaggingReplicaDoesNotStay(t *testing.T) {
	const lag = 2 * time.Second
	type process = *probe[int64, string]
	for name, changed := range map[string]func(r *rig, rows, pages process) error{
		"Write": func(r *rig, rows, pages process) error {
			return cache.Write(r.ctx, func(context.Context) error { return nil }, rows.Changes(7), pages.Changes(7))
		},
		"Clear": func(r *rig, rows, pages process) error {
			return errors.Join(rows.Clear(r.ctx), pages.Invalidate(r.ctx, 7))
		},
		"unread": nil, // as Write, and Redis does not reply when the row is read
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
				source, rdb := newRows(r, 7), r.client()
				var unread atomic.Bool
				rdb.AddHook(silentTo{"getrange", &unread})
				rows := openOn(r, rdb, source.source(), func(o *cache.Options) { o.Name, o.ReplicaLag = "row", lag })
				pages := open(r, cache.Source[int64, string]{Load: rows.Get}, func(o *cache.Options) { o.Name = "page" })
				pages.gives(r, 7, "v1")
				if changed == nil {
					r.do(cache.Write(r.ctx, func(context.Context) error { unread.Store(true); return nil }, rows.Changes(7), pages.Changes(7)))
				} else {
					r.do(changed(r, rows, pages))
				}
				pages.gives(r, 7, "v1") // the replica does not have v2 yet
				unread.Store(false)
				source.put(7, "v2")
				time.Sleep(lag + 10*time.Second) // ErrorHold is over, too
				pages.gives(r, 7, "v2")
			})
		})
	}
}

// silentTo is a hook of a client that gets no reply to a command for as long as on says so.
type silentTo struct {
	command string
	on      *atomic.Bool
}

func (f silentTo) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f silentTo) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.on.Load() && cmd.Name() == f.command {
			cmd.SetErr(errCut)
			return errCut
		}
		return next(ctx, cmd)
	}
}

func (f silentTo) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if f.on.Load() && cmd.Name() == f.command {
				cmd.SetErr(errCut)
				return errCut
			}
		}
		return next(ctx, cmds)
	}
}
