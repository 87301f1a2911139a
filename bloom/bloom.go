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
// has committed: then an existing row is never reported absent. The scan of a
// Rebuild may miss rows that commit during the scan. So the result of a Rebuild also
// holds every id that was added during the Rebuild or up to [Options.MaxTransaction]
// before it.
//
// # Shared between processes
//
// Filters made by [Open] with one Name on one Redis are one filter. Redis holds a log of
// what was added, and a snapshot: a table, and the entry of the log up to which it goes.
// An Add appends to the log. A Rebuild writes a new snapshot, and so does any one process
// when the log has grown long; a snapshot never changes. Each process has a copy, made from
// the snapshot and the log since, answers MayContain from it without calling Redis, and reads
// the log to keep it up to date. A process finds its own adds at once. It finds the adds
// of other processes within [Options.MaxLag], mostly within milliseconds, and may say no to
// them until then.
//
// A shared filter also abstains whenever it is in doubt:
//
//   - while it loads its first copy,
//   - when the copy may be more than MaxLag behind, because Redis did not answer or
//     because this process was stopped,
//   - when the record is gone from Redis, or was replaced,
//   - when the log does not go on where this process has read it to,
//   - when a piece of the snapshot is missing or its checksum is wrong.
//
// It then loads a new copy by itself, if Redis has all that it takes. A snapshot that cannot
// be loaded is written again by any process that has a copy. A filter that Redis has lost, or
// whose log it has lost, needs a Rebuild: [Stats].NeedsRebuild says so. So call Rebuild now and
// then, in any one process, or [Filter.RebuildIfOlder] in all of them, as
// cache.Cache.KeepFilter does.
//
// Capacity and FalsePositiveRate are those of the process that makes a Rebuild. To resize a
// filter, Open it with others, beside processes that have the old ones, and Rebuild it there:
// all processes go over to the result, and ids that any of them adds meanwhile are in it.
//
// Every key in Redis is levee:b2:{Name} or begins with that and a colon, and expires a
// week after the last process has used the filter. A filter of 10 M ids at 1 % takes
// 12 MB in Redis and in each process, and twice as much in Redis while a snapshot is written
// and in a process that rebuilds or loads one. An
// entry of the log takes about 40 bytes. The log holds what was added in the last 71 s, or in
// MaxTransaction and 11 s if that is longer, and up to 131,072 entries more, or as much memory
// as the snapshot if that is more.
//
// # What is not promised
//
//   - A failover may lose adds, and so may a Redis that loses all its data. Other processes may
//     then deny the id until the process that added it has noticed, which takes it at
//     most MaxLag once it reaches Redis, and has added it again. It does so for its adds of the
//     minute before it last read the log, or of MaxTransaction if that is longer, and for
//     131,072 of them at least. If that process is gone, other processes may deny the id until
//     the next Rebuild.
//   - A process that still reaches the old master of a failover does not learn of adds at the new
//     one, and denies them for as long as that lasts.
//   - MaxLag is measured by a clock that stops while a machine or its virtual machine is
//     suspended. After that a process may be behind by as much more, until its next read.
//   - MaxTransaction is measured by Redis' clock. If that is put forward by as much, a Rebuild
//     may miss rows that were being committed.
//   - Damage in Redis is not noticed at once. If Redis evicts a snapshot, or somebody else
//     writes into it, processes notice when they load a copy.
//   - Deleted ids stay until the next Rebuild, unless the filter counts and they are
//     removed. Only a filter in one process can count. An id that was added twice must be
//     removed twice. An id is also counted twice when a Rebuild and an Add near it both put
//     it in. These errors are on the side of yes. A Rebuild starts the counting over: an id
//     counts as often as the ids of the Rebuild yield it. A position that was set fifteen
//     times or more has lost count and stays set until the next Rebuild.
//   - A wrong Remove does harm. To Remove an id that is not in the filter is an error of
//     the caller, and can make the filter say no to other ids. Most such Removes find that
//     the id is not there and do nothing, but about FalsePositiveRate of them clear
//     positions that other ids need.
//   - Answers take different times. Somebody who measures them can tell which ids exist.
//
// # How it is made
//
// How many positions an id has is as in github.com/bits-and-blooms/bloom. All of them lie in
// one block of 512, in 64 bytes that fit a cache line, so a question costs one access
// to memory; for the same rate of false positives the table is larger, by 4 % at 1 % and
// 8 % at 0.1 %. The positions come from a keyed hash, SipHash-2-4 with 128 bits. With the
// hash of bits-and-blooms, anybody who knows which ids exist can compute ids that pass,
// offline, at tens of thousands a second.
//
// Questions take no lock. Adds of a filter in one process take none while they set bits.
//
// Log and snapshot are what Raft and Redis' own AOF and RDB files do: what matters is in
// the log, and a snapshot only makes it shorter.
package bloom

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

var (
	// ErrNotCounting reports a Remove from a filter without Options.Counting.
	ErrNotCounting = errors.New("bloom: only a counting filter can remove")
	// ErrClosed reports the use of a filter after Close.
	ErrClosed = errors.New("bloom: filter is closed")
)

// PanicError reports that the ids of a Rebuild ended in a panic or a runtime.Goexit, and where.
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
	mayContain(id string) bool
	mayContainMany(ids []string) []bool
	add(ctx context.Context, ids []string) error
	ensure(ctx context.Context, ids []string) error
	rebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error)
	invalidate(ctx context.Context) error
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
// does not use ctx.
func (f *Filter) MayContain(_ context.Context, id string) bool {
	return f == nil || f.impl.mayContain(id)
}

// MayContainMany is MayContain for each of ids, in less time.
func (f *Filter) MayContainMany(_ context.Context, ids []string) []bool {
	if f == nil {
		return allTrue(len(ids))
	}
	return f.impl.mayContainMany(ids)
}

// Add puts ids into the set. When it returns nil, MayContain says yes to them. After
// Close it returns ErrClosed.
//
// In one process Add does not use ctx and does not fail for any other reason. A shared
// filter waits for Redis, at most a second for every 256 ids, or two if it does not know the
// filter's record yet, or until ctx ends. After Add has returned nil, other processes say yes within MaxLag. After it
// has failed (ErrUnavailable, ErrParameters), some of the ids may be in and some not: do
// not commit their rows.
func (f *Filter) Add(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	if l, ok := f.impl.(*local); ok {
		return l.add(ctx, ids) // not through the interface, which would move ids to the heap
	}
	return f.impl.add(ctx, cloned(ids))
}

// Ensure is Add for ids that may be in the set already, such as those of rows that are
// updated. It does not fail for an id that the filter holds, as far as this process knows:
// also while the filter abstains because Redis does not answer. The other ids it adds, with
// the errors of Add. A process without a copy holds nothing, so there Ensure is Add.
//
// About FalsePositiveRate of the ids that are new look as if the filter held them. So a shared
// filter adds all of them, in one call to Redis. If it has waited 100 ms in vain for those that it
// holds, or is more than MaxLag behind, it returns, and adds them when it reaches Redis again.
// Other processes may deny an id that only looked held until MaxLag after that, or until the
// next Rebuild if this process ends before.
//
// A counting filter does not count again what it holds, nor new ids that look held, and denies
// those when others are removed: give it new ids by Add, also ids that were removed before.
func (f *Filter) Ensure(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	return f.impl.ensure(ctx, cloned(ids))
}

// Counts returns [Options.Counting].
func (f *Filter) Counts() bool { return f != nil && f.counting }

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
// Remove waits for nothing and does not use ctx.
func (f *Filter) Remove(_ context.Context, ids ...string) error {
	switch {
	case f == nil:
		return nil
	case !f.counting:
		return ErrNotCounting
	}
	return f.impl.(*local).remove(ids) // a shared filter does not count
}

// Rebuild fills a second table from ids, which must yield all ids that exist, and then
// switches to that table at once. Until then the filter answers as before, and a Rebuild
// that fails changes nothing. It fails if ids yields an error, panics or
// calls Goexit (*PanicError), if ctx ends, and on Close (ErrClosed).
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
// beginning after ten seconds. The first Rebuild of a filter that is new, or that Redis has
// lost, waits until the filter's log is as old as twice MaxLag and three seconds, by default 5 s
// (or MaxTransaction if that is less), so that every process can add again what it
// had added to the filter before; one whose log was cut off waits until it reaches back
// MaxTransaction and a second. Rebuild logs at Info at once that it waits, and how long. Rebuild returns
// ErrUnavailable if Redis does not answer when it is needed, or loses the filter during the
// Rebuild. When Rebuild has returned nil, this process answers from the result, unless
// Redis has failed since.
func (f *Filter) Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	if f == nil {
		return nil
	}
	_, err := f.impl.rebuildIfOlder(ctx, 0, entire(ctx, ids))
	return err
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
	return f.impl.rebuildIfOlder(ctx, age, entire(ctx, ids))
}

// Invalidate says that ids may exist of which the filter was not told, as after an import, or when
// changes of the database were missed: the filter abstains until a Rebuild that begins afterwards has
// succeeded ([Stats].NeedsRebuild), and a Rebuild that runs fails. Of a shared filter other processes
// follow within MaxLag, and cache.Cache.KeepFilter begins a Rebuild within ten seconds. It returns
// ErrUnavailable if Redis does not confirm, and ErrClosed.
func (f *Filter) Invalidate(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f.impl.invalidate(ctx)
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

// cloned copies ids: a filter may hold them after the caller's call has ended, until a command
// that was left behind is sent, or while they may have to be added again.
func cloned(ids []string) []string {
	clones := make([]string, len(ids))
	for i, id := range ids {
		clones[i] = strings.Clone(id)
	}
	return clones
}
