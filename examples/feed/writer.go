package main

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"
)

// A writer is a job that knows nothing of levee. Each of its transactions raises the price of one product by 1, so that answers tell how old
// they are, and inserts a line into the outbox.
type writer struct {
	db     *sql.DB
	ledger *ledger
	next   int64
}

// work raises a price every so often until ctx ends, one product after the other.
func (w *writer) work(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		// The end of a phase does not break a transaction off, whose fate would then be unknown.
		if err := w.raise(context.WithoutCancel(ctx), 1+w.next%w.ledger.products()); err != nil {
			return fmt.Errorf("raising a price: %w", err)
		}
		w.next++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *writer) raise(ctx context.Context, id int64) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, before it the first error is the one to tell
	if _, err := tx.ExecContext(ctx, "UPDATE product SET price = price + 1 WHERE id = ?", id); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO levee_outbox (subject, subject_key) VALUES ('product', ?)", id); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	w.ledger.committed(id, time.Now())
	return nil
}

// A ledger knows when each price was committed. It may be used concurrently.
type ledger struct {
	mu      sync.Mutex
	commits [][]time.Time // of each product, from id 1 on: when its price became 1, 2 and so on
}

func newLedger(products int) *ledger { return &ledger{commits: make([][]time.Time, products)} }

func (l *ledger) products() int64 { return int64(len(l.commits)) }

// committed notes that the price of a product has risen by 1.
func (l *ledger) committed(id int64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits[id-1] = append(l.commits[id-1], at)
}

// above returns when the prices of a product above the given one were committed, the lowest first. A reader may see a price before it is noted.
func (l *ledger) above(id, price int64) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.commits[id-1]
	return all[min(price, int64(len(all))):]
}
