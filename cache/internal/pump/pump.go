// Package pump carries changes from the log of a database to the follower of a feed. It is
// what the streams of pgfeed and mysqlfeed have in common.
//
// Whoever reads the log calls Begin, Add and Commit. Another goroutine, the gate, holds a
// batch back until those who read the database can see its transactions, and hands it to
// Next. The gate is needed since a database sends a transaction when its commit is in the log, and
// others see it a moment later; with synchronous replication, when the standbys have confirmed.
// Who loads a row in between finds what was there before, and would fill the cache
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
	idleEvery  = 500 * time.Millisecond // how often a position without changes is told at the most
	watchEvery = 5 * time.Second
)

// ErrClosed is what Next returns after Close.
var ErrClosed = errors.New("cache: the stream of the feed is closed")

// Gate is what a Pump asks of a database, on one goroutine. M marks a transaction.
type Gate[M any] struct {
	// UntilVisible waits until transactions, which are in the log, can be seen by all.
	UntilVisible func(marks []M) error
	// Watch looks at what the database keeps for the feed, every few seconds. Its error ends
	// the stream.
	Watch func() error
	// Behind is how many bytes of the log come after a position, or -1.
	Behind func(p feed.Position) int64
}

// A Pump is the inside of a stream. Its fields are not to be changed.
type Pump[M any] struct {
	Ctx    context.Context // ends with the stream, or when a task of it fails
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup
	gate   Gate[M]
	max    int // changes of a batch

	open   batch[M] // the reader's: the transaction that is being told
	mark   M        // of it
	parts  bool     // a part of it has been passed on
	whole  []string // tables of it that have been told to be Truncated
	idle   time.Time
	mu     sync.Mutex
	ready  batch[M] // guarded by mu: what the gate has not taken yet
	more   chan struct{}
	space  chan struct{} // signals that it has
	passed chan feed.Batch
}

// A batch is a feed.Batch on its way.
type batch[M any] struct {
	changes   []feed.Change
	position  feed.Position // zero in the middle of a transaction
	committed time.Time
	marks     []M // of its transactions
}

// New makes a Pump of batches of max changes, and Run starts it.
func New[M any](maxBatch int, gate Gate[M]) *Pump[M] {
	p := &Pump[M]{
		gate: gate, max: maxBatch,
		more: make(chan struct{}, 1), space: make(chan struct{}, 1), passed: make(chan feed.Batch),
	}
	p.Ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Run runs the gate, and tasks of the stream's own until Ctx ends; one that returns an
// error ends the stream with it.
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

// Next is that of [feed.Stream].
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

// Err is why the stream has ended, or nil.
func (p *Pump[M]) Err() error { return context.Cause(p.Ctx) }

// Begin says that the changes to come are of a transaction. committed is zero if that is not
// known yet.
func (p *Pump[M]) Begin(mark M, committed time.Time) {
	p.mark, p.parts, p.whole = mark, false, nil
	p.open = batch[M]{committed: committed}
}

// Mark changes the mark of the open transaction.
func (p *Pump[M]) Mark(mark M) { p.mark = mark }

// Add takes a change into the open transaction, and passes a part of that on if it grows
// long. That a table is Truncated is told once: a batch is told when the whole transaction is seen.
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

// Commit ends the open transaction. A stream can begin at the position after it. If there
// was no change in it, Commit is [Pump.Idle].
func (p *Pump[M]) Commit(after feed.Position) (told bool) {
	if len(p.open.changes) == 0 && !p.parts {
		return p.Idle(after, false)
	}
	p.put(after)
	return true
}

// put hands what is open to the gate, together with what that has not taken yet. It waits
// while that would be too much, so that neither a long transaction nor a slow follower
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

// Idle says that nothing is left to tell before a position, outside of any transaction. It is
// told with the changes before it; alone, twice a second at the most unless that is urgent.
// Idle says whether it will be.
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

// pass hands batches to Next when others see their transactions.
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
