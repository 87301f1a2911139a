package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/wait"
)

// patience is how long the database may take for a statement. Over a link that drops packets the
// driver would wait for minutes, while this follower keeps others from reading.
const patience = 30 * time.Second

const (
	mostWaiting  = 100_000         // rows that are read and not confirmed; with more, Next waits until its context ends
	longestPause = 2 * time.Second // between two reads of the waiting rows
	removeInOne  = 1000            // rows that a transaction deletes
)

// A stream reads the table.
type stream struct {
	*Outbox
	order   uint64         // order of the last position
	given   []given        // batches that are not confirmed yet, in the order of their positions
	waiting map[int64]bool // the rows of these batches
}

// A given is the rows of a batch that Next has returned.
type given struct {
	order uint64
	ids   []int64
}

// Next waits for rows that it has not returned yet.
func (s *stream) Next(ctx context.Context) (feed.Batch, error) {
	wake := s.o.Wake
	if len(s.waiting) >= s.mostWaiting {
		<-ctx.Done()
		return feed.Batch{}, ctx.Err()
	}
	// Each read reads the waiting rows too: the more they are, the more rarely.
	pause := min(time.Duration(len(s.waiting)/500)*100*time.Millisecond, longestPause)
	if pause > 0 {
		wake = nil // a signal waits for a later call
	}
	wait.Sleep(ctx, pause)
	for {
		ids, batch, err := s.read(ctx)
		switch {
		case ctx.Err() != nil:
			return feed.Batch{}, ctx.Err()
		case err != nil:
			return feed.Batch{}, err
		case len(ids) > 0:
			s.order = max(s.order+1, uint64(time.Now().UnixMicro()))
			s.given = append(s.given, given{s.order, ids})
			for _, id := range ids {
				s.waiting[id] = true
			}
			batch.Position = feed.Position{Text: strconv.FormatUint(s.order, 10), Order: s.order}
			return batch, nil
		}
		timer := time.NewTimer(max(s.o.Every, pause))
		select {
		case <-timer.C:
		case _, open := <-wake:
			if !open {
				wake = nil
			}
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// read returns the oldest rows that Next has not returned.
func (s *stream) read(ctx context.Context) (ids []int64, batch feed.Batch, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	limit := min(len(s.waiting)+max(s.o.Batch, len(s.waiting)/4), s.mostWaiting)
	rows, err := s.db.QueryContext(ctx, "SELECT id, subject, subject_key, written_at FROM "+s.o.Table+" ORDER BY id LIMIT "+strconv.Itoa(limit))
	if err != nil {
		return nil, batch, s.failed("reading", err)
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var id int64
		var subject, key string
		var written sql.NullInt64
		if err := rows.Scan(&id, &subject, &key, &written); err != nil {
			return nil, batch, s.failed("reading", err)
		}
		if seen++; s.waiting[id] {
			continue
		}
		ids = append(ids, id)
		batch.Changes = append(batch.Changes, feed.Change{Table: subject, Kind: feed.Updated, New: feed.Row{keyColumn: key}, Key: keyColumns})
		if at := time.UnixMicro(written.Int64); written.Valid && at.After(batch.Committed) {
			batch.Committed = at
		}
	}
	if err := rows.Err(); err != nil {
		return nil, batch, s.failed("reading", err)
	}
	if seen == limit {
		row := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+s.o.Table)
		if err := row.Scan(&batch.Behind); err != nil {
			return nil, batch, s.failed("counting", err)
		}
		batch.Behind = max(0, batch.Behind-int64(seen))
	}
	return ids, batch, nil
}

// keyColumn is the only column of a changed row.
const keyColumn = "key"

var keyColumns = []string{keyColumn}

// Confirm deletes the rows that Next has returned up to a position. A position of an earlier
// stream confirms nothing: rows that that stream has not deleted come again.
func (s *stream) Confirm(ctx context.Context, p feed.Position) error {
	for ; len(s.given) > 0 && s.given[0].order <= p.Order; s.given = s.given[1:] {
		for ids := range slices.Chunk(s.given[0].ids, removeInOne) {
			if err := s.remove(ctx, ids); err != nil {
				return s.failed("deleting from", err)
			}
			for _, id := range ids {
				delete(s.waiting, id)
			}
		}
	}
	return nil
}

func (s *stream) remove(ctx context.Context, rows []int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a Commit
	for ids := range slices.Chunk(rows, s.o.Dialect.removeAtOnce()) {
		args := make([]any, len(ids))
		for i, id := range ids {
			args[i] = id
		}
		query := "DELETE FROM " + s.o.Table + " WHERE id IN (" + s.o.Dialect.parameters(0, len(ids)) + ")"
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Close does nothing: between two calls a stream holds no resources of the database.
func (s *stream) Close() error { return nil }

func (s *stream) failed(doing string, err error) error {
	return fmt.Errorf("outbox: %s %s: %w", doing, s.o.Table, err)
}
