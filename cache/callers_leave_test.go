package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// Callers leave a load. It goes on without them, once, and serves the next caller.
func TestCallersWhoLeaveTakeNobodyWithThem(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		source, gate := newRows(r, 1), newLatch()
		source.slowly(gate.wait)
		c := open(r, source.source())
		var left, stayed sync.WaitGroup
		leaving, leave := context.WithCancel(r.ctx)
		left.Go(func() { // it began the load
			if _, err := c.Get(leaving, 1); !errors.Is(err, context.Canceled) {
				r.Errorf("who left gets %v", err)
			}
		})
		gate.arrived(r)
		for range 20 {
			left.Go(func() { _, _ = c.Get(leaving, 1) })
			stayed.Go(func() { c.gives(r, 1, "v1") })
		}
		r.eventually("all are in", func() bool { return c.Stats().Gets == 41 })
		time.Sleep(time.Millisecond) // they are counted before they join; who comes late finds the value only in Redis
		leave()
		left.Wait()
		close(gate.open)
		stayed.Wait()
		if n := source.atOnce(); n != 1 {
			r.Errorf("%d loads at one time", n)
		}
		if n := source.loads(1); n != 1 {
			r.Errorf("%d loads", n)
		}
		if s := c.Stats().Breaker; s.Failures != 0 || s.Excluded != 0 {
			r.Errorf("callers who left are held against the source: %+v", s)
		}
	})
}

// A load takes longer than each of its callers waits. If it ended with its caller, no caller would
// ever get a value here.
func TestALoadSlowerThanItsCallersIsFinishedAllTheSame(t *testing.T) {
	inCells(t, everyCell(), func(r *rig) {
		if !r.kept() {
			return
		}
		source := newRows(r, 1)
		source.slowly(func(ctx context.Context, _ int64) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		c := open(r, source.source())
		r.eventually("somebody gets an answer", func() bool {
			ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond) // Redis has half of it
			defer cancel()
			got, err := c.Get(ctx, 1)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				r.Errorf("Get: %v", err)
			}
			return got == "v1"
		})
		// On a busy machine Redis may be late for a caller, whose load then has no lease, and the next caller loads again.
		if n := source.loads(1); r.rdb != nil && n > 1+int(c.Stats().Degraded) {
			r.Errorf("%d loads", n)
		}
	})
}

// A load goes on after its caller has left, and its value is stored. If the value were dropped, callers
// with little time would never get one.
func TestWhatALoadBringsIsKeptThoughItsCallerLeft(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}, {redis: "mini"}, {redis: "mini", local: true}}, func(r *rig) {
		source := newRows(r, 1)
		source.slowly(func(context.Context, int64) error { time.Sleep(300 * time.Millisecond); return nil })
		c := open(r, source.source())
		answers := 0
		for range 10 {
			ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
			if _, err := c.Get(ctx, 1); err == nil {
				answers++
			}
			cancel()
			time.Sleep(time.Millisecond) // the local tier shows a new key some moments after its fill
		}
		if answers < 6 || source.loads(1) != 1 {
			r.Errorf("%d of 10 impatient callers got a value, of %d loads", answers, source.loads(1))
		}
	})
}

// While Redis is gone nothing is published, and a load goes on after its caller has left all the same:
// all waiting callers get its value, and the process keeps it.
func TestWhileRedisIsGoneALoadIsKeptThoughItsCallerLeft(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, m *redistest.MiniServer) {
		r.Cleanup(func() { time.Sleep(time.Minute) }) // go-redis goes on to dial for a while
		source, w := newRows(r, 1, 2, 3, 4), &way{}
		c := openOn(r, w.client(r, m), source.source())
		w.refuse()
		for key := range int64(4) { // until the outage is declared
			_, _ = c.Get(r.ctx, key)
		}
		r.eventually("the outage is known", func() bool { return c.Stats().Rebuild.Outage })
		source.put(5, "v1")
		source.slowly(func(context.Context, int64) error { time.Sleep(300 * time.Millisecond); return nil })
		var patient sync.WaitGroup
		answers := 0
		for i := range 10 {
			ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
			if i == 1 {
				patient.Go(func() { c.gives(r, 5, "v1") })
			}
			if _, err := c.Get(ctx, 5); err == nil {
				answers++
			}
			cancel()
		}
		patient.Wait()
		if answers < 6 || source.loads(5) != 1 {
			r.Errorf("%d of 10 impatient callers got a value, of %d loads", answers, source.loads(5))
		}
	})
}
