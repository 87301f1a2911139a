package cache

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

// Write runs tx, which changes keys in the source, so that no reader keeps what
// was there before: it tells the filter, expires the keys and closes them to publication, runs tx,
// and invalidates. Readers meanwhile load and do not publish; their process keeps what they
// load for a second, so the old value may be served until Write returns. Should the process
// die in tx, the keys open again after Options.Rebuild.Hold.
//
// The keys need not be known before: tx may name those that it finds, such as an id that
// an INSERT makes, with [Also] and the context that it gets.
//
// If tx fails or panics, Write returns its error and nothing else, and the keys stay expired, as after
// [Cache.Expire]: a transaction that reports failure may have committed, so the next reader loads,
// and the old value is served, marked stale, only if that fails. So what a database that is down
// refuses to write, it does not take from readers. It does so too when ctx ends meanwhile. If tx succeeds and Redis does not confirm the
// invalidation, the error matches [ErrNotInvalidated]: the change is committed, and other
// processes may not see it yet. The invalidation is tried again until Redis confirms it.
// No other error of Write matches ErrNotInvalidated, also if tx returns that of another
// call; whatever else that error matches, Write's does too. So a caller writes
//
//	if err != nil && !errors.Is(err, cache.ErrNotInvalidated) {
//		return err // nothing is committed, as far as tx knows
//	}
//
// Before tx runs, Write may return ErrInvalidKey, ErrClosed, the error of a ctx that has
// ended, or that of the filter. Redis out of reach does not keep
// tx from running, unless a shared filter does not hold one of the keys: the row would be
// denied once it exists, and Options.FilterBestEffort chooses that. Until an outage is
// noticed it costs a Write twice RedisTimeout, three times if it has to wait for its turn.
// A key that the filter holds, as that of a row that exists, needs no Redis. Other processes
// may deny a new key for up to the MaxLag of a shared filter, see bloom.Options, after Write
// has told the filter of it. (A filter that counts its keys, of bloom.New, does not count those
// that look held, nor one in a hundred of the new ones, its FalsePositiveRate: name new
// keys with [Also], or [Cache.Announce] them.)
//
// For a transaction that changes keys of several caches, see the function [Write].
func (c *Cache[K, V]) Write(ctx context.Context, keys []K, tx func(context.Context) error) error {
	return Write(ctx, tx, c.Changes(keys...))
}

// Changes are keys of one cache that a transaction changes, or tags of the values that it
// changes. Make them with [Cache.Changes] and [Cache.Tagged] and pass them to [Write] or
// [Also]; they are of no other use.
type Changes struct {
	cache changing
	ids   []string
	tags  []uint32
	err   error // of the keys
}

// changing is what [Write] needs of a cache, whatever its types.
type changing interface {
	closed() bool
	ensure(ctx context.Context, ids []string) error
	count(ctx context.Context, ids []string) error
	hold(ctx context.Context, ids []string) (end func(ctx context.Context, succeeded bool) error)
	drop(ctx context.Context, ids []string, tags []uint32, succeeded bool) error
	dropLater(all []held)
	Clear(ctx context.Context) error
	endTags(ctx context.Context, tags []uint32, succeeded bool) error
	beginWrite(ctx context.Context, call string, ids []string) (context.Context, func(Outcome))
	logger() *logonce.Log
}

// Changes says that a transaction changes keys.
func (c *Cache[K, V]) Changes(keys ...K) Changes {
	ids, err := c.ids(keys)
	return Changes{cache: c, ids: ids, err: err}
}

// Write is [Cache.Write] for a transaction that changes keys of several caches, such as
// a row that is cached by id and by name:
//
//	err := cache.Write(ctx, tx, products.Changes(42), bySlug.Changes("old", "new"))
//
// The caches are dealt with side by side: several take one round trip longer than one, however
// many they are. The loader of one may read another of them, as that of a page reads products.
// If any of them returns an error before tx, tx does not run. Without Changes all keys have to
// come from tx, by [Also]. A Write that succeeds and has named no key is logged.
//
// A Write that is called with the context of another one's tx is part of that: it returns the
// error of its own tx, and its keys stay closed until the other Write ends, which
// invalidates them and says whether Redis has confirmed it.
func Write(ctx context.Context, tx func(context.Context) error, changes ...Changes) (err error) {
	if tx == nil {
		return errors.New("cache: Write needs a tx")
	}
	ctx, done := beginWrite(ctx, "write", changes)
	defer func() { done(Outcome{Err: err}) }()
	if err := ready(ctx, changes, changing.ensure); err != nil {
		return masked("cache: the transaction has not run", err)
	}
	w := &writing{outer: writingOf(ctx)}
	succeeded := false
	defer func() {
		if unconfirmed := w.end(context.WithoutCancel(ctx), changes, succeeded); succeeded {
			err = unconfirmed
		}
	}()
	held, err := closeAll(ctx, changes)
	if w.take(held); err != nil {
		return masked("cache: the transaction has not run", err)
	}
	err = errLeft // until tx returns: it may panic, or call Goexit
	inTx, ended := beginWrite(ctx, "tx", changes)
	defer func() { ended(Outcome{Err: err}) }()
	if err = tx(context.WithValue(inTx, writingKey{}, w)); errors.Is(err, ErrNotInvalidated) {
		err = masked("cache: the transaction failed", err)
	}
	succeeded = err == nil
	return err
}

var errLeft = errors.New("cache: the transaction has panicked, or called runtime.Goexit")

// Also adds keys to the Write in whose tx it is called, with the context that tx got or
// one made from it: keys that are known only there, such as the id that an INSERT makes or
// those of the rows that an UPDATE has found. Call it before the transaction commits.
//
//	err := cache.Write(ctx, func(ctx context.Context) error {
//		id, err := store.Insert(ctx, p) // INSERT … RETURNING id
//		if err != nil {
//			return err
//		}
//		return cache.Also(ctx, products.Changes(id), bySlug.Changes(p.Slug))
//	})
//
// When it returns nil, the filter knows the keys and they are closed to publication, as if
// they had been named to Write. (A filter that counts its keys, of bloom.New, counts each of
// them, also that of a row that was there, which passes until the next Rebuild when the row has
// been deleted.) As at the start of a Write, Redis out of reach is no error, unless a filter
// does not confirm the keys.
//
// An error says that the transaction must not commit: ErrInvalidKey, ErrClosed, the error of
// ctx or of the filter, or that ctx is not that of a tx, or of one that has ended. None
// matches ErrNotInvalidated. Also may be called from several goroutines, and once for many
// keys costs less than many times.
func Also(ctx context.Context, changes ...Changes) error {
	w := writingOf(ctx)
	if w == nil {
		return errors.New("cache: Also needs the context that Write gives to its tx")
	}
	if err := ready(ctx, changes, changing.count); err != nil {
		return masked("cache: Also", err)
	}
	held, err := closeAll(ctx, changes)
	if !w.take(held) {
		_ = openAll(context.WithoutCancel(ctx), held, false)
		return errors.New("cache: Also was called when the tx had ended")
	}
	if err != nil {
		return masked("cache: Also", err)
	}
	return nil
}

// A writing is a Write under way.
type writing struct {
	outer *writing // the Write in whose tx this one was called; nil: none

	mu    sync.Mutex // guards what follows
	ended bool
	held  []held
}

// A held is what has been closed to publication, and how to open it.
type held struct {
	Changes
	open func(ctx context.Context, succeeded bool) error
}

// first is the first of the ids, "" of tags.
func (c Changes) first() string {
	if len(c.ids) == 0 {
		return ""
	}
	return c.ids[0]
}

type writingKey struct{}

func writingOf(ctx context.Context) *writing {
	w, _ := ctx.Value(writingKey{}).(*writing)
	return w
}

// take has the end of w open what is held. It reports false if w has ended.
func (w *writing) take(more []held) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.held = append(w.held, more...)
	}
	return !w.ended
}

// end ends a Write. If the one around it is under way still, that is to open the keys. Else
// it opens them here, and returns what Redis did not confirm.
func (w *writing) end(ctx context.Context, changes []Changes, succeeded bool) error {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	switch {
	case w.outer != nil && w.outer.take(w.held):
		return nil
	case succeeded && len(w.held) == 0:
		nameless(changes).Warn("a Write has named no key, neither by Changes nor by Also: nothing is invalidated")
	}
	return openAll(ctx, w.held, succeeded)
}

// closeAll closes the keys of changes to publication.
func closeAll(ctx context.Context, changes []Changes) (all []held, err error) {
	for _, c := range changes {
		if len(c.ids)+len(c.tags) > 0 {
			all = append(all, held{c, func(context.Context, bool) error { return nil }})
		}
	}
	return all, eachOf(all, func(h *held) error {
		if len(h.tags) > 0 { // who loads beside the writer has an epoch from before the clear
			h.open = func(ctx context.Context, succeeded bool) error { return h.cache.endTags(ctx, h.tags, succeeded) }
			return nil
		}
		h.open = h.cache.hold(ctx, h.ids)
		return nil
	})
}

// openAll opens and invalidates what is held. Of a transaction that failed only the log is
// told what Redis did not confirm.
//
// The local tiers keep what is loaded beside a writer, and what has a tag answers until its clear. So
// of several caches all drop that before one is opened, whose loader may read another of them. Tags
// are cleared once more then, since nothing keeps values that have them closed until all have done so:
//
//	a Write of a row and its page         a reader
//	closes both
//	                                      loads the old row, and keeps it
//	commits
//	opens the page
//	                                      loads the page, finds the old row,
//	                                      and publishes it: it would stay
//	opens the row
//
// If one of them is not dropped, none is opened here, see reopening.
func openAll(ctx context.Context, all []held, succeeded bool) (err error) {
	if len(all) > 1 {
		err = dropAll(ctx, all, succeeded)
	}
	if err != nil {
		all[0].cache.dropLater(all)
	} else {
		err = eachOf(all, func(h *held) error { return h.open(ctx, succeeded) })
	}
	if err != nil && !succeeded {
		all[0].cache.logger().Warn("the invalidation after a failed write is not confirmed, and is tried again", logonce.Name("key", all[0].first()), "error", err)
	}
	return err
}

// dropAll takes from readers what they have loaded beside a writer.
func dropAll(ctx context.Context, all []held, succeeded bool) error {
	return eachOf(all, func(h *held) error { return h.cache.drop(ctx, h.ids, h.tags, succeeded) })
}

// ownerless logs for Writes without a cache.
var ownerless = logonce.New(slog.Default(), "levee: ")

// nameless is the log for a Write without keys.
func nameless(changes []Changes) *logonce.Log {
	if len(changes) > 0 {
		return changes[0].cache.logger()
	}
	return ownerless.To(slog.Default())
}

// beginWrite tells the hook of the cache that is named first.
func beginWrite(ctx context.Context, call string, changes []Changes) (context.Context, func(Outcome)) {
	if len(changes) == 0 || changes[0].cache == nil {
		return ctx, unheard
	}
	return changes[0].cache.beginWrite(ctx, call, changes[0].ids)
}

// ready returns why a transaction must not run or commit, and tells the filters of its keys.
func ready(ctx context.Context, changes []Changes, learn func(changing, context.Context, []string) error) error {
	for _, c := range changes {
		switch {
		case c.cache == nil:
			return errors.New("cache: Write and Also need Changes that Cache.Changes or Cache.Tagged has made")
		case c.cache.closed():
			return ErrClosed
		case c.err != nil:
			return c.err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, c := range changes {
		if len(c.ids) == 0 { // tags: no filter knows them
			continue
		}
		if err := learn(c.cache, ctx, c.ids); err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls do for all at once, and joins the errors.
func eachOf(all []held, do func(*held) error) error {
	if len(all) == 1 {
		return do(&all[0])
	}
	errs := make([]error, len(all))
	var under sync.WaitGroup
	for i := range all {
		under.Go(func() {
			contain.Call(func() error { return do(&all[i]) }, func(err error) { errs[i] = named(err) })
		})
	}
	under.Wait()
	return errors.Join(errs...)
}

func (c *Cache[K, V]) closed() bool         { return c.closing.Err() != nil }
func (c *Cache[K, V]) logger() *logonce.Log { return c.log }

// hold expires ids and closes them to publication until end. That invalidates them after a transaction
// that has succeeded. After one that failed they stay expired: the old value is a fallback.
func (c *Cache[K, V]) hold(ctx context.Context, ids []string) (end func(ctx context.Context, succeeded bool) error) {
	var lift func(context.Context, bool) error
	err := c.change(ctx, "hold", ids, func(ctx context.Context) (err error) {
		lift, err = c.fleet.Hold(ctx, c.windows.fallback, ids...)
		return err
	})
	if err != nil {
		c.log.Warn("a write goes on without a hold on its keys", "error", err)
	}
	c.forgetLocal(ids)
	return func(ctx context.Context, succeeded bool) error {
		return c.forget(ctx, ids, func(ctx context.Context) error { return lift(ctx, succeeded) })
	}
}

// drop ends ids and tags after a transaction, and opens nothing. Its error matches ErrNotInvalidated.
func (c *Cache[K, V]) drop(ctx context.Context, ids []string, tags []uint32, succeeded bool) (err error) {
	if len(ids) > 0 {
		if succeeded {
			err = c.fleet.Invalidate(ctx, ids...)
		} else {
			err = c.fleet.Expire(ctx, c.windows.fallback, ids...)
		}
		c.forgetLocal(ids)
	}
	if err != nil {
		c.counts.notInvalidated.Add(1)
		err = notInvalidated(err)
	}
	if len(tags) > 0 {
		err = errors.Join(err, c.endTags(ctx, tags, succeeded))
	}
	return err
}

func (c *Cache[K, V]) dropLater(all []held) { c.reopening.add(c.closing, all) }
