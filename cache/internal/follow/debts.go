package follow

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// debts are what the filters of caches have still to be told of the batches that are applied. Each filter is told
// on a goroutine of its own, until it confirms, so that one that does not confirm holds up no invalidation.
//
// They are in this process alone. The follower stores no position of a batch that is owed to a filter, so whoever
// follows next is given its rows again.
type debts struct {
	ctx    context.Context // ends with the lease
	cancel context.CancelFunc
	log    *logonce.Log
	tasks  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	byCache map[*Cache]*debt
	turned  context.Context // ends when the oldest batch that is owed may be another one
	turn    context.CancelFunc
}

// A debt is what one filter has to be told. What is owed while it is told waits for its turn: otherwise a filter
// that is slower than the feed would never have confirmed any batch whole.
type debt struct {
	now, later pile
	waived     context.Context // ends when the follower waits for it no longer: it has confirmed, failed, or taken too long
	waive      context.CancelFunc
	failed     bool // the filter has not confirmed, at least once
}

// A pile is what a filter has to be told of successive batches: first that it has missed some, then of rows.
type pile struct {
	since int // number of the first batch; 0: the pile is empty
	begun time.Time
	all   bool                // rows may exist that nobody knows: the filter has to abstain
	ids   map[string]struct{} // rows that exist, and that a rebuild after that may not find
}

const (
	toldAtOnce = 512             // ids in one call of a filter
	mostOwed   = 100_000         // ids of a pile; beyond, a filter for which nobody waits has to abstain instead
	patience   = 2 * time.Second // how long a follower waits for filters that have neither confirmed nor failed
	longest    = time.Minute     // one call of a filter, which is then left behind
)

func newDebts(ctx context.Context, log *logonce.Log) *debts {
	d := &debts{log: log, byCache: map[*Cache]*debt{}}
	d.ctx, d.cancel = context.WithCancel(ctx)
	d.turned, d.turn = context.WithCancel(d.ctx)
	return d
}

// close ends the telling. It leaves behind a filter that does not heed its context.
func (d *debts) close() {
	d.cancel()
	d.tasks.Wait()
	for c := range d.byCache {
		c.owedSince.Store(0)
	}
}

// owe has a filter told of rows of a batch, or, with all, that it has missed some.
func (d *debts) owe(c *Cache, batch int, ids []string, all bool) {
	if len(ids) == 0 && !all {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.byCache[c]
	if of == nil {
		of = &debt{}
		of.waived, of.waive = context.WithCancel(d.ctx)
		d.byCache[c] = of
		d.tasks.Go(func() { d.tell(c, of) })
	}
	p := &of.later
	if p.since == 0 {
		*p = pile{since: batch, begun: time.Now(), ids: map[string]struct{}{}}
	}
	for _, id := range ids {
		p.ids[id] = struct{}{}
	}
	if !c.Deaf && (all || len(p.ids) > mostOwed && of.waived.Err() != nil) {
		clear(p.ids) // a rebuild that begins from now on finds these rows
		all = true
	}
	p.all = p.all || all
}

// wait waits until each filter has confirmed, or has failed. After two seconds it waits no longer, nor later for the
// same filters until they have confirmed everything.
func (d *debts) wait() {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for _, of := range d.open() {
		select {
		case <-of.waived.Done():
		case <-timer.C:
			for _, of := range d.open() {
				of.waive()
			}
			return
		}
	}
}

func (d *debts) open() (all []*debt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range d.byCache {
		all = append(all, of)
	}
	return all
}

// oldest returns the number of the oldest batch that is owed to a filter, and a context that ends when that may
// be another one.
func (d *debts) oldest() (batch int, turned context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	batch = math.MaxInt
	for _, of := range d.byCache {
		since := of.now.since
		if since == 0 {
			since = of.later.since
		}
		batch = min(batch, since)
	}
	return batch, d.turned
}

// tell tells a filter what it is owed, until it has confirmed all of it.
func (d *debts) tell(c *Cache, of *debt) {
	retries := wait.Backoff{First: firstPause, Max: longestPause}
	for {
		ids, all, paid := d.next(c, of)
		if paid {
			return
		}
		// The filter may be the user's own: it may panic, and may not heed the context.
		ctx, cancel := context.WithTimeout(d.ctx, longest)
		called := contain.Go(func() error {
			if all {
				return c.Distrust(ctx)
			}
			return c.Ensure(ctx, ids)
		})
		var err error
		select {
		case err = <-called:
		case <-ctx.Done():
			err = ctx.Err()
		}
		cancel()
		switch {
		case d.ctx.Err() != nil:
			return
		case err != nil:
			d.failed(c, of, ids, all, err)
			retries.Sleep(d.ctx)
		default:
			retries.Reset()
			if all && c.Deaf {
				d.log.Error("a filter may deny rows that exist, and has no method Invalidate: fill it anew", "cache", c.Name)
			}
		}
	}
}

// next takes off a debt what the filter is to be told next. If there is nothing, the debt is over.
func (d *debts) next(c *Cache, of *debt) (ids []string, all, paid bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &of.now
	if !p.all && len(p.ids) == 0 {
		*p, of.later = of.later, pile{}
		d.turn()
		d.turned, d.turn = context.WithCancel(d.ctx)
	}
	if p.since == 0 {
		of.waive()
		if delete(d.byCache, c); of.failed {
			d.log.Info("a filter confirms the rows of a feed again", "cache", c.Name)
		}
		c.owedSince.Store(0)
		return nil, false, true
	}
	c.owedSince.Store(p.begun.UnixNano())
	if p.all {
		p.all = false
		return nil, true, false
	}
	for id := range p.ids {
		delete(p.ids, id)
		if ids = append(ids, id); len(ids) == toldAtOnce {
			break
		}
	}
	return ids, false, false
}

// failed puts back what the filter has not confirmed.
func (d *debts) failed(c *Cache, of *debt, ids []string, all bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of.now.all = all
	for _, id := range ids {
		of.now.ids[id] = struct{}{}
	}
	// The filter may refuse a row for ever. If it is to abstain anyway, it does so now: the rebuild finds that row too.
	if of.later.all && !c.Deaf {
		of.later.since, of.later.begun = of.now.since, of.now.begun
		of.now = pile{}
	}
	of.failed = true
	of.waive()
	c.failures.Add(1)
	d.log.Warn("a filter does not confirm the rows of a feed, and is told again", "cache", c.Name, "error", err)
}
