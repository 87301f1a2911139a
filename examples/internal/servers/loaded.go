package servers

import (
	"context"
	"database/sql"
	"iter"
	"strconv"
	"sync/atomic"
	"time"
)

// Sleep waits for d or for the end of ctx, whose error it returns. It is how a small database behaves like a loaded one.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Raise lifts highest to n if n is more.
func Raise(highest *atomic.Int64, n int64) {
	for {
		old := highest.Load()
		if n <= old || highest.CompareAndSwap(old, n) {
			return
		}
	}
}

// ProductIDs streams the ids of all rows of the table product, as a filter wants them.
func ProductIDs(ctx context.Context, db *sql.DB) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		rows, err := db.QueryContext(ctx, "SELECT id FROM product")
		if err != nil {
			yield("", err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			err := rows.Scan(&id)
			if !yield(strconv.FormatInt(id, 10), err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield("", err)
		}
	}
}
