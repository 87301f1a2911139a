package audit

import (
	"time"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/wait"
)

// follow reads the feed until l is closed. After a failure it begins in the present: the changes in between are
// not looked at.
func (l *Ledger[K, V]) follow() {
	retries := wait.Backoff{First: 50 * time.Millisecond, Max: 5 * time.Second}
	for l.ctx.Err() == nil {
		if err := <-contain.Go(func() error { return l.readFeed(&retries) }); l.ctx.Err() == nil {
			l.from.Counts.Failed.Add(1)
			l.of.Log.Warn("the feed of a Ledger has failed and is opened again", "feed", l.o.Feed.Name(), "error", err)
		}
		retries.Sleep(l.ctx)
	}
}

func (l *Ledger[K, V]) readFeed(retries *wait.Backoff) error {
	stream, err := l.o.Feed.Open(l.ctx, feed.Position{})
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		batch, err := stream.Next(l.ctx)
		if err != nil {
			return err
		}
		for _, change := range batch.Changes {
			l.call(func() error { return l.told(change) })
		}
		if batch.Position == (feed.Position{}) {
			continue
		}
		if err := stream.Confirm(l.ctx, batch.Position); err != nil {
			return err
		}
		retries.Reset()
	}
}

// told learns of the change of a row. A table as a whole is not looked at. Keys that cannot be told are passed over.
func (l *Ledger[K, V]) told(change feed.Change) error {
	keys, ok := l.o.Keys[change.Table]
	switch {
	case !ok && l.o.Keys != nil:
		return nil
	case keys == nil:
		keys = func(row feed.Row) ([]K, error) { return l.from.Row(row, change.Key) }
	}
	var failed error
	changed := map[K]bool{}
	for _, row := range []feed.Row{change.Old, change.New} {
		if row == nil {
			continue
		}
		found, err := keys(row)
		if err != nil {
			failed = err
			continue
		}
		for _, key := range found {
			changed[key] = true
		}
	}
	for key := range changed {
		if id, err := l.of.ID(key); err == nil && shared(id, l.o.Share) {
			l.heard(key, change.Table)
		}
	}
	return failed
}
