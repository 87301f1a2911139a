// Package bloom tells from memory which ids cannot exist, so that a flood of questions
// for such ids reaches neither Redis nor the database. A Filter holds a set of ids in
// about ten bits each. Its "no" is a promise, its "yes" is a maybe.
//
// # What is promised
//
// After [Filter.Add] has returned, [Filter.MayContain] says yes to that id until it is
// removed: also during other adds, during a Rebuild and after the switch to its result.
// Of the ids that were never added about [Options.FalsePositiveRate] pass, as long as
// the filter holds at most [Options.Capacity] ids.
//
// A Filter that does not know abstains: it says yes to everything. It abstains
//
//   - until its first [Filter.Rebuild] has completed, unless [Options.Complete] is set,
//   - while it is fuller than [Options.MaxFalsePositiveRate] allows,
//   - after Close,
//   - when it is nil.
//
// Add an id before its row commits, and [Filter.Remove] it after the deletion of the row
// has committed: then no caller hears that an existing row is absent. The scan of a
// Rebuild may miss rows that commit during the scan. So the result of a Rebuild also
// holds every id that was added during the Rebuild or up to [Options.MaxTransaction]
// before it.
//
// # Shared between processes
//
// Filters made by [Open] with one Name on one Redis are one filter. Redis holds the
// table, a bitmap in pieces, and a log of the newest adds. Each process has a copy of
// the table, answers MayContain from the copy without asking Redis, and reads the log to
// keep the copy up to date. A process finds its own adds at once. It finds the adds of
// other processes within [Options.MaxLag], mostly within milliseconds, and may say no to
// them until then; with [Options.Confirm] it does not.
//
// A shared filter also abstains whenever it is in doubt:
//
//   - while it loads its copy,
//   - when the copy may be more than MaxLag behind, because Redis did not answer or
//     because this process was stopped,
//   - when the record or the log is gone from Redis, or was replaced,
//   - when the table in Redis contradicts its checksums.
//
// It then loads a new copy by itself. A filter that Redis has lost, or that is corrupt
// in Redis, needs a Rebuild. So call Rebuild now and then, in any one process, or
// [Filter.RebuildIfOlder] in all of them, as cache.Cache.KeepFilter does.
//
// A shared counting filter keeps its counters in Redis only. The copies hold bits and are
// no larger than without counting. After a Remove a process says yes until it has read
// the removal in the log.
//
// Every key in Redis is levee:b1:{Name} or begins with that and a colon, and expires a
// week after the last process has used the filter. A filter of 10 M ids at 1 % takes
// 12 MB in Redis, or 60 MB if it counts. It takes twice as much for a minute after a
// Rebuild, and up to 5 MB more for the log.
//
// # What is not promised
//
//   - A failover may lose adds. If Redis fails over to a replica that has not seen an Add,
//     other processes may deny the id until the process that added it has noticed and
//     added it again. A process can do so for its adds of the last minute, or of
//     MaxTransaction if that is longer. If that process is gone, other processes may deny
//     the id until the next Rebuild.
//   - Damage in Redis is not noticed at once. If Redis evicts a piece, or somebody else
//     writes into it, processes notice when they load a copy. Damage to the counters is
//     noticed only where it contradicts the bits.
//   - Deleted ids stay until the next Rebuild, unless the filter counts and they are
//     removed. A counting filter counts: an id that was added twice must be removed twice.
//     An id is also counted twice when a Rebuild and an Add near it both put it in, and
//     when Redis got its Add twice. These errors are on the side of yes. A Rebuild starts
//     the counting over: an id counts as often as the ids of the Rebuild yield it. A
//     position that was set fifteen times or more has lost count and stays set until the
//     next Rebuild.
//   - A wrong Remove does harm. To Remove an id that is not in the filter is an error of
//     the caller, and can make the filter say no to other ids. Most such Removes find that
//     the id is not there and do nothing, but about FalsePositiveRate of them clear
//     positions that other ids need.
//   - Answers take different times. Somebody who measures them can tell which ids exist.
//
// # How it is made
//
// The number of positions, and how many of them an id has, are those of
// github.com/bits-and-blooms/bloom, and the rate of false positives was measured to be
// the same. The positions come from a keyed hash, SipHash-2-4 with 128 bits. With the
// hash of bits-and-blooms, anybody who knows which ids exist can compute ids that pass,
// offline, at tens of thousands a second.
//
// Readers take no lock while bits are set. The positions of an id are spread over the
// whole table: keeping them within one cache line was measured to save no time at ten
// million ids, and to let a quarter more absent ids pass.
package bloom

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

var (
	// ErrNotCounting reports a Remove from a filter without Options.Counting.
	ErrNotCounting = errors.New("bloom: only a counting filter can remove")
	// ErrClosed reports the use of a filter after Close.
	ErrClosed = errors.New("bloom: filter is closed")
	// ErrGoexit reports that the ids of a Rebuild ended in a runtime.Goexit.
	ErrGoexit = contain.ErrGoexit
)

// PanicError reports that the ids of a Rebuild ended in a panic, and where.
type PanicError = contain.PanicError

// A Filter is a set of ids that may answer yes for an id that is not in it. It may
// be used concurrently. A nil *Filter says yes to everything and does nothing.
type Filter struct {
	impl     filter
	name     string
	counting bool
}

// A filter is a *local, which New makes, or a *shared, which Open makes.
type filter interface {
	mayContain(ctx context.Context, id string) bool
	add(ctx context.Context, ids []string) error
	ensure(ctx context.Context, ids []string) error
	remove(ctx context.Context, ids []string) error
	rebuild(ctx context.Context, ids iter.Seq2[string, error]) error
	rebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error)
	stats() Stats
	close()
}

// Name returns [Options.Name].
func (f *Filter) Name() string {
	if f == nil {
		return ""
	}
	return f.name
}

// MayContain reports whether id may be in the set. No is certain; the package
// documentation says what yes means. MayContain takes no lock, waits for nothing and
// does not use ctx, with one exception: with Options.Confirm, a shared filter asks Redis
// before it says no. If Redis does not confirm the no within 100 ms or before ctx ends,
// the answer is yes.
func (f *Filter) MayContain(ctx context.Context, id string) bool {
	return f == nil || f.impl.mayContain(ctx, id)
}

// Add puts ids into the set. When it returns nil, MayContain says yes to them. After
// Close it returns ErrClosed.
//
// In one process Add does not use ctx and does not fail for any other reason. A shared
// filter waits for Redis, at most a second for every 64 ids (16 if it counts) or until
// ctx ends. After Add has returned nil, other processes say yes within MaxLag. After it
// has failed (ErrUnavailable, ErrParameters), some of the ids may be in and some not: do
// not commit their rows.
func (f *Filter) Add(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	if l, ok := f.impl.(*local); ok {
		return l.add(ctx, ids) // not through the interface, which would move ids to the heap
	}
	return f.impl.add(ctx, slices.Clone(ids))
}

// Ensure is Add for ids that may be in the set already, such as those of rows that are
// updated. What the filter holds, as far as this process knows, it does not count again,
// and it needs no Redis for that: also while the filter abstains because Redis does not
// answer. The other ids it adds, with the errors of Add.
//
// About FalsePositiveRate of the ids that are new look as if the filter held them. A filter
// that does not count adds them all the same, but waits for Redis only 100 ms and passes over
// its errors; an id that only looked held, whose row commits while Redis is out of reach and
// a Rebuild of another process runs, may be denied until the next Rebuild. A counting
// filter does not add them, and denies them when others are removed: give it new ids
// by Add, also ids that were removed before.
func (f *Filter) Ensure(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	return f.impl.ensure(ctx, slices.Clone(ids))
}

// Remove takes ids out of a counting filter, each as often as it is given. A filter
// that does not count returns ErrNotCounting. After Close Remove returns ErrClosed.
// Remove only ids that were added, no more often than they were added, and within
// MaxTransaction after the deletion of their row has committed.
//
// Ids that are removed during a Rebuild, or less than MaxTransaction after one, stay
// in its result until the next Rebuild. The filter cannot know whether the scan has
// seen their rows, and removing an id that the scan has not seen would clear positions
// that other ids need.
//
// In one process Remove does not use ctx. A shared filter waits for two calls to Redis,
// each bounded as in Add. This process and others may say yes for MaxLag after
// Remove has returned. After Remove has failed with ErrUnavailable, some of the ids may be
// out and some not. Do not repeat it, since an id that is removed twice takes others
// with it: what is still in stays until the next Rebuild.
func (f *Filter) Remove(ctx context.Context, ids ...string) error {
	switch {
	case f == nil:
		return nil
	case !f.counting:
		return ErrNotCounting
	}
	if l, ok := f.impl.(*local); ok {
		return l.remove(ctx, ids) // as in Add
	}
	return f.impl.remove(ctx, slices.Clone(ids))
}

// Rebuild fills a second table from ids, which must yield all ids that exist, and then
// switches to that table at once. Until then the filter answers as before, and a Rebuild
// that fails changes nothing. It fails if ids yields an error, panics (*PanicError) or
// calls Goexit (ErrGoexit), if ctx ends, and on Close (ErrClosed).
//
// One Rebuild runs at a time. A second call waits for the first. It returns nil when the
// first has succeeded, without reading its own ids, and runs itself when the first
// has failed.
//
// Rebuild reads ids on another goroutine and waits for it even after ctx has ended. It
// looks at ctx between two ids; let ids end when ctx ends. If more ids were added within
// MaxTransaction than the filter keeps (at least 131,072), Rebuild first waits until
// their rows have committed, at most MaxTransaction.
//
// Of a shared filter one Rebuild runs at a time in all processes, and calls wait for one
// another as above. If a process dies during its Rebuild, the next one starts from the
// beginning after ten seconds. Rebuild first waits until the log in Redis reaches
// back MaxTransaction, and logs at Info how long. It so also waits when the filter is new,
// because a Redis that has lost adds looks the same: by default a minute. Rebuild returns
// ErrUnavailable if Redis does not answer when it is needed, or loses the filter during the
// Rebuild. When Rebuild has returned nil, this process answers from the result, unless
// Redis has failed since.
func (f *Filter) Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	if f == nil {
		return nil
	}
	return f.impl.rebuild(ctx, ids)
}

// RebuildIfOlder is Rebuild if the last one that succeeded, of a shared filter in any
// process, ended at least age ago, by Redis' clock, or if there was none or Redis has lost
// the filter. Otherwise it returns false and nil, and does not read ids. ran says that this
// call has read ids to their end, and that the filter answers from them: it is false too
// if another Rebuild was under way and has succeeded. Processes that all call it now and
// then with one age make one Rebuild in that time together.
func (f *Filter) RebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error) {
	if f == nil {
		return false, nil
	}
	return f.impl.rebuildIfOlder(ctx, age, ids)
}

// Stats takes a snapshot. It waits at most for a switch between two generations.
func (f *Filter) Stats() Stats {
	if f == nil {
		return Stats{Abstaining: true}
	}
	return f.impl.stats()
}

// Close frees the filter's memory. The filter abstains from then on, and a Rebuild that
// is running ends with ErrClosed; Close does not wait for it. Close waits for the other
// goroutines of a shared filter, about a second if Redis hangs. It may be called again
// and always returns nil.
func (f *Filter) Close() error {
	if f != nil {
		f.impl.close()
	}
	return nil
}
