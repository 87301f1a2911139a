package feedtest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A Connection writes the column n of a row of the table counter.
type Connection interface {
	Set(id int, n int64) error
	Close() error
}

// A counting writer counts up in a row, one number in a transaction, until ctx ends.
type counting struct {
	id        int
	committed atomic.Int64 // the last number whose commit was confirmed
}

func (w *counting) run(ctx context.Context, connect func() (Connection, error)) {
	for n := int64(0); ctx.Err() == nil; {
		c, err := connect()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // the server is down
			continue
		}
		for err == nil && ctx.Err() == nil {
			n++
			if err = c.Set(w.id, n); err == nil {
				w.committed.Store(n)
			}
		}
		_ = c.Close()
	}
}

// NothingIsLost kills the server of a feed three times while writers count up in the rows 1 to 3
// of a table of ids and numbers. The numbers of a writer must arrive in their order, except for
// steps back, and no committed number may be missing.
func NothingIsLost(t *testing.T, f feed.Feed, connect func() (Connection, error), restart func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	w := Open(t, f, feed.Position{})
	var writers []*counting
	for i := range 3 {
		n := &counting{id: i + 1}
		writers = append(writers, n)
		running.Go(func() { n.run(ctx, connect) })
	}
	seen := map[int64]int64{}
	// placed says that there is a position: without one a feed begins in the present.
	var placed atomic.Bool
	read := func(stop func() bool) error { // as cache.Follow: the position counts when its batch has been dealt with
		for !stop() {
			b, err := w.Next(Soon(t))
			if err != nil {
				return err
			}
			for _, c := range b.Changes {
				id, _ := c.New.Int("id")
				n, _ := c.New.Int("n")
				before, err := c.Old.Int("n")
				if err != nil || before > seen[id] {
					t.Errorf("row %d goes from %d to %d, and %d was the last that was told", id, before, n, seen[id])
				}
				seen[id] = max(seen[id], n)
			}
			if b.Position != (feed.Position{}) {
				w.At = b.Position
				placed.Store(true)
			}
			if len(b.Changes)%2 == 0 { // and sometimes the confirmation is lost
				_ = w.Confirm(ctx, w.At)
			}
		}
		return nil
	}
	for round := range 3 {
		target := int64(0)
		for _, n := range writers {
			target = max(target, n.committed.Load())
		}
		back := make(chan struct{})
		go func() {
			defer close(back)
			for writers[round].committed.Load() < target+50 || !placed.Load() {
				time.Sleep(time.Millisecond)
			}
			restart()
		}()
		if err := read(func() bool { return false }); errors.Is(err, feed.ErrPositionLost) {
			t.Fatal(err)
		}
		_ = w.Close()
		<-back
		redistest.Eventually(t, 30*time.Second, "the feed opens again", func() bool {
			s, err := f.Open(Soon(t), w.At)
			if errors.Is(err, feed.ErrPositionLost) {
				t.Fatal(err)
			}
			w.Stream = s
			return err == nil
		})
	}
	cancel()
	running.Wait()
	err := read(func() bool {
		for _, n := range writers {
			if seen[int64(n.id)] < n.committed.Load() {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
	for _, n := range writers {
		if n.committed.Load() < 50 {
			t.Errorf("writer %d came to %d", n.id, n.committed.Load())
		}
	}
}
