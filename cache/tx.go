package cache

import (
	"context"
	"errors"
	"sync"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

// Write runs tx, which changes keys in the source, so that no reader keeps what
// was there before: it tells the filter, closes the keys to publication, runs tx,
// and invalidates. Readers meanwhile load and do not publish; they share what they
// load, so what was there before tx may answer until Write returns. Should the process
// die in tx, the keys open again after Options.Rebuild.Hold.
//
// If tx fails, Write returns its error and nothing else. It invalidates all the same,
// because a transaction that reports failure may have committed; so too when tx panics
// and when ctx ends meanwhile. If tx succeeds and Redis does not confirm the
// invalidation, the error matches ErrUnavailable: the change is committed, and other
// processes may not see it yet. The invalidation is tried again until Redis confirms it.
//
// Before tx runs, Write may return ErrInvalidKey, ErrClosed, the error of ctx, or that
// of the filter. None of them matches ErrUnavailable. Redis out of reach does not keep
// tx from running, unless a shared filter does not hold one of the keys: the row would be
// denied once it exists, and Options.FilterBestEffort chooses that. A key that the filter
// holds, as that of a row that exists, needs no Redis and is not counted again. (Of new
// keys about one in a hundred, the filter's FalsePositiveRate, looks held. A counting
// filter does not count that one: [Cache.Announce] new keys to it first.)
//
// For a transaction that changes keys of several caches, see the function [Write].
func (c *Cache[K, V]) Write(ctx context.Context, keys []K, tx func(context.Context) error) error {
	return Write(ctx, tx, c.Changes(keys...))
}

// Changes are keys of one cache that a transaction changes. Make them with
// [Cache.Changes] and pass them to [Write]; they are of no other use.
type Changes struct {
	cache changing
	ids   []string
	err   error // of the keys
}

// changing is what [Write] needs of a cache, whatever its types.
type changing interface {
	closed() bool
	ensure(ctx context.Context, ids []string) error
	hold(ctx context.Context, ids []string) (end func(context.Context) error)
	beginWrite(ctx context.Context, call string, ids []string) (context.Context, func(Outcome))
	unconfirmed(ids []string, err error)
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
// The caches are dealt with side by side, so several take no longer than one. If any of
// them returns an error before tx, tx does not run.
func Write(ctx context.Context, tx func(context.Context) error, changes ...Changes) (err error) {
	if tx == nil {
		return errors.New("cache: Write needs a tx")
	}
	ctx, done := beginWrite(ctx, "write", changes)
	defer func() { done(Outcome{Err: err}) }()
	if err := ready(ctx, changes); err != nil {
		return err
	}
	lifts := make([]func(context.Context) error, len(changes))
	err = eachOf(changes, func(i int, c Changes) error {
		lifts[i] = c.cache.hold(ctx, c.ids)
		return nil
	})
	if err != nil {
		return err
	}
	succeeded := false // else tx has failed, panicked, or called Goexit
	defer func() {
		detached := context.WithoutCancel(ctx)
		unconfirmed := eachOf(changes, func(i int, c Changes) error {
			err := lifts[i](detached)
			if err != nil && !succeeded {
				c.cache.unconfirmed(c.ids, err)
			}
			return err
		})
		if succeeded {
			err = unconfirmed
		}
	}()
	err = errLeft // for the hooks, if tx does not return
	inTx, ended := beginWrite(ctx, "tx", changes)
	defer func() { ended(Outcome{Err: err}) }()
	err = tx(inTx)
	succeeded = err == nil
	return err
}

var errLeft = errors.New("cache: the transaction has panicked, or called runtime.Goexit")

// beginWrite tells the hook of the cache that is named first.
func beginWrite(ctx context.Context, call string, changes []Changes) (context.Context, func(Outcome)) {
	if len(changes) == 0 || changes[0].cache == nil {
		return ctx, unheard
	}
	return changes[0].cache.beginWrite(ctx, call, changes[0].ids)
}

// ready returns why a transaction must not run, and tells the filters of its keys.
func ready(ctx context.Context, changes []Changes) error {
	for _, c := range changes {
		switch {
		case c.cache == nil:
			return errors.New("cache: Write needs Changes that Cache.Changes has made")
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
		if err := c.cache.ensure(ctx, c.ids); err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls do for all changes at once, and joins the errors.
func eachOf(changes []Changes, do func(i int, c Changes) error) error {
	if len(changes) == 1 {
		return do(0, changes[0])
	}
	errs := make([]error, len(changes))
	var all sync.WaitGroup
	for i, c := range changes {
		all.Go(func() {
			contain.Call(func() error { return do(i, c) }, func(err error) { errs[i] = named(err) })
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *Cache[K, V]) closed() bool { return c.closing.Err() != nil }

// hold closes ids to publication until end, which invalidates them.
func (c *Cache[K, V]) hold(ctx context.Context, ids []string) (end func(context.Context) error) {
	var lift func(context.Context) error
	err := c.change(ctx, "hold", ids, func(ctx context.Context) (err error) {
		lift, err = c.fleet.Hold(ctx, ids...)
		return err
	})
	if err != nil {
		c.log.Warn("a write goes on without a hold on its keys", "error", named(err))
	}
	c.forgetLocal(ids)
	return func(ctx context.Context) error { return c.forget(ctx, ids, lift) }
}

// unconfirmed logs what a transaction that failed does not tell its caller.
func (c *Cache[K, V]) unconfirmed(ids []string, err error) {
	if len(ids) > 0 {
		c.log.Warn("the invalidation after a failed write is not confirmed, and is tried again", logonce.Name("key", ids[0]), "error", err)
	}
}
