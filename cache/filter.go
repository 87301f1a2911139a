package cache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// adder is implemented by a Filter that learns new keys, such as bloom.Filter.
type adder interface {
	Add(ctx context.Context, ids ...string) error
}

// ensurer is implemented by a Filter that learns keys which it may already know.
type ensurer interface {
	Ensure(ctx context.Context, ids ...string) error
}

// rebuilder is implemented by a Filter that can be filled anew, such as bloom.Filter.
type rebuilder interface {
	Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error
}

// invalidator is implemented by a Filter that can be told that it may deny existing keys, such as
// bloom.Filter: it then lets every key pass until its next rebuild.
type invalidator interface {
	Invalidate(ctx context.Context) error
}

// manyFilter is implemented by a Filter that looks up many ids faster than one after another.
type manyFilter interface {
	MayContainMany(ctx context.Context, ids []string) []bool
}

// exists reports whether the filter, if there is one, lets the key pass.
func (c *Cache[K, V]) exists(ctx context.Context, id string) bool {
	return c.o.Filter == nil || c.o.Filter.MayContain(ctx, id)
}

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
	filter, ok := c.o.Filter.(rebuilder)
	if !ok {
		return errors.New("cache: RebuildFilter: Options.Filter is nil or has no method Rebuild")
	}
	return c.rebuildFilter(func(ids iter.Seq2[string, error]) error { return filter.Rebuild(ctx, ids) }, keys)
}

// announce adds ids of new keys to the filter, if it has an Add.
func (c *Cache[K, V]) announce(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(adder)
	if !ok {
		return nil
	}
	return c.learned(ids, filter.Add(ctx, ids...))
}

// ensure makes sure that the filter knows ids, which it may know already.
func (c *Cache[K, V]) ensure(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(ensurer)
	if !ok {
		return c.announce(ctx, ids)
	}
	return c.learned(ids, filter.Ensure(ctx, ids...))
}

// countingFilter is implemented by a Filter that may count how often a key was added, such as
// bloom.Filter.
type countingFilter interface {
	Counts() bool
}

// count adds ids of keys that are new, or may be. A counting filter gets an Add: Ensure would not
// count new keys that the filter takes for known ones.
func (c *Cache[K, V]) count(ctx context.Context, ids []string) error {
	if filter, ok := c.o.Filter.(countingFilter); ok && filter.Counts() {
		return c.announce(ctx, ids)
	}
	return c.ensure(ctx, ids)
}

// distrust makes the filter let every key pass until it is rebuilt. It reports deaf if there is a
// filter that cannot do that.
func (c *Cache[K, V]) distrust(ctx context.Context) (deaf bool, err error) {
	filter, ok := c.o.Filter.(invalidator)
	if !ok {
		return c.o.Filter != nil, nil
	}
	if err := filter.Invalidate(ctx); err != nil {
		return false, fmt.Errorf("cache: filter: %w", err)
	}
	return false, nil
}

func (c *Cache[K, V]) learned(ids []string, err error) error {
	switch {
	case err == nil:
		return nil
	case c.o.FilterBestEffort:
		c.log.Error("the filter has not learned of a key, and may deny it until its next Rebuild", logonce.Name("key", ids[0]), "error", err)
		return nil
	}
	return fmt.Errorf("cache: filter: %w", err)
}

// doubtFor is how long a filter may deny a key that exists, because it learns the Adds of other
// processes with a delay.
const doubtFor = 5 * time.Second

// compareKept calls compareFilter for a key that the filter has denied, if this process has kept
// a value of it that is within its TTL.
func (c *Cache[K, V]) compareKept(ctx context.Context, key K, id string) {
	if e := c.keptEntry(key); e != nil && !e.past(time.Now()) {
		c.compareFilter(ctx, id)
	}
}

// compareFilter logs an error if the filter denies id, which exists: the key was just loaded or
// Set, or this process has its value. A filter that denies it now and again after doubtFor was
// filled with ids other than the cache's, or from a scan that has missed rows. Without the log
// line nobody would notice that existing keys are not found. It checks one id at a time.
func (c *Cache[K, V]) compareFilter(ctx context.Context, id string) {
	if c.o.Filter == nil || c.o.Filter.MayContain(ctx, id) || !c.doubting.CompareAndSwap(false, true) {
		return
	}
	if !c.loading.Begin() { // closed
		c.doubting.Store(false)
		return
	}
	go contain.Call(func() error {
		wait.Sleep(c.closing, doubtFor)
		if !c.closed() && !c.o.Filter.MayContain(c.closing, id) {
			c.counts.filterWrong.Add(1)
			c.log.Error("the filter denies a key that exists: fill it anew, with ids as RebuildFilter makes them", logonce.Name("key", id))
		}
		return nil
	}, func(error) { // if the user's filter panics, it does so in the next Get too
		c.doubting.Store(false)
		c.loading.End()
	})
}

// ageRebuilder is implemented by a Filter that is rebuilt once for all processes, such as
// bloom.Filter.
type ageRebuilder interface {
	RebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error)
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
	filter, ok := c.o.Filter.(ageRebuilder)
	switch {
	case c.closed():
		return ErrClosed
	case !ok:
		return errors.New("cache: KeepFilter: Options.Filter is nil or has no method RebuildIfOlder")
	case every <= 0 || scan == nil:
		return fmt.Errorf("cache: KeepFilter: every must be positive and scan not nil, got %v", every)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	c.keepFilter(ctx, filter, every, scan)
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return wait.Ended(ctx)
}

// keepFilter checks whether a rebuild is due, and runs it, until ctx ends.
func (c *Cache[K, V]) keepFilter(ctx context.Context, filter ageRebuilder, every time.Duration, scan func(context.Context) iter.Seq2[K, error]) {
	age, retries := jittered(every, keepJitter), wait.Backoff{First: min(keepPause, every), Max: min(keepPauses, every)}
	for ctx.Err() == nil {
		ran := false
		err := c.rebuildFilter(func(ids iter.Seq2[string, error]) (err error) {
			ran, err = filter.RebuildIfOlder(ctx, age, ids)
			return err
		}, func(yield func(K, error) bool) { scan(ctx)(yield) })
		switch {
		case err == nil:
			if ran {
				age = jittered(every, keepJitter)
			}
			retries.Reset()
			wait.Sleep(ctx, wait.Jitter(min(keepLook, every/10), 0.25))
		case ctx.Err() == nil:
			c.log.Error("the filter was not rebuilt, and is tried again", "error", err)
			retries.Sleep(ctx)
		}
	}
}

// rebuildFilter calls run, which rebuilds the filter, with the ids of keys, and stores the
// outcome.
func (c *Cache[K, V]) rebuildFilter(run func(ids iter.Seq2[string, error]) error, keys iter.Seq2[K, error]) error {
	var begun time.Time
	var last FilterRebuild
	err := run(func(yield func(string, error) bool) {
		begun = time.Now()
		for key, err := range keys {
			id := ""
			if err == nil {
				id, err = c.id(key)
			}
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
		c.filterRebuild.Store(&last)
	}
	return err
}

func (c *Cache[K, V]) lastFilterRebuild() FilterRebuild {
	if last := c.filterRebuild.Load(); last != nil {
		return *last
	}
	return FilterRebuild{}
}
