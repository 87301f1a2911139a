package main

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/cache"

	"github.com/levee-go/levee/examples/internal/servers"
)

// openLoad sends n requests evenly over d, each on its own and whether or not the earlier ones have been answered: users do not wait for
// one another. It passes the moment a request was due, from which its user has been waiting, and returns when all are answered.
func openLoad(ctx context.Context, n int, d time.Duration, send func(i int, due time.Time)) {
	var all sync.WaitGroup
	defer all.Wait()
	start := time.Now()
	for i := range n {
		due := start.Add(d * time.Duration(i) / time.Duration(n))
		// A timer is good to a millisecond or so; what is due until it fires goes out in one go.
		if wait := time.Until(due); wait > 0 && servers.Sleep(ctx, wait) != nil {
			return
		}
		all.Go(func() { send(i, due) })
	}
}

// closedLoad lets n users ask for d, each in turn, with a pause after every answer and random numbers of its own. It returns when all
// have stopped.
func closedLoad(ctx context.Context, seed uint64, n int, d, pause time.Duration, ask func(user int, rng *rand.Rand)) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for user := range n {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(user)))
			first := pause * time.Duration(user) / time.Duration(n) // they do not march in step
			for wait := first; servers.Sleep(ctx, wait) == nil; wait = pause {
				ask(user, rng)
			}
		})
	}
}

// A tally collects what the readers of one step saw. Its methods may be called concurrently.
type tally struct {
	patience time.Duration // how long a user waits for an answer
	grace    time.Duration // how long after a write another process may take to hear of it
	reads    atomic.Int64

	mu     sync.Mutex // guards the fields below
	took   []time.Duration
	wrong  int   // answers that belong to another product, or "no such product" for one that exists
	stale  int   // answers older than a version acknowledged before the read began
	old    int   // of those, the ones that were still given grace after the acknowledgement
	errors int   // reads without an answer
	first  error // the first of their errors
}

// read asks for a product that exists and judges the answer.
func (t *tally) read(ctx context.Context, c cached, id int64, due time.Time, writes *ledger) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	begun := time.Now()
	p, err := c.Get(ctx, id)
	took := time.Since(due)
	overdue := writes.overdue(id, p.Version, begun)

	t.reads.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = append(t.took, took)
	switch {
	case isNotFound(err):
		t.wrong++
	case err != nil:
		t.fail(err)
	case p.ID != id || p.Name != nameOf(id):
		t.wrong++
	case overdue > 0:
		t.stale++
		if overdue > t.grace {
			t.old++
		}
	}
}

// scrape asks for a product that does not exist. Nobody minds how long a scraper waits, or whether it gets an answer, but a product would be wrong.
func (t *tally) scrape(ctx context.Context, c cached, id int64) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	if _, err := c.Get(ctx, id); err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.wrong++
	}
}

// failed counts an error outside a read.
func (t *tally) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail(err)
}

// behind counts an answer that is still old when all writes have been over for long.
func (t *tally) behind() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.old++
}

func (t *tally) fail(err error) {
	t.errors++
	if t.first == nil {
		t.first = err
	}
}

// percentile returns the time within which p of 100 reads were answered.
func (t *tally) percentile(p int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.took) == 0 {
		return 0
	}
	slices.Sort(t.took)
	return t.took[(len(t.took)*p+99)/100-1]
}

func isNotFound(err error) bool {
	return errors.Is(err, sql.ErrNoRows) || errors.Is(err, cache.ErrNotFound)
}

// A ledger knows when the versions of each product were acknowledged to their writers. A nil ledger knows of no writes.
type ledger struct {
	mu    sync.Mutex
	acked map[int64]map[int64]time.Time // product, version
	last  map[int64]int64               // the highest version of a product
}

func newLedger() *ledger {
	return &ledger{acked: make(map[int64]map[int64]time.Time), last: make(map[int64]int64)}
}

func (l *ledger) acknowledge(id, version int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked[id] == nil {
		l.acked[id] = make(map[int64]time.Time)
	}
	l.acked[id][version] = time.Now()
	l.last[id] = max(l.last[id], version)
}

// overdue returns for how long, when a read began, a later version than the one it returned had been acknowledged; 0 if none had.
func (l *ledger) overdue(id, version int64, begun time.Time) time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var overdue time.Duration
	for later := version + 1; later <= l.last[id]; later++ {
		if at, ok := l.acked[id][later]; ok {
			overdue = max(overdue, begun.Sub(at))
		}
	}
	return overdue
}
