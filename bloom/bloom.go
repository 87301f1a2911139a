// Package bloom keeps questions for what does not exist from a database. A Filter
// holds a set of ids in about ten bits each; its "no" is a promise, its "yes" is a
// maybe.
//
// # What it promises
//
// After [Filter.Add] has returned, [Filter.MayContain] says yes to that id until it is removed,
// whatever else goes on: adds, a Rebuild, a switch to its result. Of the ids that
// were never added about [Options.FalsePositiveRate] pass, as long as no more than
// [Options.Capacity] are in.
//
// A Filter that does not know abstains, which is to say yes to everything: until
// its first [Filter.Rebuild] has completed (unless [Options.Complete]), when it is so full
// that its answers are worth little, after Close, and when it is nil.
//
// Add an id before the row that bears it commits, and [Filter.Remove] it after the row's
// deletion has; then no caller is told that the row is absent while it is there. A
// Rebuild scans the rows and may miss those that commit meanwhile; what is added
// while it runs goes into its result too, and so does what was added up to
// [Options.MaxTransaction] before it began.
//
// # Shared between processes
//
// A filter made by [Open] is one filter in all processes. Redis holds it, in pieces
// together with a log of the adds; every process keeps a copy of its own, which
// MayContain asks without going to Redis, and which follows the log. What a process
// has added it finds at once. Other processes find it within [Options.MaxLag], mostly
// within milliseconds, and until then may say no; with [Options.Confirm] they do not.
//
// A shared filter abstains on every doubt: while its copy is being made, when its
// copy may be more than MaxLag behind, be it that Redis is silent or that this process
// was stopped, when the record or the log in Redis is gone or goes on elsewhere, and
// when what is stored does not add up. It then makes its copy anew by itself; but a
// filter that Redis has lost, or that is corrupt there, needs a Rebuild. So call
// Rebuild now and then; one process that does it is enough for all.
//
// A counting filter counts in Redis alone; the copies hold what is set. So they are no
// larger, and what a process has not heard of is a maybe there for as long as that
// takes.
//
// Everything in Redis is named levee:b1:{Name}, or begins with that and a colon, and
// ends by itself a week after the last process that used it. A filter of 10 M ids at
// 1 % takes 12 MB in Redis, 60 MB if it counts, as much again for a minute after a
// Rebuild, and up to 5 MB for the log.
//
// Two things are not promised. If Redis fails over to a replica that has not seen an
// add, others may deny the id until the process that added it has noticed and added
// it again, which it can for what it added within the last minute, or MaxTransaction;
// if that process is gone, until the next Rebuild. And that Redis has evicted a part,
// or somebody else has written into it, is noticed only when a copy is made; what
// somebody else has written into the counters, only where it contradicts the bits.
//
// # What it does not
//
// Without [Options.Counting], what is deleted stays in until the next Rebuild. A counting
// filter counts: an id added twice must be removed twice, and one that both a
// Rebuild and an Add near it put in is counted twice, as is one whose Add Redis was
// sent twice. That errs to yes. A Rebuild counts anew: each id as often as its ids
// yield it, whatever it was before. To Remove an id that is not in is an error of the
// caller that can make the filter say no to other ids: most such calls find that the
// id is not there and do nothing, but about FalsePositiveRate of them take away what
// others stand on. A position that was set fifteen times or more has lost count; it
// stays set until the next Rebuild.
//
// It does not hide what exists from somebody who measures how long answers take.
//
// # How it is made
//
// The size and the number of positions of an id are those of
// github.com/bits-and-blooms/bloom, for which it is measured to have the same rate
// of false positives. The positions come from a keyed hash, SipHash-2-4 with 128
// bits: with the package's own hash, ids that pass are found offline, at tens of
// thousands a second, by everybody who knows which ids exist.
//
// Bits are read without a lock while they are set. The positions of an id are
// spread over the whole table: to keep them within one cache line was measured to
// save nothing at ten million ids, and to let a quarter more absent ids pass.
package bloom

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
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

// A Filter is a set of ids that may answer yes for one that is not in it. It may
// be used concurrently. A nil *Filter says yes to everything and does nothing.
type Filter struct {
	o   Options // with the defaults filled in
	key key
	// answering is what MayContain asks, nil as long as the filter abstains.
	answering atomic.Pointer[generation]
	// shared is the whole filter if it was made by Open; what follows is then unused.
	shared *shared

	_ [64]byte // what Adds write stays off the line that every MayContain reads

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	// mu guards what follows. An Add holds it for reading until it is through,
	// so that whoever holds it for writing has no Add between two generations.
	mu      sync.RWMutex
	current *generation // nil after Close
	next    *generation // the one that a Rebuild is filling, or nil
	turn    *turn       // of the Rebuild that runs, or nil
	settled time.Time   // before that nothing is taken out of current
	number  uint64      // of the newest generation; belongs to whose turn it is

	recent   recent
	adds     atomic.Uint64
	removes  atomic.Uint64
	rebuilds atomic.Uint64
}

// New makes a Filter in this process. Its errors name the option that is wrong.
func New(o Options) (*Filter, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	k, err := newKey(o.Secret)
	if err != nil {
		return nil, err
	}
	o.Secret = nil
	f := &Filter{o: o, key: k, current: newGeneration(o, k, 0), recent: recent{span: o.MaxTransaction, room: maxBatch}}
	f.life, f.end = context.WithCancelCause(context.Background())
	if o.Complete {
		f.answering.Store(f.current)
	}
	return f, nil
}

// MayContain tells whether id may be in the set. No is certain; see the package
// documentation for what yes means. It takes no lock, waits for nothing and does
// not use ctx; but with Options.Confirm, a no of a shared filter waits for Redis, at
// most 100 ms or until ctx ends, and is a yes if it is not confirmed by then.
func (f *Filter) MayContain(ctx context.Context, id string) bool {
	if f == nil {
		return true
	}
	if f.shared != nil {
		return f.shared.mayContain(ctx, id)
	}
	g := f.answering.Load()
	if g == nil || g.saturated.Load() {
		return true
	}
	return g.contains(f.key.sum(id))
}

// Add puts ids into the set. When it returns, MayContain says yes to them. It
// fails after Close, with ErrClosed.
//
// In one process it does not use ctx and fails for no other reason. To a shared
// filter Add waits for Redis, at most a second for every 64 ids or until ctx ends.
// When it has returned nil, other processes say yes within MaxLag. When it has
// failed (ErrUnavailable, ErrParameters), some of the ids may be in and some not: do
// not commit their rows, or tell nobody.
func (f *Filter) Add(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	if f.shared != nil {
		return f.shared.add(ctx, slices.Clone(ids)) // ids itself may stay on the stack
	}
	var one [1]hash
	hashes := f.hash(one[:0], ids)

	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.current == nil {
		return ErrClosed
	}
	for _, h := range hashes {
		f.current.add(h)
		if f.next != nil {
			f.next.add(h)
		}
	}
	f.recent.push(hashes)
	f.adds.Add(uint64(len(ids)))
	return nil
}

func (f *Filter) hash(to []hash, ids []string) []hash {
	for _, id := range ids {
		to = append(to, f.key.sum(id))
	}
	return to
}

// Remove takes ids out of a counting filter, each as often as it is given; other
// filters return ErrNotCounting. After Close it returns ErrClosed. Give it only what
// was added, no more often than it was added, and within MaxTransaction of the time
// at which the row's deletion has committed.
//
// The result of a Rebuild that is running keeps the ids, and so does that of one that
// has ended less than MaxTransaction ago: it cannot be known whether the scan has seen
// their rows, and to take out of the result what is not in would break its promise to
// others. They stay until the next Rebuild.
//
// In one process it does not use ctx. On a shared filter Remove waits for Redis like
// Add, for two calls. Other processes may go on to say yes for MaxLag, and so may this
// one. When it has failed with ErrUnavailable, some of the ids may be out and some not:
// do not repeat it, since what is taken out twice takes others with it. What is still
// in stays until the next Rebuild.
func (f *Filter) Remove(ctx context.Context, ids ...string) error {
	if f == nil {
		return nil
	}
	if !f.o.Counting {
		return ErrNotCounting
	}
	if f.shared != nil {
		return f.shared.remove(ctx, slices.Clone(ids))
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.current == nil {
		return ErrClosed
	}
	f.removes.Add(uint64(len(ids)))
	if time.Now().Before(f.settled) {
		return nil
	}
	for _, id := range ids {
		f.current.remove(f.key.sum(id))
	}
	return nil
}

// Close lets the filter's memory go. It abstains from then on, and a Rebuild that
// is running ends with ErrClosed; Close does not wait for it. It waits for the other
// goroutines of a shared filter, about a second if Redis hangs. Close may be called
// again and always returns nil.
func (f *Filter) Close() error {
	if f == nil {
		return nil
	}
	if f.shared != nil {
		f.shared.close()
		return nil
	}
	f.end(ErrClosed)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current, f.next = nil, nil
	f.answering.Store(nil) // under mu: a Rebuild that ends now would bring it back
	f.recent.drop()
	return nil
}
