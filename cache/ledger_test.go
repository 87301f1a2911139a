package cache_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
)

// A ledger is a database's log in memory, and a Feed of it. It gives a transaction a
// batch, and everything after the last position that was confirmed once more to a stream
// that is opened there.
type ledger struct {
	name string

	mu        sync.Mutex // guards what follows
	written   [][]feed.Change
	at        []time.Time // of the commits
	purged    int         // how many transactions are not to be had any more
	confirmed int         // how many were confirmed
	part      int         // changes in a batch; 0: all of the transaction
	blind     bool        // Open does not notice what is purged, and Next does
	repeat    int         // how many transactions before its position a stream begins
	opened    []feed.Position
	news      chan struct{} // closed and made anew when something has changed

	// Of the test, called outside the lock; nil: nothing.
	onOpen    func(from feed.Position) error
	onNext    func() error
	onConfirm func(n int) error
}

func newLedger() *ledger { return &ledger{name: "shop", news: make(chan struct{})} }

// commit appends a transaction and returns how many there are.
func (l *ledger) commit(changes ...feed.Change) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written, l.at = append(l.written, changes), append(l.at, time.Now())
	l.wake()
	return len(l.written)
}

func (l *ledger) wake() {
	close(l.news)
	l.news = make(chan struct{})
}

// set changes what the ledger does.
func (l *ledger) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.wake()
}

func (l *ledger) get(what func() int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return what()
}

func (l *ledger) done() int  { return l.get(func() int { return l.confirmed }) }
func (l *ledger) opens() int { return l.get(func() int { return len(l.opened) }) }

// confirms waits until n transactions are confirmed.
func (l *ledger) confirms(r *rig, n int) {
	r.Helper()
	r.eventually(fmt.Sprintf("%d transactions are confirmed", n), func() bool { return l.done() >= n })
}

func (l *ledger) Name() string { return l.name }

func (l *ledger) Open(_ context.Context, from feed.Position) (feed.Stream, error) {
	if on := l.onOpen; on != nil {
		if err := on(from); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = append(l.opened, from)
	if from == (feed.Position{}) {
		return &page{ledger: l, next: len(l.written)}, nil
	}
	next, err := strconv.Atoi(from.Text)
	if err != nil || next < l.purged && !l.blind {
		return nil, fmt.Errorf("the log begins at %d: %w", l.purged, feed.ErrPositionLost)
	}
	return &page{ledger: l, next: max(0, next-l.repeat)}, nil
}

// A page is a stream of a ledger.
type page struct {
	*ledger
	next, part int // the transaction, and how many of its changes were given
}

func (p *page) Next(ctx context.Context) (feed.Batch, error) {
	for {
		if p.onNext != nil {
			if err := p.onNext(); err != nil {
				return feed.Batch{}, err
			}
		}
		batch, news, err := p.look()
		if news == nil {
			return batch, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return feed.Batch{}, ctx.Err()
		}
	}
}

// look returns the next batch, or what to wait for.
func (p *page) look() (b feed.Batch, news <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.next < p.purged:
		return b, nil, feed.ErrPositionLost
	case p.next == len(p.written):
		return b, p.news, nil
	}
	b = feed.Batch{Changes: p.written[p.next][p.part:], Committed: p.at[p.next], Behind: int64(len(p.written) - p.next - 1)}
	if p.ledger.part > 0 && len(b.Changes) > p.ledger.part {
		b.Changes = b.Changes[:p.ledger.part]
		p.part += p.ledger.part
		return b, nil, nil
	}
	p.next, p.part = p.next+1, 0
	b.Position = feed.Position{Text: strconv.Itoa(p.next), Order: uint64(p.next)}
	return b, nil, nil
}

func (p *page) Confirm(_ context.Context, at feed.Position) error {
	n, err := strconv.Atoi(at.Text)
	if p.onConfirm != nil {
		err = errors.Join(err, p.onConfirm(n))
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmed = max(p.confirmed, n)
	return nil
}

func (p *page) Close() error { return nil }

// row is a row of the table "product".
func row(id int64, slug string) feed.Row { return feed.Row{"id": id, "slug": slug} }

var byID = []string{"id"}

func inserted(id int64) feed.Change {
	return feed.Change{Table: "product", Kind: feed.Inserted, New: row(id, "new"), Key: byID}
}

func updated(id int64) feed.Change {
	return feed.Change{Table: "product", Kind: feed.Updated, New: row(id, "new"), Key: byID}
}

func deleted(id int64) feed.Change {
	return feed.Change{Table: "product", Kind: feed.Deleted, Old: row(id, "old"), Key: byID}
}

// slugs are the keys of a cache of products by slug.
func slugs(row feed.Row) ([]string, error) {
	slug, err := row.Text("slug")
	return []string{slug}, err
}

// following runs Follow beside the test, until it ends or stop is called.
func following(r *rig, db feed.Feed, routes ...cache.Route) (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { done <- cache.Follow(ctx, db, routes...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, cache.ErrClosed) {
			r.Errorf("Follow returned %v", err)
		}
	})
	r.Cleanup(stop)
	return stop
}

// follows is following, and waits until the stream is open and the caches are cleared.
func follows(r *rig, db *ledger, c *probe[int64, string], routes ...cache.Route) (stop func()) {
	r.Helper()
	if len(routes) == 0 {
		routes = []cache.Route{c.Route("product", nil)}
	}
	stop = following(r, db, routes...)
	r.eventually("the feed is followed", func() bool { return c.Stats().Follow.Following })
	return stop
}
