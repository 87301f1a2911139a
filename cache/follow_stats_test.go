package cache_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// The lag grows while changes wait, and ends when they are handled.
func TestTheLagOfAFeedIsCounted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	source, db := newRows(r, 1), newLedger()
	c := open(r, source.source())
	var stuck atomic.Bool
	stuck.Store(true)
	follows(r, db, c, c.Route("product", func(row feed.Row) ([]int64, error) {
		if stuck.Load() {
			return nil, errors.New("not yet")
		}
		return nil, nil
	}))
	db.commit(updated(1))
	db.commit(updated(1))
	db.commit(updated(1))
	r.eventually("the lag grows", func() bool { return c.Stats().Follow.Lag > 200*time.Millisecond })
	if n := c.Stats().Follow.Behind; n > 2 {
		r.Errorf("%d transactions are behind the first", n)
	}
	stuck.Store(false)
	db.confirms(r, 3)
	r.eventually("the lag ends", func() bool { s := c.Stats().Follow; return s.Lag == 0 && s.Behind == 0 })
}

// Stats.Follow.Wanted is true for a feed that has never worked, and after a Follow that gave up with
// an error that nobody has read. Defect: an alert looks only at feeds that have worked before in
// this process, and is silent after a restart.
func TestAFeedThatDoesNotWorkIsWanted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real"})
	c := open(r, newRows(r, 1).source())
	if c.Stats().Follow.Wanted {
		t.Error("nobody has called Follow, and a feed is wanted")
	}
	broken := newLedger()
	broken.onOpen = func(feed.Position) error { return errors.New("no rights") }
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() { ended <- c.Follow(ctx, broken) }()
	r.eventually("the feed fails", func() bool { return c.Stats().Follow.Failures > 0 })
	if s := c.Stats().Follow; !s.Wanted || s.Following {
		t.Errorf("of a feed that fails: %+v", s)
	}
	cancel()
	<-ended
	if s := c.Stats().Follow; s.Wanted {
		t.Errorf("after the end of its context: %+v", s)
	}

	ctx, cancel = context.WithCancel(r.ctx)
	if err := c.Follow(ctx, &ledger{}); err == nil {
		t.Error("a feed without a name is followed")
	}
	if s := c.Stats().Follow; !s.Wanted || s.Following {
		t.Errorf("after Follow has given up: %+v", s)
	}
	cancel()
	if s := c.Stats().Follow; s.Wanted {
		t.Errorf("after the end of the context of a Follow that had given up: %+v", s)
	}
	_ = c.Follow(r.ctx, &ledger{})
	if _ = c.Close(); c.Stats().Follow.Wanted {
		t.Error("a feed is wanted for a closed cache")
	}
}
