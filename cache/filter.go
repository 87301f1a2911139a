package cache

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/cache/internal/follow"
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

// countingFilter is implemented by a Filter that may count how often a key was added, such as
// bloom.Filter.
type countingFilter interface {
	Counts() bool
}

// ageRebuilder is implemented by a Filter that is rebuilt once for all processes, such as
// bloom.Filter.
type ageRebuilder interface {
	RebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error)
}

// manyFilter is implemented by a Filter that looks up many ids faster than one after another.
type manyFilter interface {
	MayContainMany(ctx context.Context, ids []string) []bool
}

// A filter is Options.Filter as a cache uses it: what the filter can do beyond MayContain shows in its
// methods. Without an Options.Filter every key passes, and nothing is learned.
type filter struct {
	Filter
	fed *follow.Cache
	*telemetry
	bestEffort bool            // Options.FilterBestEffort
	tasks      *wait.Tasks     // of the cache, which waits for them in Close
	closing    context.Context // ends with the cache
	doubting   atomic.Bool     // compare is looking at an id that the filter denies
	last       atomic.Pointer[FilterRebuild]
}

// exists reports whether the filter, if there is one, lets the key pass.
func (f *filter) exists(ctx context.Context, id string) bool {
	return f.Filter == nil || f.passes(f.Filter.MayContain(ctx, id))
}

// passes reports whether a key passes of which the filter says that it may exist, or not. A filter that a feed
// fills lets all pass while nobody can follow it: it may be on a Redis that is well.
func (f *filter) passes(may bool) bool { return may || f.fed.Behind() }

// add adds ids of new keys to the filter, if it has an Add.
func (f *filter) add(ctx context.Context, ids []string) error {
	filter, ok := f.Filter.(adder)
	if !ok {
		return nil
	}
	return f.learned(ids, filter.Add(ctx, ids...))
}

// ensure makes sure that the filter knows ids, which it may know already.
func (f *filter) ensure(ctx context.Context, ids []string) error {
	return f.learned(ids, f.tell(ctx, ids))
}

// tell is ensure for a caller who tries again: its error is that of the filter, whatever FilterBestEffort says.
func (f *filter) tell(ctx context.Context, ids []string) error {
	switch filter := f.Filter.(type) {
	case ensurer:
		return filter.Ensure(ctx, ids...)
	case adder:
		return filter.Add(ctx, ids...)
	}
	return nil
}

// count adds ids of keys that are new, or may be. A counting filter gets an Add: Ensure would not
// count new keys that the filter takes for known ones.
func (f *filter) count(ctx context.Context, ids []string) error {
	if filter, ok := f.Filter.(countingFilter); ok && filter.Counts() {
		return f.add(ctx, ids)
	}
	return f.ensure(ctx, ids)
}

// distrust makes the filter let every key pass until it is rebuilt, if it can do that.
func (f *filter) distrust(ctx context.Context) error {
	if filter, ok := f.Filter.(invalidator); ok {
		return filter.Invalidate(ctx)
	}
	return nil
}

// deaf reports whether there is a filter that cannot be distrusted.
func (f *filter) deaf() bool {
	_, hears := f.Filter.(invalidator)
	return f.Filter != nil && !hears
}

func (f *filter) learned(ids []string, err error) error {
	switch {
	case err == nil:
		return nil
	case f.bestEffort:
		f.log.Error("the filter has not learned of a key, and may deny it until its next Rebuild", logonce.Name("key", ids[0]), "error", err)
		return nil
	}
	return fmt.Errorf("cache: filter: %w", err)
}

// doubtFor is how long a filter may deny a key that exists, because it learns the Adds of other
// processes with a delay.
const doubtFor = 5 * time.Second

// compare logs an error if the filter denies id, which exists: the key was just loaded or
// Set, or this process has its value. A filter that denies it now and again after doubtFor was
// filled with ids other than the cache's, or from a scan that has missed rows. Without the log
// line nobody would notice that existing keys are not found. It checks one id at a time.
func (f *filter) compare(ctx context.Context, id string) {
	if f.exists(ctx, id) || !f.doubting.CompareAndSwap(false, true) {
		return
	}
	if !f.tasks.Begin() { // closed
		f.doubting.Store(false)
		return
	}
	go contain.Call(func() error {
		wait.Sleep(f.closing, doubtFor)
		if f.closing.Err() == nil && !f.exists(f.closing, id) {
			f.counts.filterWrong.Add(1)
			f.log.Error("the filter denies a key that exists: fill it anew, with ids as RebuildFilter makes them", logonce.Name("key", id))
		}
		return nil
	}, func(error) { // if the user's filter panics, it does so in the next Get too
		f.doubting.Store(false)
		f.tasks.End()
	})
}
