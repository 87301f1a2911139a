// Package bloom implements Bloom filters, which tell from memory which ids cannot exist, so
// that a flood of requests for such ids reaches neither Redis nor the database. A Filter
// holds a set of ids in about ten bits each. Its "no" is certain, its "yes" is a maybe.
//
// # Guarantees
//
// After [Filter.Add] has returned, [Filter.MayContain] says yes to that id until it is
// removed: also during other adds, during a Rebuild and after the switch to its result.
// About [Options.FalsePositiveRate] of the ids that were never added pass, as long as the
// filter holds at most [Options.Capacity] ids.
//
// A Filter that cannot know abstains: it says yes to everything. It abstains
//
//   - until its first [Filter.Rebuild] has completed, unless [Options.Complete] is set,
//   - while it is fuller than [Options.MaxFalsePositiveRate] allows,
//   - after Close,
//   - when it is nil.
//
// Add an id before its row commits, and [Filter.Remove] it after the deletion of the row
// has committed: then an existing row is never reported absent. The scan of a
// Rebuild may miss rows that commit during the scan. So the result of a Rebuild also
// holds every id whose Add was called during the Rebuild or up to [Options.MaxTransaction]
// before it.
//
// # Shared between processes
//
// Filters made by [Open] with one Name on one Redis are one filter. Redis holds a log of the
// ids that were added, and a snapshot: a table that includes the log up to one of its entries.
// An Add appends to the log. A Rebuild writes a new snapshot, and so does any one process
// when the log has grown long; a snapshot never changes. Each process makes a copy from the
// snapshot and the log after it, answers MayContain from the copy without calling Redis, and
// reads the log to keep the copy up to date. A process finds its own adds at once. It finds the
// adds of other processes within [Options.MaxLag], mostly within milliseconds, and may say no
// to them until then.
//
// A shared filter also abstains whenever it is in doubt:
//
//   - while it loads its first copy,
//   - when the copy may be more than MaxLag behind, because Redis did not reply or
//     because this process was stopped,
//   - when the record is gone from Redis, or was replaced,
//   - when the log does not continue after the entry that this process read last,
//   - when a piece of the snapshot is missing or its checksum is wrong.
//
// It then loads a new copy by itself, if Redis has all that it needs. A snapshot that cannot
// be loaded is written again by any process that has a copy. A filter that Redis has lost, or
// whose log it has lost, needs a Rebuild: [Stats].NeedsRebuild says so. So call Rebuild now and
// then, in any one process, or [Filter.RebuildIfOlder] in all of them, as
// cache.Cache.KeepFilter does.
//
// A Rebuild uses the Capacity and FalsePositiveRate of the process that runs it. To resize a
// filter, Open it with new values in one process, next to processes with the old ones, and
// Rebuild it there: all processes switch to the result, and ids that any of them adds meanwhile
// are in it.
//
// Every key in Redis is levee:b2:{Name}, behind Prefix and a colon if it has one, or begins with
// that and a colon, and expires a week after the last process has used the filter. A filter of
// 10 M ids at 1 % takes 12 MB in Redis and in each process, and twice as much in Redis while a
// snapshot is written and in a process that rebuilds or loads one. A log entry takes about 40 bytes. The log holds
// the ids that were added in the last 71 s, or in MaxTransaction and 11 s if that is longer, and
// up to 131,072 entries more, or as much memory as the snapshot if that is more.
//
// # Limitations
//
//   - A failover may lose adds, and so may a Redis that loses all its data. Other processes may
//     then deny the id until the process that added it has noticed, at most MaxLag after it
//     reaches Redis, and has added it again. Each process does so for its adds of the minute
//     before it last read the log, or of MaxTransaction if that is longer, and for 131,072 of
//     them at least. If that process is gone, other processes may deny the id until the next
//     Rebuild.
//   - A failover may lose an Invalidate. A process that called it or has read of it repeats it
//     when it next reads the log. If no such process is left, all deny rows that were not added
//     until the next Rebuild.
//   - A process that still reaches the old master of a failover does not see adds at the new
//     one, and denies them for as long as that lasts.
//   - MaxLag is measured by a clock that stops while a machine or its virtual machine is
//     suspended. After that a process may be behind by as much more, until its next read.
//   - MaxTransaction is measured by Redis' clock. If that clock is set forward by as much, a
//     Rebuild may miss rows that were being committed.
//   - Damage in Redis is not noticed at once. If Redis evicts a snapshot, or somebody else
//     writes into it, processes notice when they load a copy.
//   - Deleted ids stay until the next Rebuild, unless the filter counts and they are
//     removed. Only a filter in one process can count. An id that was added twice must be
//     removed twice. An id is also counted twice when a Rebuild and an Add at about the same
//     time both put it in. Such errors only cause more yes. A Rebuild starts the counting
//     over: an id counts as often as the ids of the Rebuild yield it. A position that was set
//     fifteen times or more has lost count and stays set until the next Rebuild.
//   - A wrong Remove does harm. Removing an id that is not in the filter is an error of
//     the caller, and can make the filter say no to other ids. Most such Removes find that
//     the id is not there and do nothing, but about FalsePositiveRate of them clear
//     positions that other ids need.
//   - MayContain does not take constant time. An attacker who measures it can tell which ids
//     exist.
//
// # Implementation
//
// An id has as many positions as in github.com/bits-and-blooms/bloom. All of them are in one
// block of 512 positions, whose 64 bytes fit a cache line, so MayContain costs one access to
// memory; for the same rate of false positives the table is larger, by 4 % at 1 % and
// 8 % at 0.1 %. The positions come from a keyed hash. With the
// hash of bits-and-blooms, anybody who knows which ids exist can compute ids that pass,
// offline, at tens of thousands a second. A shared filter, and any with a Secret, uses
// SipHash-2-4 with 128 bits. A filter of one process without a Secret uses hash/maphash, which
// hardens Go's maps, with a random seed that never leaves the process: it is not a cryptographic
// hash, and takes half the time.
//
// Neither MayContain nor Add to a filter in one process takes a lock.
//
// Log and snapshot work as in Raft, or like Redis' own AOF and RDB files: the log has
// everything, and a snapshot only makes it shorter.
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

// PanicError reports that the ids of a Rebuild panicked or called runtime.Goexit, and where.
type PanicError = contain.PanicError

// A Filter is a set of ids that may say yes to an id that is not in it. It may be used
// concurrently. A nil *Filter says yes to everything and does nothing.
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

// MayContainMany calls MayContain for each of ids, but takes less time.
func (f *Filter) MayContainMany(_ context.Context, ids []string) []bool {
	if f == nil {
		return allTrue(len(ids))
	}
	return f.impl.mayContainMany(ids)
}

// Add puts ids into the set. When it returns nil, MayContain says yes to them. After
// Close it returns ErrClosed.
//
// In one process Add does not use ctx and does not fail for any other reason. In a shared
// filter Add waits for Redis, at most 1 s for every 256 ids, or 2 s if it does not know the
// filter's record yet, or until ctx ends. After Add has returned nil, other processes say yes
// within MaxLag. After it has failed (ErrUnavailable, ErrParameters), some of the ids may be
// in the set and some not: do not commit their rows.
func (f *Filter) Add(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	if l, ok := f.impl.(*local); ok {
		return l.add(ctx, ids) // not through the interface, which would move ids to the heap
	}
	return f.impl.add(ctx, cloned(ids))
}

// Ensure adds ids that may be in the set already, such as the ids of rows that are updated.
// It does not fail for an id that the filter holds, as far as this process knows, even while
// the filter abstains because Redis does not reply. It adds the other ids as Add does, with the
// same errors. A process without a copy holds no ids, so there Ensure is Add.
//
// About FalsePositiveRate of new ids look as if the filter held them. So a shared filter adds
// all ids, in one call to Redis. If the call takes over 100 ms, or the copy is more than MaxLag
// behind, Ensure does not wait for the ids that the filter holds, and the process adds them when
// it reaches Redis again. Until MaxLag after that, or until the next Rebuild if this process ends
// before, other processes may deny an id that only looked as if the filter held it.
//
// A counting filter does not count ids again that it holds, nor new ids that look so, and may
// deny these when other ids are removed. So call Add for new ids, and for ids that were removed.
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
// that other ids need. With a negative MaxTransaction it does not wait so: then call no Remove
// for a deletion that committed before the end of a Rebuild, or other ids may be denied.
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
// One Rebuild runs at a time. A second call waits for the first. If the first succeeds, the
// second returns nil without reading its own ids; if the first fails, the second runs.
//
// Rebuild reads ids on another goroutine and waits for it even after ctx has ended. It
// looks at ctx between two ids; let ids end when ctx ends. If more ids were added within
// MaxTransaction than the filter keeps (at least 131,072), Rebuild first waits until
// their rows have committed, at most MaxTransaction.
//
// In a shared filter one Rebuild runs at a time in all processes, and calls wait for one
// another as above. If a process dies during its Rebuild, the next one starts from the
// beginning after 10 s. The first Rebuild of a filter that is new, or that Redis has lost,
// waits until the filter's log is twice MaxLag and 3 s old, by default 5 s (or MaxTransaction
// and 1 s if that is less), so that every process can add again what it had added to the
// filter before. A Rebuild of a filter whose log was cut off waits until the log reaches back
// MaxTransaction and 1 s. Rebuild logs such a wait at once, at Info, with its length. Rebuild
// returns ErrUnavailable if Redis does not reply when it is needed, or loses the filter during
// the Rebuild. When Rebuild has returned nil, this process answers from the result, unless
// Redis has failed since.
func (f *Filter) Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	if f == nil {
		return nil
	}
	_, err := f.impl.rebuildIfOlder(ctx, 0, entire(ctx, ids))
	return err
}

// RebuildIfOlder runs a Rebuild if the last one that succeeded ended at least age ago, if
// there was none, or if Redis has lost the filter. In a shared filter the Rebuilds of all
// processes count, and time is Redis' clock. Otherwise RebuildIfOlder returns false and nil,
// and does not read ids. ran reports whether this call has read ids to their end and the
// filter answers from them: it is also false if another Rebuild was running and has
// succeeded. Processes that all call it now and then with one age make one Rebuild in that
// time together.
func (f *Filter) RebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error) {
	if f == nil {
		return false, nil
	}
	return f.impl.rebuildIfOlder(ctx, age, entire(ctx, ids))
}

// Invalidate makes the filter abstain until a Rebuild that begins afterwards has succeeded
// ([Stats].NeedsRebuild), and makes a Rebuild that runs fail. Call it when ids may exist that
// were not added, as after an import, or when changes of the database were missed. In a shared
// filter the other processes follow within MaxLag, and cache.Cache.KeepFilter begins a Rebuild
// within 10 s. Invalidate returns ErrUnavailable if Redis does not confirm, and ErrClosed after
// Close.
func (f *Filter) Invalidate(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f.impl.invalidate(ctx)
}

// Stats returns a snapshot of the filter's state. It does not call Redis, and waits at most
// while another call switches to a new table.
func (f *Filter) Stats() Stats {
	if f == nil {
		return Stats{Abstaining: true}
	}
	return f.impl.stats()
}

// Close frees the filter's memory. The filter abstains from then on, and a Rebuild that
// is running ends with ErrClosed; Close does not wait for it. Close waits for the other
// goroutines of a shared filter, about 1 s if Redis hangs. It may be called again
// and always returns nil.
func (f *Filter) Close() error {
	if f != nil {
		f.impl.close()
	}
	return nil
}

// cloned returns a copy of ids: a filter may keep them after the call has returned, until a
// command that is still queued is sent, or as long as they may have to be added again.
func cloned(ids []string) []string {
	clones := make([]string, len(ids))
	for i, id := range ids {
		clones[i] = strings.Clone(id)
	}
	return clones
}
