package main

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/levee-go/levee/examples/internal/stage"
)

var tables = []string{
	"CREATE TABLE account (id BIGINT PRIMARY KEY, remaining BIGINT NOT NULL)",
	"CREATE TABLE draw (owner BIGINT NOT NULL)",
}

func fresh(s scale) []string {
	return []string{
		"DELETE FROM draw", "DELETE FROM account",
		fmt.Sprintf(`INSERT INTO account (id, remaining)
			WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < %d) SELECT id, %d FROM n`, s.Users-1, s.Draws),
	}
}

const (
	errNoneLeft    = stage.Refusal("you have no draws left")
	errTooFrequent = stage.Refusal("too frequent, try again")
)

// A wheel is what users turn. Drawing is three steps, which are to be taken for one click of a user at a time.
type wheel struct {
	db    *sql.DB
	scale scale
}

// check looks whether the user has draws left.
func (w *wheel) check(ctx context.Context, user int) error {
	var remaining int
	if err := w.db.QueryRowContext(ctx, "SELECT remaining FROM account WHERE id = $1", user).Scan(&remaining); err != nil {
		return err
	}
	if remaining <= 0 {
		return errNoneLeft
	}
	return nil
}

// turn makes the draw, which takes a while.
func (w *wheel) turn(ctx context.Context) error { return stage.Think(ctx, w.scale.Work) }

// commit writes the draw down. Until it is back nobody sees it.
func (w *wheel) commit(ctx context.Context, user int) error {
	if err := stage.Think(ctx, w.scale.Commit); err != nil { // a loaded database; here, so that SQLite's other writers need not wait too
		return err
	}
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, before it the first error is the one to tell
	if _, err := tx.ExecContext(ctx, "INSERT INTO draw (owner) VALUES ($1)", user); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE account SET remaining = remaining - 1 WHERE id = $1", user); err != nil {
		return err
	}
	return tx.Commit()
}

// draw takes the three steps.
func (w *wheel) draw(ctx context.Context, user int) error {
	if err := w.check(ctx, user); err != nil {
		return err
	}
	if err := w.turn(ctx); err != nil {
		return err
	}
	return w.commit(ctx, user)
}

// judge looks for users who drew more often than they had draws.
func judge(ctx context.Context, db *servers.Database, s scale) (cells []string, wrong string, err error) {
	var drawn, below, lowest, counted int
	row := db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM draw), (SELECT count(*) FROM account WHERE remaining < 0),
		(SELECT min(remaining) FROM account), (SELECT sum(remaining) FROM account)`)
	if err := row.Scan(&drawn, &below, &lowest, &counted); err != nil {
		return nil, "", err
	}
	switch counted = s.Users*s.Draws - counted; {
	case below > 0:
		wrong = fmt.Sprintf("%d of %d users drew too often, one has %d draws left", below, s.Users, lowest)
	case drawn != counted:
		wrong = fmt.Sprintf("%d draws, %d counted", drawn, counted)
	}
	return []string{strconv.Itoa(drawn), strconv.Itoa(below), strconv.Itoa(lowest)}, wrong, nil
}
