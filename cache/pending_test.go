package cache_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// An awayRig has two processes whose Redis goes away with all that it holds, and comes back with it.
type awayRig struct {
	*rig
	mini   *redistest.MiniServer
	source *rows
	down   atomic.Bool // the source
	writer *probe[int64, string]
	other  *probe[int64, string]
	keys   []int64
	clears atomic.Int32
	singly atomic.Int32 // invalidations of one key
}

// withRedisAway has both processes read rows, and calls test while Redis is away.
func withRedisAway(t *testing.T, test func(r *awayRig)) {
	for _, c := range []cell{{redis: "mini"}, {redis: "mini", local: true}} {
		t.Run(c.String(), func(t *testing.T) {
			inBubble(t, c, func(r *rig, m *redistest.MiniServer) {
				away := &awayRig{rig: r, mini: m}
				for key := range int64(201) {
					away.keys = append(away.keys, 50*key)
				}
				away.source = newRows(r, away.keys...)
				away.source.slowly(func(context.Context, int64) error {
					if away.down.Load() {
						return errors.New("the source is down")
					}
					return nil
				})
				away.writer, away.other = open(r, away.source.source()), open(r, away.source.source())
				away.read("v1")
				m.SetError("LOADING Redis is loading the dataset in memory")
				r.eventually("the writer notices", func() bool {
					_, _ = away.writer.Get(r.ctx, -1)
					return away.writer.Stats().Rebuild.Outage
				})
				test(away)
			})
		})
	}
}

// read has both processes read all rows, which must be want.
func (r *awayRig) read(want string) {
	r.Helper()
	for _, c := range []*probe[int64, string]{r.writer, r.other} {
		old := 0
		for keys := range slices.Chunk(r.keys, 500) {
			got, err := c.GetMany(r.ctx, keys)
			if err != nil {
				r.Fatal(err)
			}
			for _, value := range got {
				if value != want {
					old++
				}
			}
		}
		if old > 0 {
			r.Errorf("%d of %d rows are not %s", old, len(r.keys), want)
		}
	}
}

// wrote writes a row, which is v2 from then on.
func (r *awayRig) wrote(key int64) {
	r.Helper()
	err := r.writer.Write(r.ctx, []int64{key}, func(context.Context) error { r.source.put(key, "v2"); return nil })
	if !errors.Is(err, cache.ErrNotInvalidated) {
		r.Fatalf("a Write without Redis: %v", err)
	}
}

// back brings Redis back, and waits until nothing is pending.
func (r *awayRig) back() {
	r.Helper()
	r.mini.Before(func(command string, args []string) {
		switch {
		case command == "EVALSHA" && len(args) > 3 && args[3] == "clear":
			r.clears.Add(1)
		case command == "EVALSHA" && len(args) > 1 && args[1] == "3":
			r.singly.Add(1)
		}
	})
	r.eventually("nothing is pending", func() bool { return r.writer.Stats().Rebuild.Unconfirmed == 0 })
	time.Sleep(time.Second) // the other hears of it
	synctest.Wait()
	r.mini.Before(nil)
}

// 200 of 200 rows were old for good: each Write of the one row had a place of its own, so that there was
// none left for them.
func TestManyWritesOfOneRowLeaveRoomForOthers(t *testing.T) {
	withRedisAway(t, func(r *awayRig) {
		for range 11_000 {
			r.wrote(0)
		}
		for _, key := range r.keys[1:] {
			r.source.put(key, "v2")
			if err := r.writer.Invalidate(r.ctx, key); !errors.Is(err, cache.ErrNotInvalidated) {
				r.Fatal(err)
			}
		}
		if n := r.writer.Stats().Rebuild.Unconfirmed; n != 201 {
			r.Errorf("%d are pending, want one for each row", n)
		}
		r.back()
		if n := r.clears.Load(); n != 0 {
			r.Errorf("%d Clears", n)
		}
		r.read("v2")
		if s := r.writer.Stats().Rebuild; s.Dropped != 0 || s.Retried != s.Queued {
			r.Errorf("%+v", s)
		}
	})
}

// More rows than can be remembered one by one: they end by one Clear, which ends fallbacks too. What it
// stands for is not invalidated beside it, since no hold was placed that had to be lifted.
func TestMoreRowsThanThereIsRoomForEndByOneClear(t *testing.T) {
	withRedisAway(t, func(r *awayRig) {
		for key := range int64(11_000) {
			r.wrote(key)
		}
		if n := r.writer.Stats().Rebuild.Unconfirmed; n > 10_000 {
			r.Errorf("%d are pending", n)
		}
		r.back()
		if n, singly := r.clears.Load(), r.singly.Load(); n != 1 || singly > 0 {
			r.Errorf("%d Clears, and %d invalidations beside them", n, singly)
		}
		r.down.Store(true)
		for _, c := range []*probe[int64, string]{r.writer, r.other} {
			if got, err := c.Get(r.ctx, 50); err == nil {
				r.Errorf("without the source there is %q", got)
			}
		}
		r.down.Store(false)
		time.Sleep(time.Minute) // errors are held
		r.read("v2")
		if s := r.writer.Stats().Rebuild; s.Dropped != 0 || s.Retried != s.Queued {
			r.Errorf("%+v", s)
		}
	})
}
