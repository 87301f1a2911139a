package main

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/levee-go/levee/examples/internal/stage"
)

var tables = []string{
	"CREATE TABLE stock (segment BIGINT PRIMARY KEY, amount BIGINT NOT NULL)",
	"CREATE TABLE sale (segment BIGINT NOT NULL)",
}

// inOne and inSegments are the statements that fill the stock.
func inOne(s scale) []string      { return fill(1, s.Stock) }
func inSegments(s scale) []string { return fill(s.Segments, s.Stock/s.Segments) }

func fill(segments, amount int) []string {
	statements := []string{"DELETE FROM sale", "DELETE FROM stock"}
	for segment := range segments {
		statements = append(statements, fmt.Sprintf("INSERT INTO stock (segment, amount) VALUES (%d, %d)", segment, amount))
	}
	return statements
}

const errSoldOut = stage.Refusal("sold out")

// A warehouse sells items.
type warehouse struct {
	db    *sql.DB
	scale scale
	sales atomic.Int64
}

// sell looks whether there is something left and sells it. Nothing is wrong with it as long as it is called by one at a time for a segment.
func (w *warehouse) sell(ctx context.Context, segment int) error {
	var amount int
	if err := w.db.QueryRowContext(ctx, "SELECT amount FROM stock WHERE segment = $1", segment).Scan(&amount); err != nil {
		return err
	}
	if amount <= 0 {
		return errSoldOut
	}
	if err := w.work(ctx); err != nil {
		return err
	}
	return w.write(ctx, "UPDATE stock SET amount = $1 WHERE segment = $2", amount-1, segment)
}

// soldOut looks whether nothing is left at all. Nothing comes back, so it takes no lock.
func (w *warehouse) soldOut(ctx context.Context) (bool, error) {
	var left int
	err := w.db.QueryRowContext(ctx, "SELECT sum(amount) FROM stock").Scan(&left)
	return left <= 0, err
}

// sellOne leaves it to the database to look and to sell at once.
func (w *warehouse) sellOne(ctx context.Context) error {
	if err := w.work(ctx); err != nil {
		return err
	}
	return w.write(ctx, "UPDATE stock SET amount = amount - $1 WHERE segment = $2 AND amount > 0", 1, 0)
}

// write takes an item from the stock of a segment and writes a sale.
func (w *warehouse) write(ctx context.Context, update string, value, segment int) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, before it the first error is the one to tell
	result, err := tx.ExecContext(ctx, update, value, segment)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return orSoldOut(err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO sale (segment) VALUES ($1)", segment); err != nil {
		return err
	}
	return tx.Commit()
}

func orSoldOut(err error) error {
	if err != nil {
		return err
	}
	return errSoldOut
}

// work is what else there is to a sale. The tenth of a process takes long.
func (w *warehouse) work(ctx context.Context) error {
	if w.sales.Add(1) == 10 {
		return stage.Think(ctx, w.scale.Slow)
	}
	return stage.Think(ctx, w.scale.Work)
}

// judge compares what was sold with what there was.
func judge(ctx context.Context, db *servers.Database, s scale) (cells []string, wrong string, err error) {
	var sold, left, lowest int
	row := db.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM sale), (SELECT sum(amount) FROM stock), (SELECT min(amount) FROM stock)")
	if err := row.Scan(&sold, &left, &lowest); err != nil {
		return nil, "", err
	}
	switch {
	case sold > s.Stock:
		wrong = fmt.Sprintf("%d sold, there were %d", sold, s.Stock)
	case lowest < 0:
		wrong = fmt.Sprintf("%d left of a segment", lowest)
	case sold != s.Stock-left:
		wrong = fmt.Sprintf("%d sold, and %d left of %d", sold, left, s.Stock)
	case left > 0:
		wrong = fmt.Sprintf("%d left, and buyers were sent away", left)
	}
	return []string{strconv.Itoa(sold), strconv.Itoa(left)}, wrong, nil
}
