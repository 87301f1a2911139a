// Package pump carries changes from the log of a database to the follower of a feed. The streams
// of pgfeed and mysqlfeed share it.
//
// The goroutine that reads the log calls Begin, Add and Commit. Another goroutine, the gate, holds a
// batch back until its transactions are visible to readers of the database, and then hands it to
// Next. The gate is needed because a database sends a transaction when its commit is in the log, but
// readers see it a moment later; with synchronous replication, when the standbys have confirmed.
// A loader that reads a row in between gets the old one, and would fill the cache
// with it after the invalidation.
package pump

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/wait"
)

const (
	idleEvery  = 500 * time.Millisecond // a position without changes is passed on this often at most
	watchEvery = 5 * time.Second
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("cache: the stream of the feed is closed")

// A Gate holds the functions by which a Pump queries a database, all on one goroutine. An M
// identifies a transaction.
type Gate[M any] struct {
	// UntilVisible waits until transactions, which are in the log, are visible to all readers.
	UntilVisible func(marks []M) error
	// Watch checks how much log the database keeps for the feed. It is called every few
	// seconds; its error ends the stream.
	Watch func() error
	// Behind returns how many bytes of the log come after a position, or -1.
	Behind func(p feed.Position) int64
}

// A Pump is the queue and the gate of a stream. Do not change its fields.
type Pump[M any] struct {
	Ctx    context.Context // ends with the stream, or when a task of it fails
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup
	gate   Gate[M]
	max    int // largest number of changes in a batch

	open   batch[M] // the reader's: the transaction that is being read
	mark   M        // of that transaction
	parts  bool     // a part of it has been passed on
	whole  []string // tables for which it has a Truncated already
	idle   time.Time
	mu     sync.Mutex
	ready  batch[M] // guarded by mu: the changes that the gate has not taken yet
	more   chan struct{}
	space  chan struct{} // signals that the gate has taken ready
	passed chan feed.Batch
}

// A batch is a feed.Batch on its way to Next.
type batch[M any] struct {
	changes   []feed.Change
	position  feed.Position // zero in the middle of a transaction
	committed time.Time
	marks     []M // identify its transactions
}

// New makes a Pump whose batches have up to maxBatch changes. Run starts it.
func New[M any](maxBatch int, gate Gate[M]) *Pump[M] {
	p := &Pump[M]{
		gate: gate, max: maxBatch,
		more: make(chan struct{}, 1), space: make(chan struct{}, 1), passed: make(chan feed.Batch),
	}
	p.Ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Run runs the gate, and tasks of the stream, until Ctx ends. If a task returns an error, the
// stream ends with that error.
func (p *Pump[M]) Run(tasks ...func() error) {
	for _, task := range append(tasks, p.pass) {
		p.tasks.Go(func() {
			if err := task(); err != nil {
				p.cancel(err)
			}
		})
	}
}

// Stop ends the stream and waits for its tasks.
func (p *Pump[M]) Stop() {
	p.cancel(ErrClosed)
	p.tasks.Wait()
}

// Next implements [feed.Stream].
func (p *Pump[M]) Next(ctx context.Context) (feed.Batch, error) {
	if err := ctx.Err(); err != nil {
		return feed.Batch{}, err
	}
	select {
	case b := <-p.passed:
		return b, nil
	case <-ctx.Done():
		return feed.Batch{}, ctx.Err()
	case <-p.Ctx.Done():
		return feed.Batch{}, context.Cause(p.Ctx)
	}
}

// Err returns the error that ended the stream, or nil.
func (p *Pump[M]) Err() error { return context.Cause(p.Ctx) }

// Begin starts a transaction, to which the following changes belong. committed is zero if the
// time is not known yet.
func (p *Pump[M]) Begin(mark M, committed time.Time) {
	p.mark, p.parts, p.whole = mark, false, nil
	p.open = batch[M]{committed: committed}
}

// Mark changes the mark of the open transaction.
func (p *Pump[M]) Mark(mark M) { p.mark = mark }

// Add adds a change to the open transaction, and passes on a part of the transaction if it grows
// long. A table is reported as Truncated once in a transaction, because batches wait until all of
// it is visible.
func (p *Pump[M]) Add(c feed.Change) {
	if c.Kind == feed.Truncated {
		if slices.Contains(p.whole, c.Table) {
			return
		}
		p.whole = append(p.whole, c.Table)
	}
	p.open.changes = append(p.open.changes, c)
	if len(p.open.changes) >= p.max {
		p.put(feed.Position{})
		p.parts = true
	}
}

// Commit ends the open transaction. A stream can begin at the position after. If the transaction
// has no change, Commit does the work of [Pump.Idle].
func (p *Pump[M]) Commit(after feed.Position) (told bool) {
	if len(p.open.changes) == 0 && !p.parts {
		return p.Idle(after, false)
	}
	p.put(after)
	return true
}

// put hands the open changes to the gate, together with those that the gate has not taken yet. It
// waits while that would be too many, so that neither a long transaction nor a slow follower
// fills memory.
func (p *Pump[M]) put(after feed.Position) {
	for {
		p.mu.Lock()
		// The end of a transaction may follow what came before; a part of one would take away its position.
		whole := after != feed.Position{}
		if len(p.ready.changes) == 0 || whole && len(p.ready.changes)+len(p.open.changes) <= p.max {
			p.ready.changes = append(p.ready.changes, p.open.changes...)
			p.ready.marks = append(p.ready.marks, p.mark)
			p.ready.position, p.ready.committed = after, p.open.committed
			p.open.changes = nil
			p.mu.Unlock()
			wait.Wake(p.more)
			return
		}
		p.mu.Unlock()
		select {
		case <-p.space:
		case <-p.Ctx.Done():
			return
		}
	}
}

// Idle says that no change before the position at is left, outside of any transaction. The
// position is passed on with the changes before it; alone, it is passed on twice a second at
// most, or at once if it is urgent. Idle reports whether it is passed on now.
func (p *Pump[M]) Idle(at feed.Position, urgent bool) (told bool) {
	p.mu.Lock()
	p.ready.position = at
	p.mu.Unlock()
	if !urgent && time.Since(p.idle) < idleEvery {
		return false
	}
	p.idle = time.Now()
	wait.Wake(p.more)
	return true
}

// pass hands batches to Next when their transactions are visible.
func (p *Pump[M]) pass() error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	if err := p.gate.Watch(); err != nil {
		return err
	}
	for {
		select {
		case <-p.Ctx.Done():
			return nil
		case <-tick.C:
			if err := p.gate.Watch(); err != nil {
				return err
			}
			continue
		case <-p.more:
		}
		p.mu.Lock()
		b := p.ready
		p.ready = batch[M]{}
		p.mu.Unlock()
		wait.Wake(p.space)
		if len(b.changes) == 0 && b.position == (feed.Position{}) {
			continue
		}
		if len(b.changes) > 0 {
			if err := p.gate.UntilVisible(b.marks); err != nil {
				return err
			}
		}
		for handed := false; !handed; {
			out := feed.Batch{Changes: b.changes, Position: b.position, Committed: b.committed, Behind: p.gate.Behind(b.position)}
			select {
			case <-p.Ctx.Done():
				return nil
			case <-tick.C:
				if err := p.gate.Watch(); err != nil {
					return err
				}
			case p.passed <- out:
				handed = true
			}
		}
	}
}
