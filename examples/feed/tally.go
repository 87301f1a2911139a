package main

import (
	"sync"
	"time"

	"github.com/levee-go/levee/examples/internal/stage"
)

// A tally compares the answers of a reader with the ledger. It may be used concurrently.
type tally struct {
	ledger *ledger
	grace  time.Duration

	mu     sync.Mutex // guards what follows
	since  time.Time  // the beginning of the phase
	served []int64    // the highest price served of each product, from id 1 on
	now    row
	delays []delay
	failed error // the first answer that was an error
}

// A delay is how long a change has waited until it was served, or until the phase ended.
type delay struct {
	at   time.Time // of its commit
	took time.Duration
}

// A row is what one reader did in one phase.
type row struct {
	phase, reader     string
	killed            bool // and did nothing
	follows           bool // it reads the feed, at the end of the phase
	changes           int  // committed in the phase
	missing           int  // of those, not served by its end
	p50, p99, slowest time.Duration
	answers, stale    int
	seconds           []time.Duration // the slowest of the changes that were committed in each second of the phase; 0: there were none
}

func newTally(l *ledger, grace time.Duration) *tally {
	return &tally{ledger: l, grace: grace, since: time.Now(), served: make([]int64, l.products())}
}

// begin begins a phase.
func (t *tally) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.now, t.delays = time.Now(), row{}, nil
}

// answered notes the answer to a read.
func (t *tally) answered(id, price int64, began time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.failed == nil {
			t.failed = err
		}
		return
	}
	t.now.answers++
	newer := t.ledger.above(id, price)
	if len(newer) > 0 && began.Sub(newer[0]) > t.grace {
		t.now.stale++
	}
	if before := t.served[id-1]; price > before {
		unserved := t.ledger.above(id, before)
		t.waited(unserved[:len(unserved)-len(newer)], time.Now())
		t.served[id-1] = price
	}
}

// waited notes how long changes of this phase have waited.
func (t *tally) waited(commits []time.Time, until time.Time) (n int) {
	for _, at := range commits {
		if at.After(t.since) {
			t.delays = append(t.delays, delay{at, until.Sub(at)})
			n++
		}
	}
	return n
}

// upToDate reports whether all changes were served.
func (t *tally) upToDate() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, price := range t.served {
		if len(t.ledger.above(int64(i+1), price)) > 0 {
			return false
		}
	}
	return true
}

// outOfDate reports whether an answer of this phase was older than may be.
func (t *tally) outOfDate() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now.stale > 0
}

// end ends the phase. What was not served yet counts with the time that it has waited so far.
func (t *tally) end() (row, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, now := t.now, time.Now()
	for i, price := range t.served {
		r.missing += t.waited(t.ledger.above(int64(i+1), price), now)
	}
	var all []time.Duration
	for _, d := range t.delays {
		all = append(all, d.took)
		second := int(d.at.Sub(t.since) / time.Second)
		for len(r.seconds) <= second {
			r.seconds = append(r.seconds, 0)
		}
		r.seconds[second] = max(r.seconds[second], d.took)
	}
	r.changes = len(all)
	r.p50, r.p99, r.slowest = stage.Percentile(all, 0.5), stage.Percentile(all, 0.99), stage.Percentile(all, 1)
	return r, t.failed
}
