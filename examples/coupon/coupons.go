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
	"CREATE TABLE coupon (id BIGINT PRIMARY KEY, remaining BIGINT NOT NULL)",
	"CREATE TABLE record (coupon BIGINT NOT NULL, owner BIGINT NOT NULL)", // a UNIQUE constraint would be the second line of defence
}

const (
	coupon    = 66
	slowFirst = 10 // the claim of a process that is slow first
)

func fresh(s scale) []string {
	return []string{
		"DELETE FROM record", "DELETE FROM coupon",
		fmt.Sprintf("INSERT INTO coupon (id, remaining) VALUES (%d, %d)", coupon, s.Coupons),
	}
}

const (
	errHasOne = stage.Refusal("you have one already")
	errGone   = stage.Refusal("all are gone")
)

// A desk gives out coupons.
type desk struct {
	db     *sql.DB
	scale  scale
	claims atomic.Int64
	begin  func() // is called at the beginning of every claim
}

// claim looks whether the user may have a coupon and gives it out. Nothing is wrong with it as long as it is called by one at a time.
func (d *desk) claim(ctx context.Context, user int) error {
	d.begin()
	var remaining, has int
	row := d.db.QueryRowContext(ctx, `SELECT remaining, (SELECT count(*) FROM record WHERE coupon = $1 AND owner = $2) FROM coupon WHERE id = $1`, coupon, user)
	if err := row.Scan(&remaining, &has); err != nil {
		return err
	}
	if has > 0 {
		return errHasOne
	}
	if remaining <= 0 {
		return errGone
	}
	if err := d.work(ctx); err != nil {
		return err
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, before it the first error is the one to tell
	if _, err := tx.ExecContext(ctx, "INSERT INTO record (coupon, owner) VALUES ($1, $2)", coupon, user); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE coupon SET remaining = $1 WHERE id = $2", remaining-1, coupon); err != nil {
		return err
	}
	return tx.Commit()
}

func (d *desk) work(ctx context.Context) error {
	if d.claims.Add(1)%int64(d.scale.SlowEvery) == slowFirst {
		return stage.Think(ctx, d.scale.Slow)
	}
	return stage.Think(ctx, d.scale.Work)
}

// judge compares what was given out with what may be.
func judge(ctx context.Context, db *servers.Database, s scale) (cells []string, wrong string, err error) {
	var given, remaining, twice int
	row := db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM record), (SELECT remaining FROM coupon),
		(SELECT count(*) FROM (SELECT owner FROM record GROUP BY owner HAVING count(*) > 1) AS several)`)
	if err := row.Scan(&given, &remaining, &twice); err != nil {
		return nil, "", err
	}
	switch counted := s.Coupons - remaining; {
	case given > s.Coupons:
		wrong = fmt.Sprintf("%d coupons given out, there were %d", given, s.Coupons)
	case twice > 0:
		wrong = fmt.Sprintf("%d users have more than one", twice)
	case given != counted:
		wrong = fmt.Sprintf("%d coupons given out, %d counted", given, counted)
	case given < s.Coupons:
		wrong = fmt.Sprintf("%d coupons given out, and nobody gets the other %d", given, s.Coupons-given)
	}
	return []string{strconv.Itoa(given), strconv.Itoa(s.Coupons - remaining), strconv.Itoa(twice)}, wrong, nil
}
