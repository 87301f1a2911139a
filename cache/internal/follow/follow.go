// Package follow implements cache.Follow: it invalidates the keys that a change feed names.
//
// Every process of a fleet calls Run; one of them has the lock and reads the feed:
//
//	lead    take the lock, whose lease has a fence
//	claim   read the bookmark in Redis, and bar every follower with a lower fence from it
//	open    the stream, at the bookmark
//	read    a batch, and find the keys that it touches
//	apply   invalidate them, and tell the filters
//	keep    the new bookmark, under the fence, when the filters have confirmed
//	confirm to the feed
//
// Whatever happens between two of these steps, the next follower begins at the last stored
// bookmark, and every change from there on comes again: no position is stored before its changes are
// applied, and none is confirmed to the database before it is stored. A follower that was
// paused for longer than its lease may still invalidate, which does no harm; it cannot
// store a bookmark, because a later follower has claimed the bookmark with a higher fence.
//
// A filter that does not confirm holds up no batch: the next ones are read and applied, while the
// bookmark stays where it is. Whoever reads on from there tells the filter of the same rows.
//
// If a stream begins in the present, it is opened before the caches are cleared and their filters
// invalidated: a change that commits in between is in the stream, an earlier change is in all values
// that are loaded after the Clear, and the next rebuild of the filter finds rows inserted earlier.
package follow

import (
	"context"
	"errors"
	"fmt"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/wait"
	"github.com/levee-go/levee/lock"
)

// ErrClosed reports that a cache has been closed.
var ErrClosed = errors.New("cache: closed")

// Run follows a feed for the caches of routes until ctx or one of the caches ends. See
// cache.Follow.
func Run(ctx context.Context, from feed.Feed, routes []Route) error {
	for _, r := range routes {
		if r.Cache != nil {
			defer r.Cache.want(ctx)()
		}
	}
	f, err := newFollower(from, routes)
	if err != nil {
		return err
	}
	defer f.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, c := range f.caches {
		defer context.AfterFunc(c.Closing, func() { cancel(ErrClosed) })()
	}
	retries := wait.Backoff{First: firstPause, Max: longestPause}
	for {
		f.progress = false
		err := f.lead(ctx)
		switch {
		case errors.Is(context.Cause(ctx), ErrClosed):
			return ErrClosed
		case ctx.Err() != nil:
			return wait.Ended(ctx)
		case errors.Is(err, lock.ErrConfig):
			return fmt.Errorf("cache: %w", err)
		}
		f.failed(err)
		if f.progress {
			retries.Reset()
		}
		retries.Sleep(ctx)
	}
}

// lead follows the feed while this process has the lock.
func (f *follower) lead(ctx context.Context) error {
	if f.locker == nil {
		return f.follow(ctx, 0)
	}
	led := false
	err := f.locker.Do(ctx, f.from.Name(), func(ctx context.Context, lease *lock.Lease) error {
		led = true
		return f.follow(ctx, lease.Fence())
	})
	if !led || errors.Is(err, lock.ErrLost) {
		return f.ofRedis(err)
	}
	return err
}

// follow reads the feed until an error needs another stream.
func (f *follower) follow(ctx context.Context, fence int64) (err error) {
	kept, err := f.kept.claim(ctx, fence)
	if f.ofRedis(err) != nil {
		return err
	}
	if kept == (bookmark{}) && f.now.position != kept.position {
		f.log.Info("redis has lost the position of a feed, which is followed from where this process has read it to")
		kept = f.now
	}
	f.now = kept
	f.debts = newDebts(ctx, f.log)
	defer f.debts.close()
	f.batch, f.pending, f.newest, f.reading = 1, place{}, place{}, &reading{}
	stream, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	f.works()
	for _, c := range f.caches {
		defer c.begin(f.reading)()
	}
	for {
		batch, err := f.next(ctx, stream)
		switch {
		case errors.Is(err, errTurned):
		case errors.Is(err, feed.ErrPositionLost):
			return errors.Join(err, f.lose(ctx, err))
		case err != nil:
			return err
		default:
			f.reading.began(batch)
			if err := f.apply(ctx, batch); err != nil {
				return err
			}
			f.works()
		}
		if err := f.store(ctx, stream); err != nil {
			return err
		}
		if err == nil {
			f.reading.ended(batch)
		}
	}
}

// errTurned reports that no batch has come, and that filters are owed less: a position may be ready to be stored.
var errTurned = errors.New("filters have confirmed")

// next returns the next batch, or errTurned if a position is pending and filters confirm first.
func (f *follower) next(ctx context.Context, stream feed.Stream) (feed.Batch, error) {
	if f.pending.batch == 0 {
		return stream.Next(ctx)
	}
	owed, turned := f.debts.oldest()
	if owed > f.pending.batch {
		return feed.Batch{}, errTurned
	}
	next, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(turned, cancel)()
	batch, err := stream.Next(next)
	if errors.Is(err, context.Canceled) && next.Err() != nil && ctx.Err() == nil {
		return feed.Batch{}, errTurned
	}
	return batch, err
}

// store stores and confirms a position of which no filter is owed anything any more. It knows two that are not
// stored: newest moves on with each batch, so on a busy feed the filters would never reach it; pending stays until
// they do.
func (f *follower) store(ctx context.Context, stream feed.Stream) error {
	owed, _ := f.debts.oldest()
	switch {
	case f.newest.batch == 0: // all is stored
	case owed > f.newest.batch:
		at := f.newest.at
		f.pending, f.newest = place{}, place{}
		return f.confirm(ctx, stream, at)
	case f.pending.batch == 0:
		f.pending = f.newest
	case owed > f.pending.batch:
		at := f.pending.at
		f.pending = f.newest
		return f.confirm(ctx, stream, at)
	}
	return nil
}

// open opens the stream at the bookmark, or in the present.
func (f *follower) open(ctx context.Context) (feed.Stream, error) {
	if f.now.position != (feed.Position{}) {
		stream, err := f.from.Open(ctx, f.now.position)
		switch {
		case err == nil:
			// The follower that kept the bookmark may have died before it confirmed it.
			if err = stream.Confirm(ctx, f.now.position); err == nil {
				return f.cleared(ctx, stream)
			}
			_ = stream.Close()
			return nil, err
		case !errors.Is(err, feed.ErrPositionLost):
			return nil, err
		}
		if err := f.lose(ctx, err); err != nil {
			return nil, err
		}
	}
	stream, err := f.from.Open(ctx, feed.Position{})
	if err != nil {
		return nil, err
	}
	return f.cleared(ctx, stream)
}

// cleared clears the caches that may hold values from before the stream begins.
func (f *follower) cleared(ctx context.Context, stream feed.Stream) (feed.Stream, error) {
	done := map[*Cache]bool{}
	for _, r := range f.routes {
		if done[r.Cache] || !f.now.uncovered(r) {
			continue
		}
		if err := f.insist(ctx, func() error { return f.ofRedis(f.forget(ctx, r.Cache)) }); err != nil {
			_ = stream.Close()
			return nil, err
		}
		done[r.Cache] = true
		f.log.Warn("a cache was cleared and its filter needs a rebuild, since it is not known from where on to follow the feed for it", "cache", r.Cache.Name)
	}
	return stream, nil
}

// lose gives up the position, so that the next stream begins in the present.
func (f *follower) lose(ctx context.Context, cause error) error {
	f.log.Error("changes are lost to the feed: the caches are cleared, and their filters need a rebuild", "error", cause)
	for _, c := range f.caches {
		c.lost.Add(1)
	}
	f.now = bookmark{}
	return f.keep(ctx)
}

// apply applies a batch to all caches, and then has the filters told of its rows, as that may take its time.
func (f *follower) apply(ctx context.Context, batch feed.Batch) error {
	f.batch++
	var all map[*Cache]*effects
	if err := f.insist(ctx, func() (err error) { all, err = effectsOf(f.routes, batch); return err }); err != nil {
		return err
	}
	for c, e := range all {
		if err := f.insist(ctx, func() error { return f.ofRedis(f.applyTo(ctx, c, e)) }); err != nil {
			return err
		}
	}
	for c, e := range all {
		f.debts.owe(c, f.batch, e.present, false)
	}
	f.debts.wait()
	for c, e := range all { // counted here, where nothing can fail any more
		c.changes.Add(e.changes)
	}
	for _, c := range f.caches {
		c.batches.Add(1)
	}
	if batch.Position != (feed.Position{}) {
		f.newest = place{f.batch, batch.Position}
	}
	return nil
}

// keep stores the bookmark.
func (f *follower) keep(ctx context.Context) error {
	return f.insist(ctx, func() error { return f.ofRedis(f.kept.keep(ctx, f.now)) })
}

// confirm stores a position up to which all changes are applied, and the filters told, and confirms it to the feed.
func (f *follower) confirm(ctx context.Context, stream feed.Stream, read feed.Position) error {
	f.now.position, f.now.covers = read, covers(f.routes)
	if err := f.keep(ctx); err != nil {
		return err
	}
	f.progress = true
	return stream.Confirm(ctx, read)
}
