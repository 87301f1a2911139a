package audit

import (
	"cmp"
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
			if l.ctx.Err() != nil {
				return l.ctx.Err()
			}
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
	changed := map[K]bool{}
	var failed error
	note := func(err error) { failed = cmp.Or(failed, err) }
	for _, row := range []feed.Row{change.Old, change.New} {
		if row == nil {
			continue
		}
		contain.Call(func() error {
			found, err := keys(row)
			if err != nil {
				return err
			}
			for _, key := range found {
				changed[key] = true
			}
			return nil
		}, note)
	}
	for key := range changed {
		contain.Call(func() error {
			if id, err := l.of.ID(key); err == nil && shared(id, l.o.Share) { // no cache holds a key without an id
				l.heard(key, change.Table)
			}
			return nil
		}, note)
	}
	return failed
}

// wrote learns of the changes of a call of the cache.
func (l *Ledger[K, V]) wrote(ids []string) {
	l.call(func() error {
		for _, id := range ids {
			if shared(id, l.o.Share) {
				contain.Call(func() error { // Key may call the user's UnmarshalText
					if key, known := l.from.Key(id); known {
						l.heard(key, "")
					}
					return nil
				}, l.end)
			}
		}
		return nil
	})
}

// heard begins to look at a key that has changed.
func (l *Ledger[K, V]) heard(key K, table string) {
	l.from.Counts.Changes.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.watching[key]
	switch {
	case w != nil:
		w.table = table
		wait.Wake(w.newer)
	case len(l.watching) >= mostWatched:
		l.from.Counts.Skipped.Add(1)
	default:
		w = &watch[K]{key: key, table: table, newer: make(chan struct{}, 1)}
		now := time.Now()
		if l.from.Local { // first, as Redis may take its time
			w.tiers = append(w.tiers, &tier{since: now, local: true})
		}
		if l.from.Redis {
			w.tiers = append(w.tiers, &tier{since: now})
		}
		l.watching[key] = w
		l.running.Go(func() { l.watch(w) })
	}
}
