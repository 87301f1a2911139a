package bloom

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

// A local is a filter in this process.
//
// A Rebuild fills the next generation while the current one answers. A row that commits
// behind the scan's back must not be denied after the switch:
//
//  1. Add(x), before the row of x commits.
//  2. The Rebuild scans past the place of x.
//  3. The row of x commits.
//  4. The Rebuild switches to the next generation.
//
// If step 1 comes during the Rebuild, the Add itself puts x into both generations. If it
// comes up to MaxTransaction before, x is in recent, which the Rebuild takes over.
//
// A Remove takes ids out of the current generation only, since nobody knows whether the
// next one holds them. For the same reason Removes do nothing for MaxTransaction after
// a switch:
//
//  1. The deletion of the row of x commits.
//  2. The Rebuild scans; x is not in the next generation.
//  3. The Rebuild switches.
//  4. Remove(x), at most MaxTransaction after step 1.
//
// Step 4 would clear positions that other ids need.
type local struct {
	o   Options // with the defaults filled in
	key key
	// answering is the generation that MayContain asks. Nil: the filter abstains.
	answering atomic.Pointer[generation]

	_ [64]byte // keeps what Adds write off the cache line that every MayContain reads

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	recent recent
	counts counts
	number uint64 // of the newest generation; only the goroutine of the flight uses it

	// mu guards the fields below. An Add holds it for reading until the ids are in all
	// generations and in recent: under the write lock no Add is halfway.
	mu      sync.RWMutex
	current *generation // nil after Close
	next    *generation // the one that a Rebuild fills; nil: none
	flight  *flight     // the Rebuild that runs; nil: none
	rebuilt time.Time   // when the last Rebuild succeeded; zero: none has
	settled time.Time   // before this time Removes do nothing
}

// counts are the calls that a filter has seen.
type counts struct{ adds, removes, rebuilds atomic.Uint64 }

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
	return &Filter{newLocal(o, k), o.Name, o.Counting}, nil
}

func newLocal(o Options, k key) *local {
	l := &local{o: o, key: k, current: newGeneration(o, k, 0), recent: recent{span: o.MaxTransaction, room: maxBatch}}
	l.life, l.end = context.WithCancelCause(context.Background())
	if o.Complete {
		l.answering.Store(l.current)
	}
	return l
}

func (l *local) mayContain(_ context.Context, id string) bool {
	g := l.answering.Load()
	return g == nil || g.saturated.Load() || g.contains(l.key.sum(id))
}

func (l *local) add(_ context.Context, ids []string) error {
	var one [1]hash // keeps a lone hash off the heap
	hashes := l.key.appendSums(one[:0], ids)

	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.current == nil {
		return ErrClosed
	}
	for _, h := range hashes {
		l.current.add(h)
		if l.next != nil {
			l.next.add(h)
		}
	}
	l.recent.push(hashes)
	l.counts.adds.Add(uint64(len(ids)))
	return nil
}

// ensure adds each id to the generations that do not hold it.
func (l *local) ensure(ctx context.Context, ids []string) error {
	if !l.o.Counting {
		return l.add(ctx, ids)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.current == nil {
		return ErrClosed
	}
	for _, h := range l.key.appendSums(nil, ids) {
		held := l.current.contains(h) && !l.current.saturated.Load()
		if !held {
			l.current.add(h)
			l.recent.push([]hash{h})
			l.counts.adds.Add(1)
		}
		if l.next != nil && !(held && l.next.contains(h)) {
			l.next.add(h)
		}
	}
	return nil
}

func (l *local) remove(_ context.Context, ids []string) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.current == nil {
		return ErrClosed
	}
	l.counts.removes.Add(uint64(len(ids)))
	if time.Now().Before(l.settled) {
		return nil
	}
	for _, id := range ids {
		l.current.remove(l.key.sum(id))
	}
	return nil
}

func (l *local) close() {
	l.end(ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.next = nil, nil
	l.answering.Store(nil) // under mu: a Rebuild that ends now stores its result under mu too
	l.recent.drop()
}

func (l *local) stats() Stats {
	s := l.counts.stats(l.o)
	l.mu.RLock()
	defer l.mu.RUnlock()
	s.Rebuilding = l.flight != nil
	g := l.current
	if g == nil {
		return s
	}
	s.Complete = l.answering.Load() == g
	s.NeedsRebuild = !s.Complete
	s.Saturated = g.saturated.Load()
	s.Abstaining = !s.Complete || s.Saturated
	s.describe(g)
	return s
}

// A flight is one Rebuild. Calls that join it wait for its end.
type flight struct {
	done chan struct{} // closed at the end
	err  error         // of the Rebuild; written before done is closed, read after
}

// rebuildIfOlder is rebuild unless one has ended less than age ago.
func (l *local) rebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error) {
	l.mu.RLock()
	fresh := !l.rebuilt.IsZero() && time.Since(l.rebuilt) < age
	l.mu.RUnlock()
	if fresh {
		return false, nil
	}
	err = l.rebuild(ctx, func(yield func(string, error) bool) {
		ran = true
		ids(yield)
	})
	return ran && err == nil, err
}

func (l *local) rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	ctx, cancel := untilClosed(ctx, l.life)
	defer cancel()
	for {
		f, joined := l.join()
		if !joined {
			f.err = <-contain.Go(func() error { return l.run(ctx, ids) })
			l.finish(f)
			return f.err
		}
		select {
		case <-f.done:
			if f.err == nil {
				return nil
			}
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// join returns the flight that runs, or a new one that the caller has to run and
// finish.
func (l *local) join() (f *flight, joined bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight != nil {
		return l.flight, true
	}
	l.flight = &flight{done: make(chan struct{})}
	return l.flight, false
}

// finish ends a flight. A next generation that did not become current goes with it.
func (l *local) finish(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.flight = nil, nil
	close(f.done)
}

func (l *local) run(ctx context.Context, ids iter.Seq2[string, error]) error {
	next, err := l.begin(ctx)
	if err != nil {
		return err
	}
	if err := scan(ctx, ids, l.o.Progress, func(id string) { next.add(l.key.sum(id)) }); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current == nil {
		return ErrClosed
	}
	l.current, l.rebuilt = next, time.Now()
	l.settled = l.rebuilt.Add(l.o.MaxTransaction)
	l.answering.Store(next)
	l.counts.rebuilds.Add(1)
	return nil
}

// begin makes the next generation, into which Adds go from now on, and takes over what
// was added within MaxTransaction before.
func (l *local) begin(ctx context.Context) (*generation, error) {
	l.number++
	next := newGeneration(l.o, l.key, l.number)

	l.mu.Lock() // no Add is halfway: each is in recent, or will see next
	current := l.current
	if current == nil {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	l.next = next
	kept, wait := l.recent.take()
	l.mu.Unlock()

	for _, h := range kept {
		if current.contains(h) { // else it was removed since
			next.add(h)
		}
	}
	return next, pause(ctx, wait)
}
