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

// adder is what a Filter has that learns of new keys, as bloom.Filter does.
type adder interface {
	Add(ctx context.Context, ids ...string) error
}

// ensurer is what a Filter has that learns of keys which it may know already.
type ensurer interface {
	Ensure(ctx context.Context, ids ...string) error
}

// rebuilder is what a Filter has that can be filled anew, as bloom.Filter does.
type rebuilder interface {
	Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error
}

// invalidator is what a Filter has that can be told that it may deny keys which exist, as bloom.Filter has.
type invalidator interface {
	Invalidate(ctx context.Context) error
}

// manyFilter is what a Filter has that answers for many ids in less time than for each.
type manyFilter interface {
	MayContainMany(ctx context.Context, ids []string) []bool
}

// exists reports whether a key may exist, as far as the filter knows.
func (c *Cache[K, V]) exists(ctx context.Context, id string) bool {
	return c.o.Filter == nil || c.o.Filter.MayContain(ctx, id)
}

// RebuildFilter fills Options.Filter anew from keys, which must yield all keys that exist,
// and ends with the first error that they yield. It makes the ids as the cache does: a
// filter that was filled with others denies keys that exist. The rest is as for the
// filter's own Rebuild, bloom.Filter.Rebuild for example, whose errors it returns: when to
// call it, what else runs meanwhile, and how long it waits. A filter without that method
// is an error. RebuildFilter also returns ErrInvalidKey and ErrClosed.
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

// announce adds ids of new keys to the filter, if it is one that learns.
func (c *Cache[K, V]) announce(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(adder)
	if !ok {
		return nil
	}
	return c.learned(ids, filter.Add(ctx, ids...))
}

// ensure has the filter know ids of keys that may be new.
func (c *Cache[K, V]) ensure(ctx context.Context, ids []string) error {
	filter, ok := c.o.Filter.(ensurer)
	if !ok {
		return c.announce(ctx, ids)
	}
	return c.learned(ids, filter.Ensure(ctx, ids...))
}

// countingFilter is what a Filter has that may count how often a key was added, as bloom.Filter does.
type countingFilter interface {
	Counts() bool
}

// count has the filter know ids of keys that are new, or may be: a filter that counts would
// pass over the new ones among those that look held.
func (c *Cache[K, V]) count(ctx context.Context, ids []string) error {
	if filter, ok := c.o.Filter.(countingFilter); ok && filter.Counts() {
		return c.announce(ctx, ids)
	}
	return c.ensure(ctx, ids)
}

// distrust has the filter abstain until it is rebuilt. It reports whether there is a filter that cannot.
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

// doubtFor is for how long a filter may deny a key that exists, because it learns of the
// Adds of other processes with a delay.
const doubtFor = 5 * time.Second

// compareKept is [Cache.compareFilter] for a key that the filter has denied, if this process
// has kept a value of it that is within its TTL.
func (c *Cache[K, V]) compareKept(ctx context.Context, key K, id string) {
	if e := c.keptEntry(key); e != nil && !e.past(time.Now()) {
		c.compareFilter(ctx, id)
	}
}

// compareFilter is called with the id of a key that exists: it was just loaded or Set,
// or this process has its value. A filter that denies it, now and doubtFor later, was filled
// with ids that are not those of the cache, or from a scan that has missed rows. Then keys
// that exist are not found, and nobody would be told. One id at a time is looked at.
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
	}, func(error) { // of the user's filter, which panics in the next Get too
		c.doubting.Store(false)
		c.loading.End()
	})
}

// ageRebuilder is what a Filter has that is rebuilt once for all processes, as bloom.Filter is.
type ageRebuilder interface {
	RebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error)
}

// FilterRebuild is what is known of the last rebuild of Options.Filter that this process
// has run, by KeepFilter or RebuildFilter. Those of other processes are not in it.
type FilterRebuild struct {
	Ended time.Time     // zero: there was none
	Took  time.Duration // from the first key on
	Keys  uint64        // that were read
	Err   string        // why it failed; "": it did not
}

const (
	keepLook   = 10 * time.Second // how often a process looks whether a rebuild is due
	keepJitter = 0.1
	keepPause  = time.Second // after a failure; twice as long after each further one
	keepPauses = time.Minute // the longest
)

// KeepFilter keeps Options.Filter filled until ctx ends, whose error it returns, or the
// cache is closed (ErrClosed). Call it on a goroutine of its own, in every process. It
// rebuilds the filter at once if no rebuild has succeeded yet, or if Redis has lost or
// damaged its result, which is looked for every ten seconds, and again when the last one
// ended every ago, less up to a tenth of that. Processes that share a filter make one rebuild
// in that time together: one of them reads the keys, and if it dies another starts over. The
// first rebuild of a shared filter waits some seconds before it reads the keys, see
// bloom.Filter.Rebuild. Until it has ended the filter lets every key pass.
//
// All processes that add rows must have the filter: do not call KeepFilter while processes of
// an earlier release run without it, whose rows a filter that is filled denies.
//
// scan gives all keys that exist, as for [Cache.RebuildFilter], and is called for each
// rebuild. A rebuild that fails changes nothing. It is logged at Error, shown in
// Stats.FilterRebuild, and tried again after a second, then after twice as long each time,
// up to a minute. A filter that is full, misses rows, or was filled by a process with another
// Capacity is not rebuilt sooner: call RebuildFilter for that.
//
// KeepFilter returns an error at once if Options.Filter cannot do this, which
// bloom.Filter can.
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

// keepFilter looks whether a rebuild is due, and runs it, until ctx ends.
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

// rebuildFilter has run rebuild the filter from the ids of keys, and notes what came of it.
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
