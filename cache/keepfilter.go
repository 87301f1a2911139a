package cache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

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
// rebuilds the filter at once if no rebuild has succeeded yet or Redis has lost its result,
// which is looked for every ten seconds, and again when the last one ended every ago, less
// up to a tenth of that. Processes that share a filter make one rebuild in that time
// together: one of them reads the keys, and if it dies another starts over.
//
// scan gives all keys that exist, as for [Cache.RebuildFilter], and is called for each
// rebuild. A rebuild that fails changes nothing. It is logged at Error, shown in
// Stats.FilterRebuild, and tried again after a second, then after twice as long each time,
// up to a minute. A filter that is full, corrupt in Redis, or misses rows is not rebuilt
// sooner: call RebuildFilter for that.
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
	age, pause := jittered(every, keepJitter), keepPause
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
			pause = keepPause
			wait.Sleep(ctx, wait.Jitter(min(keepLook, every/10), 0.25))
		case ctx.Err() == nil:
			c.log.Error("the filter was not rebuilt, and is tried again", "error", err)
			wait.Sleep(ctx, wait.Jitter(min(pause, every), 0.25))
			pause = min(2*pause, keepPauses)
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
