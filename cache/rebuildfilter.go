package cache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// RebuildFilter fills Options.Filter anew from keys, which must yield all keys that exist. It
// stops at the first error that keys yields. It makes the ids as the cache does: a filter that
// was filled with other ids denies keys that exist. See the filter's own Rebuild,
// bloom.Filter.Rebuild for example, for when to call it, what may run meanwhile, how long it
// waits, and its errors, which RebuildFilter returns. It also returns ErrInvalidKey and
// ErrClosed, and an error if the filter has no such method.
func (c *Cache[K, V]) RebuildFilter(ctx context.Context, keys iter.Seq2[K, error]) error {
	if c.closed() {
		return ErrClosed
	}
	return c.filter.rebuild(ctx, c.naming.seq(keys))
}

// FilterRebuild describes the last rebuild of Options.Filter that this process has run, by
// KeepFilter or RebuildFilter. It does not cover rebuilds of other processes.
type FilterRebuild struct {
	Ended time.Time     // zero: there was none
	Took  time.Duration // measured from the first key
	Keys  uint64        // number of keys that were read
	Err   string        // why it failed; "": it succeeded
}

const (
	keepLook   = 10 * time.Second // how often a process checks whether a rebuild is due
	keepJitter = 0.1
	keepPause  = time.Second // after a failure; twice as long after each further one
	keepPauses = time.Minute // the longest pause
)

// KeepFilter keeps Options.Filter filled until ctx ends, whose error it returns, or the cache is
// closed (ErrClosed). Call it on a goroutine of its own, in every process. It rebuilds the filter
// at once if no rebuild has succeeded yet, or if Redis has lost or damaged the result, which it
// checks every ten seconds; and again when the last rebuild ended longer ago than every, less up
// to a tenth. Processes that share a filter make one rebuild in that time together: one of them
// reads the keys, and if it dies another starts over. The first rebuild of a shared filter waits
// some seconds before it reads the keys, see bloom.Filter.Rebuild. Until it has ended the filter
// lets every key pass.
//
// All processes that add rows must have the filter: do not call KeepFilter while processes of an
// earlier release run without it, because a filled filter denies the rows that they add.
//
// scan returns all keys that exist, as for [Cache.RebuildFilter]; it is called for each rebuild.
// A failed rebuild changes nothing. It is logged at Error, shown in Stats.FilterRebuild, and
// tried again after a second, then after twice as long each time, up to a minute. KeepFilter does
// not rebuild sooner a filter that is full, misses rows, or was filled by a process with another
// Capacity: call RebuildFilter for that.
//
// KeepFilter returns an error at once if Options.Filter has no method RebuildIfOlder;
// bloom.Filter has one.
func (c *Cache[K, V]) KeepFilter(ctx context.Context, every time.Duration, scan func(context.Context) iter.Seq2[K, error]) error {
	if c.closed() {
		return ErrClosed
	}
	if every <= 0 || scan == nil {
		return fmt.Errorf("cache: KeepFilter: every must be positive and scan not nil, got %v", every)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	return c.filter.keep(ctx, every, func(yield func(string, error) bool) { c.naming.seq(scan(ctx))(yield) })
}

// keep checks whether a rebuild is due, and runs it with ids, until ctx ends, whose cause it returns.
func (f *filter) keep(ctx context.Context, every time.Duration, ids iter.Seq2[string, error]) error {
	filter, ok := f.Filter.(ageRebuilder)
	if !ok {
		return errors.New("cache: KeepFilter: Options.Filter is nil or has no method RebuildIfOlder")
	}
	age, retries := jittered(every, keepJitter), wait.Backoff{First: min(keepPause, every), Max: min(keepPauses, every)}
	for ctx.Err() == nil {
		ran := false
		err := f.noting(ids, func(ids iter.Seq2[string, error]) (err error) {
			ran, err = filter.RebuildIfOlder(ctx, age, ids)
			return err
		})
		switch {
		case err == nil:
			if ran {
				age = jittered(every, keepJitter)
			}
			retries.Reset()
			wait.Sleep(ctx, wait.Jitter(min(keepLook, every/10), 0.25))
		case ctx.Err() == nil:
			f.log.Error("the filter was not rebuilt, and is tried again", "error", err)
			retries.Sleep(ctx)
		}
	}
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return wait.Ended(ctx)
}

// rebuild fills the filter anew with ids.
func (f *filter) rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	filter, ok := f.Filter.(rebuilder)
	if !ok {
		return errors.New("cache: RebuildFilter: Options.Filter is nil or has no method Rebuild")
	}
	return f.noting(ids, func(ids iter.Seq2[string, error]) error { return filter.Rebuild(ctx, ids) })
}

// noting calls run, which rebuilds the filter, with ids, and stores the outcome.
func (f *filter) noting(ids iter.Seq2[string, error], run func(iter.Seq2[string, error]) error) error {
	var begun time.Time
	var last FilterRebuild
	err := run(func(yield func(string, error) bool) {
		begun = time.Now()
		for id, err := range ids {
			if !yield(id, err) || err != nil {
				return
			}
			last.Keys++
		}
	})
	if err != nil {
		err = fmt.Errorf("cache: filter: %w", err)
		last.Err = err.Error()
	}
	if !begun.IsZero() { // else another process has read the keys, or nobody has
		last.Ended = time.Now()
		last.Took = last.Ended.Sub(begun)
		f.last.Store(&last)
	}
	return err
}

func (f *filter) lastRebuild() FilterRebuild {
	if last := f.last.Load(); last != nil {
		return *last
	}
	return FilterRebuild{}
}
