package main

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strings"
)

const connections = 16 // to the database, of each instance

// A store is the database.
type store struct{ db *sql.DB }

// openStore connects, and makes a table of 10,000 products if there is none.
func openStore(ctx context.Context, url string) (*store, error) {
	driver := "pgx"
	if strings.HasPrefix(url, "file:") {
		driver, url = "sqlite", url+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	for _, statement := range []string{
		"CREATE TABLE IF NOT EXISTS product (id BIGINT PRIMARY KEY, name TEXT NOT NULL, cents BIGINT NOT NULL)",
		`WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 10000)
			INSERT INTO product SELECT id, 'product ' || id, 100 + id % 900 FROM n WHERE true ON CONFLICT DO NOTHING`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			db.Close()
			return nil, fmt.Errorf("preparing the database: %w", err)
		}
	}
	return &store{db}, nil
}

// Product reads a row. That there is none, sql.ErrNoRows, the cache knows by itself.
func (s *store) Product(ctx context.Context, id int64) (p Product, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT id, name, cents FROM product WHERE id = $1", id).Scan(&p.ID, &p.Name, &p.Cents)
	return p, err
}

// SetPrice changes a row, and calls found before the commit. If there is no row, it returns sql.ErrNoRows.
func (s *store) SetPrice(ctx context.Context, id, cents int64, found func() error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if err := tx.QueryRowContext(ctx, "UPDATE product SET cents = $1 WHERE id = $2 RETURNING id", cents, id).Scan(&id); err != nil {
		return err
	}
	if err := found(); err != nil {
		return err
	}
	return tx.Commit()
}

// Keys yields the ids of all rows.
func (s *store) Keys(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		rows, err := s.db.QueryContext(ctx, "SELECT id FROM product")
		if err != nil {
			yield(0, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				yield(0, err)
				return
			}
			if !yield(id, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(0, err)
		}
	}
}
