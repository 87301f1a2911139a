//go:build levee_failpoint

package cache_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
)

// stopAt stops the first goroutine that comes to a point, until release.
func stopAt(r *rig, name string) (reached <-chan struct{}, release func()) {
	come, free := make(chan struct{}), make(chan struct{})
	var passed atomic.Bool
	failpoint.Set(func(at string) {
		if at == name && passed.CompareAndSwap(false, true) {
			close(come)
			<-free
		}
	})
	r.Cleanup(func() { failpoint.Set(nil) })
	return come, sync.OnceFunc(func() { close(free) })
}

// What a reader has read may be overtaken before it comes to the local tier. The
// mark, taken before the read, is what keeps it out: taken at the fill instead, v1
// would stay for the local tier's five minutes.
func TestAFillThatAnInvalidationHasOvertakenIsDropped(t *testing.T) {
	for name, test := range map[string]struct {
		cell      cell
		published bool // the reader finds v1 in Redis, rather than load it
		other     bool // another process invalidates, rather than the reader's own
		null      bool // the reader learns that there is no row
	}{
		"found, other process":       {cell: cell{redis: "mini", local: true}, published: true, other: true},
		"found, own process":         {cell: cell{redis: "mini", local: true}, published: true},
		"loaded, other process":      {cell: cell{redis: "mini", local: true}, other: true},
		"loaded, own process":        {cell: cell{redis: "mini", local: true}},
		"null found, other process":  {cell: cell{redis: "mini", local: true}, published: true, other: true, null: true},
		"null loaded, other process": {cell: cell{redis: "mini", local: true}, other: true, null: true},
		"null loaded, own process":   {cell: cell{redis: "mini", local: true}, null: true},
		"without Redis":              {cell: cell{redis: "none", local: true}},
		"null without Redis":         {cell: cell{redis: "none", local: true}, null: true},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(r *rig) {
				source := newRows(r)
				if !test.null {
					source.put(1, "v1")
				}
				reader, writer := open(r, source.source()), (*probe[int64, string])(nil)
				if writer = reader; test.other {
					writer = open(r, source.source())
				}
				if test.published {
					_, _ = open(r, source.source()).Get(r.ctx, 1)
				}
				reached, release := stopAt(r, "fill")
				var wg sync.WaitGroup
				wg.Go(func() { _, _ = reader.Get(r.ctx, 1) })
				<-reached

				before := reader.Stats().LocalTier.Deletes
				source.put(1, "v2")
				if err := writer.Invalidate(r.ctx, 1); err != nil {
					r.Fatal(err)
				}
				r.eventually("the reader has been told", func() bool { return reader.Stats().LocalTier.Deletes > before })
				release()
				wg.Wait()
				for range 20 {
					reader.gives(r, 1, "v2")
					time.Sleep(time.Millisecond) // for what ristretto does later
				}
				if n := reader.Stats().LocalTier.Outdated; n != 1 {
					r.Errorf("%d fills were dropped", n)
				}
			}
			inCells(t, []cell{test.cell}, run)
		})
	}
}

// A Set is overtaken by an Invalidate that has told its caller that it is done.
//
// Catches a Set that puts its value into the local tier whatever has happened since it
// began: without Redis it answered for its whole TTL.
func TestASetThatAnInvalidationHasOvertakenIsDropped(t *testing.T) {
	for _, at := range []struct {
		point string
		cell  cell
	}{
		{"claimed", cell{redis: "mini", local: true}},
		{"claimed", cell{redis: "none", local: true}},
		{"set", cell{redis: "none", local: true}},
	} {
		t.Run(at.point, func(t *testing.T) {
			inCells(t, []cell{at.cell}, func(r *rig) {
				source := newRows(r, 1)
				c := open(r, source.source())
				reached, release := stopAt(r, at.point)
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := c.Set(r.ctx, 1, "v1"); err != nil {
						r.Error(err)
					}
				})
				<-reached
				source.put(1, "v2")
				if err := c.Invalidate(r.ctx, 1); err != nil {
					r.Fatal(err)
				}
				release()
				wg.Wait()
				c.gives(r, 1, "v2")
			})
		})
	}
}

// Readers of a key that a writer holds keep what they load until the message of the write's
// end, which may come before their fill. The mark, taken before the verdict, keeps v1 out
// then; taken at the fill instead, v1 would stay for a second.
func TestAFillDuringAWriteIsDropped(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		reader, writer := open(r, source.source()), open(r, source.source())
		reached, release := stopAt(r, "fill")
		var reading sync.WaitGroup
		err := writer.Write(r.ctx, []int64{1}, func(context.Context) error {
			reading.Go(func() { reader.gives(r, 1, "v1") })
			<-reached
			source.put(1, "v2")
			return nil
		})
		if err != nil {
			r.Error(err)
		}
		time.Sleep(10 * time.Millisecond) // the message has come
		release()
		reading.Wait()
		reader.gives(r, 1, "v2")
		if n := reader.Stats().LocalTier.Outdated; n != 1 {
			r.Errorf("%d fills were dropped", n)
		}
	})
}

// What is invalidated between the load of a batch and its publication is refused and
// loaded again; the other keys of the batch are published.
func TestAnInvalidationBetweenABatchsLoadAndItsCommitIsHonoured(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprint("by another process: ", other), func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "real"}, {redis: "none"}}, func(r *rig) {
				source := newBatches(r, 1, 100)
				reader := open(r, source.source())
				writer := reader
				if other && r.rdb != nil {
					writer = open(r, source.source())
				}
				reached, release := stopAt(r, "commit")
				defer release()
				var wg sync.WaitGroup
				wg.Go(func() {
					got, err := reader.GetMany(r.ctx, upTo(1, 100))
					if err != nil || len(got) != 100 {
						r.Errorf("want 100 values, got %d, %v", len(got), err)
					}
				})
				<-reached
				source.put(7, "v2")
				if err := writer.Invalidate(r.ctx, 7); err != nil {
					r.Fatal(err)
				}
				late := make(chan string, 1)
				go func() {
					got, _ := reader.GetMany(r.ctx, []int64{7}) // joins the flight, after the invalidation
					late <- got[7]
				}()
				r.eventually("it waits", func() bool { return reader.Stats().Gets == 101 })
				time.Sleep(10 * time.Millisecond)
				release()
				if got := <-late; got != "v2" {
					r.Errorf("want v2 after the invalidation, got %q", got)
				}
				wg.Wait()
				for _, c := range []*probe[int64, string]{reader, writer} {
					c.gives(r, 7, "v2")
				}
				if n := reader.Stats().Rebuild.Refused; n != 1 {
					r.Errorf("want one refusal, got %d", n)
				}
				if r.rdb != nil {
					writer.givesMany(r, upTo(8, 100), "v1") // published with their first load
					if byKey, _ := source.loads(); byKey[7] != 2 || byKey[8] != 1 {
						r.Errorf("want only 7 loaded again, got %d and %d loads", byKey[7], byKey[8])
					}
				}
			})
		})
	}
}

// A ClearTags comes between the fill of a load and the end of its flight. The value is in the
// local tier by then, where it does not count, and who joins the flight now asked after the
// clear. Catches a flight whose late callers get what the local tier has, whatever was cleared.
func TestWhoJoinsAfterAClearOfTagsGetsNothingOlder(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		c := open(r, source.tagged())
		reached, release := stopAt(r, "finish")
		defer release()
		first := c.getting(r.ctx, 1)
		<-reached
		source.put(1, "v2")
		if err := c.ClearTags(r.ctx, tenant(0)); err != nil {
			r.Fatal(err)
		}
		later := c.getting(r.ctx, 1)
		r.eventually("it has joined", func() bool { return c.Stats().Gets == 2 })
		release()
		if got := <-first; got.err != nil {
			r.Error(got.err)
		}
		if got := <-later; got.value != "v2" {
			r.Errorf("who asked after ClearTags got %v", got)
		}
	})
}
