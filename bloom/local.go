package bloom

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
)

// A local is a filter in this process.
//
// A Rebuild fills the next table while the current one answers. A row that commits
// behind the scan's back must not be denied after the switch:
//
//  1. Add(x), before the row of x commits.
//  2. The Rebuild scans past the place of x.
//  3. The row of x commits.
//  4. The Rebuild switches to the next table.
//
// If step 1 comes during the Rebuild, the Add itself puts x into both tables. If it
// comes up to MaxTransaction before, x is in recent, which the Rebuild takes over.
//
// A Remove takes ids out of the current table only, since nobody knows whether the
// next one holds them. For the same reason Removes do nothing for MaxTransaction after
// a switch:
//
//  1. The deletion of the row of x commits.
//  2. The Rebuild scans; x is not in the next table.
//  3. The Rebuild switches.
//  4. Remove(x), at most MaxTransaction after step 1.
//
// Step 4 would clear positions that other ids need.
//
// Adds take no lock. An Add pushes to recent, and then fills next
// and current until neither has changed meanwhile. A Rebuild sets next before it reads
// recent: an Add that it does not find there finds next. An Add that it does find there may
// still be on its way into current, and must look again:
//
//  1. Add(x) finds the first table as current, the second as next, and is about to fill them.
//  2. The Rebuild switches to the second table. Another Rebuild begins a third one. It finds x
//     in recent and not in the second table, as if x had been removed. The row of x may commit
//     behind its scan.
//  3. The Add fills the first table and the second.
type local struct {
	// answering is the table that MayContain reads. Nil: the filter abstains.
	answering atomic.Pointer[table]
	o         Options // with the defaults filled in
	key       key

	_ [64]byte // keeps what Adds write off the cache line that every MayContain reads

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	recent  recent[hash]
	counts  counts
	current atomic.Pointer[table]     // nil after Close
	next    atomic.Pointer[table]     // the table that a Rebuild fills; nil: none
	settled atomic.Pointer[time.Time] // before this time Removes do nothing; set before current

	turn    chan struct{} // full while a Rebuild runs
	mu      sync.Mutex    // guards the switch against Close, and the fields below
	rebuilt time.Time     // when the last Rebuild succeeded; zero: none has since the last Invalidate
	invalid int           // how often the filter was invalidated
}

// counts holds the counters of Stats.
type counts struct{ adds, removes, rebuilds atomic.Uint64 }

// New returns a Filter for this process alone, which denies rows that other processes have
// inserted since its last Rebuild. Its errors name the option that is wrong.
func New(o Options) (*Filter, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	k, err := newLocalKey(o.Secret)
	if err != nil {
		return nil, err
	}
	o.Secret = nil
	return &Filter{newLocal(o, k), o.Name, o.Counting}, nil
}

func newLocal(o Options, k key) *local {
	made := time.Now()
	clock := func() time.Duration { return time.Since(made) }
	l := &local{o: o, key: k, turn: make(chan struct{}, 1), recent: recent[hash]{span: o.MaxTransaction, room: maxRecent, clock: clock}}
	l.life, l.end = context.WithCancelCause(context.Background())
	l.settled.Store(&time.Time{})
	l.current.Store(l.newTable())
	if o.Complete {
		l.answering.Store(l.current.Load())
	}
	return l
}

func (l *local) newTable() *table {
	return newTable(newShape(l.o.Capacity, l.o.FalsePositiveRate, newSeed()), l.key, l.o.MaxFalsePositiveRate, l.o.Counting)
}

func (l *local) mayContain(id string) bool {
	t := l.answering.Load()
	return t == nil || t.saturated.Load() || t.contains(l.key.sum(id))
}

func (l *local) mayContainMany(ids []string) []bool {
	t := l.answering.Load()
	if t == nil || t.saturated.Load() {
		return allTrue(len(ids))
	}
	return t.containsMany(l.key, ids)
}

func (l *local) add(_ context.Context, ids []string) error {
	var one [1]hash // keeps a lone hash off the heap
	return l.addHashes(l.key.appendSums(one[:0], ids))
}

func (l *local) addHashes(hashes []hash) error {
	l.recent.push(hashes)
	for filled, stable := [2]*table{}, false; !stable; {
		next, current := l.next.Load(), l.current.Load()
		if current == nil {
			return ErrClosed
		}
		failpoint.At("fill")
		for _, t := range [2]*table{next, current} {
			if t != nil && t != filled[0] && t != filled[1] {
				t.addAll(hashes)
				filled = [2]*table{filled[1], t}
			}
		}
		stable = l.next.Load() == next && l.current.Load() == current
	}
	l.counts.adds.Add(uint64(len(hashes)))
	return nil
}

// ensure adds ids, but a counting filter does not count ids that it holds. A Rebuild takes
// them over all the same.
func (l *local) ensure(_ context.Context, ids []string) error {
	hashes := l.key.appendSums(nil, ids)
	if t := l.current.Load(); t != nil && l.o.Counting && l.next.Load() == nil && !t.saturated.Load() {
		var held []hash
		hashes = slices.DeleteFunc(hashes, func(h hash) bool {
			if t.contains(h) {
				held = append(held, h)
				return true
			}
			return false
		})
		failpoint.At("held")
		l.recent.push(held)
		if l.next.Load() != nil || l.current.Load() != t { // a Rebuild has begun, perhaps before the push
			hashes = append(hashes, held...)
		}
	}
	return l.addHashes(hashes)
}

func (l *local) remove(ids []string) error {
	t := l.current.Load()
	if t == nil {
		return ErrClosed
	}
	l.counts.removes.Add(uint64(len(ids)))
	if time.Now().Before(*l.settled.Load()) {
		return nil
	}
	for _, id := range ids {
		t.remove(l.key.sum(id))
	}
	return nil
}

var errInvalidated = errors.New("bloom: the filter was invalidated during the Rebuild")

func (l *local) invalidate(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current.Load() == nil {
		return ErrClosed
	}
	l.invalid++
	l.rebuilt = time.Time{}
	l.answering.Store(nil)
	return nil
}

func (l *local) close() {
	l.end(ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.Store(nil)
	l.next.Store(nil)
	l.answering.Store(nil)
	l.recent.drop()
}

func (l *local) stats() Stats {
	s := l.counts.stats(l.o)
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Rebuilding = len(l.turn) > 0
	t := l.current.Load()
	if t == nil {
		return s
	}
	s.Complete = l.answering.Load() == t
	s.NeedsRebuild = !s.Complete
	s.Saturated = t.saturated.Load()
	s.Abstaining = !s.Complete || s.Saturated
	s.describe(t)
	return s
}

// rebuildIfOlder waits for a Rebuild that runs. Then it runs one, unless the other has succeeded,
// or the last one that succeeded ended less than age ago.
func (l *local) rebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error) {
	ctx, cancel := untilClosed(ctx, l.life)
	defer cancel()
	before := l.counts.rebuilds.Load()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
	}
	l.mu.Lock()
	rebuilt := l.rebuilt
	l.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return false, ended(ctx)
	case !rebuilt.IsZero() && (l.counts.rebuilds.Load() > before || time.Since(rebuilt) < age):
		return false, nil
	}
	err = <-contain.Go(func() error { return l.run(ctx, ids) })
	return err == nil, err
}

// run makes the next table, which Adds fill from then on, takes over the ids that were added
// within MaxTransaction before, reads ids into the table and switches to it.
func (l *local) run(ctx context.Context, ids iter.Seq2[string, error]) error {
	next, current := l.newTable(), l.current.Load()
	if current == nil {
		return ErrClosed
	}
	l.mu.Lock()
	invalid := l.invalid
	l.mu.Unlock()
	l.next.Store(next)
	defer l.next.Store(nil)
	kept, wait := l.recent.take()
	for _, h := range kept {
		if current.contains(h) { // else it was removed since, or its Add will find next
			next.add(h)
		}
	}
	if err := pause(ctx, wait); err != nil {
		return err
	}
	if err := scan(ctx, ids, l.o.Progress, func(id string) { next.add(l.key.sum(id)) }); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current.Load() == nil {
		return ErrClosed
	}
	if l.invalid != invalid { // the scan may have passed rows of which the filter was not told
		return errInvalidated
	}
	l.rebuilt = time.Now()
	settled := l.rebuilt.Add(l.o.MaxTransaction)
	l.settled.Store(&settled)
	l.current.Store(next)
	l.answering.Store(next)
	l.counts.rebuilds.Add(1)
	return nil
}
