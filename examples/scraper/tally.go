package main

import (
	"slices"
	"sync"
	"time"
)

// A tally collects what honest users saw. Its methods may be called concurrently.
type tally struct {
	mu     sync.Mutex // guards what follows
	took   []time.Duration
	absent int   // times "no such product" for one that exists
	errors int   // visits without a right answer
	first  error // the first of their errors
}

// answered counts a visit, and an error if it had no right answer.
func (t *tally) answered(took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = append(t.took, took)
	t.fail(err)
}

// missed counts a visit that was told that there is no such product.
func (t *tally) missed(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = append(t.took, took)
	t.absent++
}

// failed counts an error outside a visit.
func (t *tally) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail(err)
}

func (t *tally) fail(err error) {
	if err == nil {
		return
	}
	t.errors++
	if t.first == nil {
		t.first = err
	}
}

// visits is how many have been answered so far.
func (t *tally) visits() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.took)
}

// percentile returns the time within which p of 100 visits were answered.
func (t *tally) percentile(p int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.took) == 0 {
		return 0
	}
	slices.Sort(t.took)
	return t.took[(len(t.took)*p+99)/100-1]
}
