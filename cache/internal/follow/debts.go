package follow

import (
	"context"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// debts are what the filters of caches have still to be told of the batches that are applied. Each filter is told
// on a goroutine of its own, until it confirms, so that one that does not confirm holds up no invalidation.
//
// They are in this process alone. While there is one, the follower stores no position, so whoever
// follows next is given the rows again.
type debts struct {
	ctx    context.Context // ends with the lease
	cancel context.CancelFunc
	log    *logonce.Log
	tasks  sync.WaitGroup

	mu    sync.Mutex // guards what follows
	of    map[*Cache]*debt
	clear context.Context // ends when no filter is owed anything; nil: none is
	pay   context.CancelFunc
}

// A debt is what one filter has to be told.
type debt struct {
	ids   map[string]struct{} // rows that exist
	all   bool                // rows may exist that nobody knows: the filter has to abstain
	tried chan struct{}       // closed when the filter has confirmed, or has first not done so
	late  bool                // it has not confirmed
}

const (
	toldAtOnce = 512             // ids in one call of a filter
	mostOwed   = 100_000         // ids of one filter; if it is owed more, it has to abstain instead
	firstTry   = 2 * time.Second // how long a follower waits for a filter that is owed nothing else
)

func newDebts(ctx context.Context, log *logonce.Log) *debts {
	d := &debts{log: log, of: map[*Cache]*debt{}}
	d.ctx, d.cancel = context.WithCancel(ctx)
	return d
}

// close ends the telling, and waits for the calls of filters that are under way.
func (d *debts) close() {
	d.cancel()
	d.tasks.Wait()
}

// owe has a filter told that rows exist, or, with all, that it has missed some. It waits until the filter has
// confirmed, for up to two seconds, unless an earlier call has failed already.
func (d *debts) owe(c *Cache, ids []string, all bool) {
	if len(ids) == 0 && !all {
		return
	}
	tried := d.add(c, ids, all)
	timer := time.NewTimer(firstTry)
	defer timer.Stop()
	select {
	case <-tried:
	case <-timer.C:
	case <-d.ctx.Done():
	}
}

func (d *debts) add(c *Cache, ids []string, all bool) (tried <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.of[c]
	if of == nil {
		of = &debt{ids: map[string]struct{}{}, tried: make(chan struct{})}
		if len(d.of) == 0 {
			d.clear, d.pay = context.WithCancel(d.ctx)
		}
		d.of[c] = of
		d.tasks.Go(func() { d.tell(c, of) })
	}
	of.put(ids, all)
	return of.tried
}

// owing returns a context that ends when no filter is owed anything, or nil if none is.
func (d *debts) owing() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clear
}

// tell tells a filter what it is owed, until it has confirmed all of it.
func (d *debts) tell(c *Cache, of *debt) {
	retries := wait.Backoff{First: firstPause, Max: longestPause}
	for d.ctx.Err() == nil {
		ids, all, paid := d.next(c, of)
		if paid {
			return
		}
		// The calls are the user's functions, which may panic.
		err := <-contain.Go(func() error {
			if all {
				return c.distrust(d.ctx, d.log)
			}
			return c.Ensure(d.ctx, ids)
		})
		switch {
		case err == nil:
			retries.Reset()
		case d.ctx.Err() == nil:
			d.failed(c, of, ids, all, err)
			retries.Sleep(d.ctx)
		}
	}
}

// next takes off a debt what the filter is to be told next. If there is nothing, the debt is over.
func (d *debts) next(c *Cache, of *debt) (ids []string, all, paid bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if of.all {
		of.all = false
		return nil, true, false
	}
	for id := range of.ids {
		delete(of.ids, id)
		if ids = append(ids, id); len(ids) == toldAtOnce {
			break
		}
	}
	if len(ids) > 0 {
		return ids, false, false
	}
	of.settle()
	if of.late {
		d.log.Info("a filter confirms the rows of a feed again", "cache", c.Name)
	}
	if delete(d.of, c); len(d.of) == 0 {
		d.pay()
		d.clear = nil
	}
	return nil, false, true
}

// failed puts back what the filter has not confirmed.
func (d *debts) failed(c *Cache, of *debt, ids []string, all bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of.put(ids, all)
	of.late = true
	of.settle()
	c.failures.Add(1)
	d.log.Warn("a filter does not confirm the rows of a feed, and is told again", "cache", c.Name, "error", err)
}

// put adds to a debt. The rebuild after the filter has begun to abstain finds all rows that are owed before. The
// caller holds the lock of the debts, as that of settle does.
func (of *debt) put(ids []string, all bool) {
	for _, id := range ids {
		of.ids[id] = struct{}{}
	}
	if all || len(of.ids) > mostOwed {
		of.all, of.ids = true, map[string]struct{}{}
	}
}

// settle lets the follower go on.
func (of *debt) settle() {
	select {
	case <-of.tried:
	default:
		close(of.tried)
	}
}

// distrust makes the filter of a cache abstain until it is rebuilt.
func (c *Cache) distrust(ctx context.Context, log *logonce.Log) error {
	deaf, err := c.Distrust(ctx)
	if err == nil && deaf {
		log.Error("a filter may deny rows that exist, and has no method Invalidate: fill it anew", "cache", c.Name)
	}
	return err
}
