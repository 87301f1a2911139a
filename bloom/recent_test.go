package bloom

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// More adds than are kept: without the wait, those lost would be denied.
func TestARebuildWaitsForWhatItCannotTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		f, err := New(Options{Capacity: n, MaxTransaction: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		f.impl.(*local).recent.room = 2000
		ids := make([]string, n)
		for i := range ids {
			ids[i] = strconv.Itoa(i)
		}
		begin := time.Now()
		_ = f.Add(t.Context(), ids[:n/2]...)
		time.Sleep(10 * time.Second)
		_ = f.Add(t.Context(), ids[n/2:]...)
		time.Sleep(10 * time.Second)
		if kept, _ := f.impl.(*local).recent.take(); len(kept) > 2000 {
			t.Errorf("%d adds are kept, want at most 2000", len(kept))
		}
		var scanned time.Duration
		err = f.Rebuild(t.Context(), func(yield func(string, error) bool) {
			scanned = time.Since(begin)
			for _, id := range ids[:n-500] { // the newest have not committed
				yield(id, nil)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if scanned != time.Minute {
			t.Errorf("the scan began after %v, want when the lost ones are committed, after 1m", scanned)
		}
		if slices.ContainsFunc(ids, func(id string) bool { return !f.MayContain(t.Context(), id) }) {
			t.Error("ids are denied")
		}

		_ = f.Add(t.Context(), ids...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Rebuild(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline while it waits", err)
		}
		_ = f.Close()
	})
}

func TestWhatIsKeptIsBoundedByItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := time.Now()
		r := recent[hash]{span: time.Minute, room: maxRecent, clock: func() time.Duration { return time.Since(made) }}
		for i := range 630 { // one a second
			r.push([]hash{{uint64(i), 0}})
			time.Sleep(time.Second)
		}
		kept, wait := r.take()
		if len(kept) < 60 || len(kept) > 120 || kept[len(kept)-1].a != 629 || wait > 0 {
			t.Errorf("%d kept, the last %v, and a wait of %v, want 60 to 120 and none", len(kept), kept[len(kept)-1], wait)
		}
		time.Sleep(2 * time.Minute)
		if kept, wait := r.take(); len(kept) > 0 || wait > 0 {
			t.Errorf("%d kept and a wait of %v after two minutes, want none", len(kept), wait)
		}
	})
}

// A push is paused while it has a batch in hand; meanwhile the batch gets old and has a successor, so that
// takes do not look at it any more. Defect: the push writes into it, and no Rebuild takes its entry over.
func TestABatchWithASuccessorGivesOutNoPlace(t *testing.T) {
	now := time.Duration(0)
	r := recent[hash]{span: time.Minute, room: maxRecent, clock: func() time.Duration { return now }}
	r.push([]hash{{1, 1}})
	old := r.newest.Load()
	now = time.Minute
	r.push([]hash{{2, 2}})
	if r.newest.Load() == old || !old.full() {
		t.Error("a batch that is no longer the newest gives out places")
	}
}

// Many goroutines push at the same time, through many batches. An entry that two of them put into
// one place, or into a batch that the other has replaced, would be missing.
func TestPushesAtTheSameTimeLoseNothing(t *testing.T) {
	const goroutines, each, room = 4, 50_000, 1 << 20
	made := time.Now()
	r := recent[hash]{span: time.Hour, room: room, clock: func() time.Duration { return time.Since(made) }}
	var all sync.WaitGroup
	begin := make(chan struct{})
	for g := range goroutines {
		all.Go(func() {
			<-begin
			for i := range each {
				r.push([]hash{{uint64(g), uint64(i)}})
				if i%10_000 > 0 {
					continue
				}
				if kept, _ := r.take(); !slices.Contains(kept, hash{uint64(g), uint64(i)}) {
					t.Errorf("the entry %d of %d is missing after its push", i, g)
				}
			}
		})
	}
	close(begin)
	all.Wait()
	kept, wait := r.take()
	seen := map[hash]bool{}
	for _, h := range kept {
		seen[h] = true
	}
	if len(kept) != goroutines*each || len(seen) != goroutines*each || wait > 0 {
		t.Errorf("%d kept, %d different, a wait of %v, want %d and none", len(kept), len(seen), wait, goroutines*each)
	}
}
