package cache

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

// Write runs tx, which changes keys in the source, so that no reader keeps an older value. It
// adds the keys to the filter, expires them and closes them to publication, runs tx, and
// invalidates the keys. Meanwhile readers load and do not publish; their process keeps a loaded
// value for a second, so the old value may be served until Write returns. If the process dies in
// tx, the keys open again after Options.Rebuild.Hold.
//
// The keys need not be known before: tx may name keys that it finds, such as an id that an INSERT
// makes, with [Also] and the context that it gets.
//
// If tx fails or panics, Write returns its error and nothing else, and the keys stay expired, as
// after [Cache.Expire]: a transaction that reports failure may have committed, so the next reader
// loads, and the old value is served, marked stale, only if that load fails. So when a database
// that is down refuses a write, readers keep their values. Write does the work after tx even if
// ctx has ended. If tx succeeds and Redis does not confirm the invalidation, the error matches
// [ErrNotInvalidated]: the change is committed, and other processes may not see it yet. The
// invalidation is tried again until Redis confirms it. No other error of Write matches
// ErrNotInvalidated, even if tx returns another call's ErrNotInvalidated; Write's error still
// matches whatever else tx's error matches. So a caller writes
//
//	if err != nil && !errors.Is(err, cache.ErrNotInvalidated) {
//		return err // nothing is committed, as far as tx knows
//	}
//
// Before tx runs, Write may return ErrInvalidKey, ErrClosed, the error of a ctx that has ended,
// or the filter's error. If Redis is out of reach, tx runs nevertheless, unless a shared filter
// does not hold one of the keys: the row would be denied once it exists (Options.FilterBestEffort
// accepts that). Until an outage is noticed it costs a Write twice RedisTimeout, three times if
// it has to wait for its turn. A key that the filter holds, as it does keys of existing rows,
// needs no Redis. After Write has added a new key to a shared filter, other processes may deny it
// for up to the filter's MaxLag, see bloom.Options. (A filter of bloom.New that counts its keys
// counts neither keys that look held nor one in a hundred of the new ones, its FalsePositiveRate:
// name new keys with [Also], or [Cache.Announce] them.)
//
// For a transaction that changes keys of several caches, see the function [Write].
func (c *Cache[K, V]) Write(ctx context.Context, keys []K, tx func(context.Context) error) error {
	return Write(ctx, tx, c.Changes(keys...))
}

// Changes are the keys of one cache that a transaction changes, or the tags of the values that it
// changes. Make them with [Cache.Changes] and [Cache.Tagged] and pass them to [Write] or [Also];
// they have no other use.
type Changes struct {
	writer *writer
	ids    []string
	tags   []uint32
	err    error // ErrInvalidKey, if a key is invalid
}

// Changes returns the keys that a transaction changes, for [Write] and [Also].
func (c *Cache[K, V]) Changes(keys ...K) Changes {
	ids, err := c.naming.ids(keys)
	return Changes{writer: &c.writer, ids: ids, err: err}
}

// Write runs a transaction as [Cache.Write] does, for keys of several caches, such as a row that
// is cached by id and by name:
//
//	err := cache.Write(ctx, tx, products.Changes(42), bySlug.Changes("old", "new"))
//
// It handles the caches in parallel: several take one round trip longer than one, however many
// they are. The loader of one cache may read another of them, as a page's loader reads products.
// If any cache returns an error before tx, tx does not run. Without Changes, tx has to add all
// keys by [Also]. A Write that succeeds and has named no key is logged.
//
// If ctx is the context of another Write's tx, this Write is part of that one: it returns the
// error of its own tx, and its keys stay closed until the other Write ends, which invalidates
// them and reports whether Redis has confirmed it.
func Write(ctx context.Context, tx func(context.Context) error, changes ...Changes) (err error) {
	if tx == nil {
		return errors.New("cache: Write needs a tx")
	}
	ctx, done := beginWrite(ctx, "write", changes)
	defer func() { done(Outcome{Err: err}) }()
	if err := ready(ctx, changes, (*filter).ensure); err != nil {
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

// Also adds keys to the Write in whose tx it is called, with the context that tx got or one
// derived from it: keys that become known only there, such as the id that an INSERT makes or the
// ids of the rows that an UPDATE has found. Call it before the transaction commits.
//
//	err := cache.Write(ctx, func(ctx context.Context) error {
//		id, err := store.Insert(ctx, p) // INSERT … RETURNING id
//		if err != nil {
//			return err
//		}
//		return cache.Also(ctx, products.Changes(id), bySlug.Changes(p.Slug))
//	})
//
// When it returns nil, the filter knows the keys and they are closed to publication, as if they
// had been named to Write. (A filter of bloom.New that counts its keys counts each of them, also
// the key of a row that existed before; after such a row is deleted, its key passes until the
// next Rebuild.) As at the start of a Write, it is no error if Redis is out of reach, unless a
// filter does not confirm the keys.
//
// If Also returns an error, the transaction must not commit: ErrInvalidKey, ErrClosed, the error
// of ctx or of the filter, or that ctx is not the context of a tx, or of one that has ended. None
// matches ErrNotInvalidated. Also may be called from several goroutines; one call for many keys
// costs less than many calls.
func Also(ctx context.Context, changes ...Changes) error {
	w := writingOf(ctx)
	if w == nil {
		return errors.New("cache: Also needs the context that Write gives to its tx")
	}
	if err := ready(ctx, changes, (*filter).count); err != nil {
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

// A writing is a running Write.
type writing struct {
	outer *writing // the Write in whose tx this one was called; nil: none

	mu    sync.Mutex // guards what follows
	ended bool
	held  []held
}

// A held is a set of keys or tags that is closed to publication, and the function that opens it.
type held struct {
	Changes
	open       func(ctx context.Context, succeeded bool) error
	succeeded  bool // whether the transaction did; false until it has ended
	everything bool // all keys of the cache, see reopening
}

// first returns the first of the ids, "" if there are only tags.
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

// take adds what is held to w, whose end opens it. It returns false if w has ended.
func (w *writing) take(more []held) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.held = append(w.held, more...)
	}
	return !w.ended
}

// end ends a Write. If the Write around it is still running, that one opens the keys later.
// Otherwise end opens them and returns the error if Redis did not confirm it.
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
			all = append(all, held{Changes: c, open: func(context.Context, bool) error { return nil }})
		}
	}
	return all, eachOf(all, func(h *held) error {
		if len(h.tags) > 0 { // a value loaded during the transaction has an epoch from before the clear
			h.open = func(ctx context.Context, succeeded bool) error { return h.writer.endTags(ctx, h.tags, succeeded) }
			return nil
		}
		h.open = h.writer.hold(ctx, h.ids)
		return nil
	})
}

// openAll opens and invalidates what is held. If Redis does not confirm that after a transaction
// that failed, openAll logs it.
//
// Until then local tiers may serve values that were loaded during the transaction, and values
// with a tag are served until its clear. So if there are several caches, or tags, openAll drops the keys
// of all before it opens any, because the loader of one may read another. It clears tags once
// more then, since nothing closes values with tags to publication until all have been dropped:
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
// If a drop is not confirmed, openAll opens nothing, see reopening. If only replicas are missing, masters
// have made all drops, and it opens the keys: the reopening waits for the replicas.
func openAll(ctx context.Context, all []held, succeeded bool) (err error) {
	for i := range all {
		all[i].succeeded = succeeded
	}
	if several(all) {
		err = dropAll(ctx, all)
	}
	unconfirmed := err
	if err == nil || onlyReplicas(err) {
		err = cmp.Or(eachOf(all, func(h *held) error { return h.open(ctx, succeeded) }), err)
	} else {
		for _, h := range all {
			h.writer.tellLedger("invalidate", h.ids)
		}
	}
	if unconfirmed != nil {
		reopenLater(all, onlyReplicas(err))
	}
	if err != nil && !succeeded {
		all[0].writer.log.Warn("the invalidation after a failed write is not confirmed, and is tried again", logonce.Name("key", all[0].first()), "error", err)
	}
	return err
}

// several reports whether all is of several caches, or of tags and something else. Keys of one cache are
// opened together, however many calls have named them.
func several(all []held) bool {
	return slices.ContainsFunc(all, func(h held) bool { return h.writer != all[0].writer || len(h.tags) > 0 && len(all) > 1 })
}

// dropAll drops all values that readers may have loaded during the transaction.
func dropAll(ctx context.Context, all []held) error {
	return eachOf(all, func(h *held) error { return h.writer.drop(ctx, h) })
}

// ownerless logs for Writes that name no cache.
var ownerless = logonce.New(slog.Default(), "levee: ")

// nameless returns the log for a Write without keys.
func nameless(changes []Changes) *logonce.Log {
	if len(changes) > 0 {
		return changes[0].writer.log
	}
	return ownerless.To(slog.Default())
}

// beginWrite calls the hook of the cache that is named first.
func beginWrite(ctx context.Context, call string, changes []Changes) (context.Context, func(Outcome)) {
	if len(changes) == 0 || changes[0].writer == nil {
		return ctx, unheard
	}
	return changes[0].writer.beginWrite(ctx, call, changes[0].ids)
}

// ready adds the keys of changes to the filters, and returns an error if the transaction must not
// run or commit.
func ready(ctx context.Context, changes []Changes, learn func(*filter, context.Context, []string) error) error {
	for _, c := range changes {
		switch {
		case c.writer == nil:
			return errors.New("cache: Write and Also need Changes that Cache.Changes or Cache.Tagged has made")
		case c.writer.closed():
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
		if err := learn(c.writer.filter, ctx, c.ids); err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls do for all at the same time, and joins the errors.
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
	return joined(errs...)
}
