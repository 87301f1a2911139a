package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A Product is one row of the catalogue.
type Product struct {
	ID   int64
	Name string
}

// nameOf is what the catalogue calls a product. An answer under any other name belongs to another key.
func nameOf(id int64) string { return "product " + strconv.FormatInt(id, 10) }

// errDown is what a query ends in while the database is down.
var errDown = errors.New("the database is down")

// A Catalogue is a table of products in a database that behaves like a loaded one: a query holds one of a fixed number of connections for
// a fixed time, and those that find none free wait in line. While it is down, a query holds its connection until somebody loses patience,
// and fails. It counts what is asked of it.
//
// Its methods may be called concurrently.
type Catalogue struct {
	db        *servers.Database
	queryTime time.Duration
	patience  time.Duration // of a query while it is down
	rows      int
	down      atomic.Bool

	queries atomic.Int64
	running atomic.Int64 // asked and not yet answered: running, or waiting for a connection
	peak    atomic.Int64 // the most of those since the last look
}

// openCatalogue makes a catalogue of the products 1 to size.rows in a file of SQLite.
func openCatalogue(ctx context.Context, name string, size scale) (*Catalogue, error) {
	db, err := servers.OpenDatabase(ctx, "", name)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(size.connections)
	db.SetMaxIdleConns(size.connections)
	c := &Catalogue{db: db, queryTime: size.queryTime, patience: size.queryPatience, rows: size.rows}
	insert := fmt.Sprintf(`CREATE TABLE product AS
		WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < %d)
		SELECT id, 'product ' || id AS name FROM n; CREATE UNIQUE INDEX product_id ON product (id)`, size.rows)
	if _, err := db.ExecContext(ctx, insert); err != nil {
		return nil, errors.Join(fmt.Errorf("filling the catalogue: %w", err), db.Close())
	}
	return c, nil
}

// Product reads one row, or returns sql.ErrNoRows. It has the form of a cache's loader.
func (c *Catalogue) Product(ctx context.Context, id int64) (p Product, err error) {
	c.queries.Add(1)
	servers.Raise(&c.peak, c.running.Add(1))
	defer c.running.Add(-1)
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return p, err
	}
	defer conn.Close() // gives it back to the pool
	if c.down.Load() {
		return p, errors.Join(servers.Sleep(ctx, c.patience), errDown)
	}
	if err := servers.Sleep(ctx, c.queryTime); err != nil {
		return p, err
	}
	return p, conn.QueryRowContext(ctx, "SELECT id, name FROM product WHERE id = $1", id).Scan(&p.ID, &p.Name)
}

// ids lists the products.
func (c *Catalogue) ids() []int64 {
	all := make([]int64, c.rows)
	for i := range all {
		all[i] = int64(i + 1)
	}
	return all
}

// look returns how many queries there have been, and how many were under way at the most since the last look.
func (c *Catalogue) look() (queries, peak int64) {
	return c.queries.Load(), c.peak.Swap(c.running.Load())
}

func isNotFound(err error) bool { return errors.Is(err, sql.ErrNoRows) }
