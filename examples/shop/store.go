package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A Product is what a page shows.
type Product struct {
	ID    int64
	Name  string
	Cents int64
}

// hot is the product that half of the visitors want.
const hot = 1

// A catalogue is how many products there are, numbered from 1: those that can be bought, and behind them those that were withdrawn. Their
// rows are still there, so the filter knows them, and their pages are not.
type catalogue struct{ Products, Withdrawn int64 }

// fill makes the table.
func (c catalogue) fill(ctx context.Context, db *servers.Database) error {
	_, err := db.ExecContext(ctx, fmt.Sprintf(`CREATE TABLE product (id BIGINT PRIMARY KEY, name TEXT NOT NULL, cents BIGINT NOT NULL, withdrawn INT NOT NULL);
		INSERT INTO product
		WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < %d)
		SELECT id, 'Product ' || id, 999 + 100 * (id %% 50), CASE WHEN id > %d THEN 1 ELSE 0 END FROM n`, c.Products+c.Withdrawn, c.Products))
	if err != nil {
		return fmt.Errorf("filling the catalogue: %w", err)
	}
	return nil
}

// A Store reads and writes products in a database that behaves like a loaded one: a query holds one of a fixed number of connections for a
// while, and one that finds none free waits. It counts what is asked of it. It may be used concurrently.
type Store struct {
	db        *sql.DB
	queryTime atomic.Int64 // nanoseconds
	size      catalogue

	running atomic.Int64 // asked and not yet answered: running, or waiting for a connection
	figures struct{ queries, hot, withdrawn, absent, peak atomic.Int64 }
}

// Product reads one row. It returns sql.ErrNoRows if there is none. It has the form of a cache's loader.
func (s *Store) Product(ctx context.Context, id int64) (p Product, err error) {
	if ctx.Err() != nil {
		return p, ctx.Err() // too late to ask
	}
	s.begin()
	defer s.running.Add(-1)
	conn, err := s.connect(ctx, id)
	if err != nil {
		return p, err
	}
	defer conn.Close() // gives it back to the pool
	row := conn.QueryRowContext(ctx, "SELECT id, name, cents FROM product WHERE id = $1 AND withdrawn = 0", id)
	return p, row.Scan(&p.ID, &p.Name, &p.Cents)
}

// SetPrice changes one row.
func (s *Store) SetPrice(ctx context.Context, id, cents int64) error {
	_, err := s.db.ExecContext(ctx, "UPDATE product SET cents = $1 WHERE id = $2", cents, id)
	return err
}

// IDs gives the numbers of all rows as a filter wants them.
func (s *Store) IDs(ctx context.Context) iter.Seq2[string, error] {
	return servers.ProductIDs(ctx, s.db)
}

// connect waits for a connection, and for as long as a query for id takes.
func (s *Store) connect(ctx context.Context, id int64) (*sql.Conn, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s.count(id)
	if err := servers.Sleep(ctx, time.Duration(s.queryTime.Load())); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (s *Store) count(id int64) {
	s.figures.queries.Add(1)
	switch {
	case id == hot:
		s.figures.hot.Add(1)
	case id > s.size.Products+s.size.Withdrawn:
		s.figures.absent.Add(1)
	case id > s.size.Products:
		s.figures.withdrawn.Add(1)
	}
}

// begin counts a query that is under way from here on.
func (s *Store) begin() {
	servers.Raise(&s.figures.peak, s.running.Add(1))
}
