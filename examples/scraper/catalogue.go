package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A Product is one row of the catalogue.
type Product struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

// nameOf is what the catalogue calls a product. An answer under any other name belongs to another key.
func nameOf(id int64) string { return "product " + strconv.FormatInt(id, 10) }

// A Catalogue is a table of products in a database that behaves like a loaded one. A query holds one of a fixed number of connections for a
// fixed time, and those that find none free wait in line. It counts what is asked of it.
//
// Its methods may be called concurrently.
type Catalogue struct {
	db        *servers.Database
	queryTime time.Duration

	queries atomic.Int64
	absent  atomic.Int64 // of those, the ones for a row that does not exist
}

// openCatalogue makes a catalogue of the products 1 to rows: in SQLite, or in a schema of its own of the PostgreSQL that a DSN names.
func openCatalogue(ctx context.Context, dsn, schema string, rows int, size scale) (*Catalogue, error) {
	db, err := servers.OpenDatabase(ctx, dsn, schema)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(size.connections)
	db.SetMaxIdleConns(size.connections)
	c := &Catalogue{db: db, queryTime: size.queryTime}
	if err := c.insertAll(ctx, rows); err != nil {
		return nil, errors.Join(fmt.Errorf("filling the catalogue: %w", err), db.Close())
	}
	return c, nil
}

// insertAll writes the rows 1 to n in one transaction, and in one statement that both databases understand.
func (c *Catalogue) insertAll(ctx context.Context, n int) error {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, before it the first error is the one to tell
	if _, err := tx.ExecContext(ctx, "CREATE TABLE product (id BIGINT PRIMARY KEY, name TEXT NOT NULL)"); err != nil {
		return err
	}
	insert := fmt.Sprintf(`INSERT INTO product (id, name)
		WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < %d)
		SELECT id, 'product ' || id FROM n`, n)
	if _, err := tx.ExecContext(ctx, insert); err != nil {
		return err
	}
	return tx.Commit()
}

// Product reads one row, or returns sql.ErrNoRows. It has the form of a cache's loader.
func (c *Catalogue) Product(ctx context.Context, id int64) (p Product, err error) {
	err = c.query(ctx, func(conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, "SELECT id, name FROM product WHERE id = $1", id).Scan(&p.ID, &p.Name)
	})
	if errors.Is(err, sql.ErrNoRows) {
		c.absent.Add(1)
	}
	return p, err
}

// Insert makes a product. The row is committed when it returns nil.
func (c *Catalogue) Insert(ctx context.Context, id int64) error {
	return c.query(ctx, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, "INSERT INTO product (id, name) VALUES ($1, $2)", id, nameOf(id))
		return err
	})
}

// query runs do on a connection of its own, at the end of the query time.
func (c *Catalogue) query(ctx context.Context, do func(*sql.Conn) error) error {
	c.queries.Add(1)
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() // gives it back to the pool
	if err := servers.Sleep(ctx, c.queryTime); err != nil {
		return err
	}
	return do(conn)
}

// IDs streams the ids of all rows, which is what the filter is built from. It counts as one query, however long it is.
func (c *Catalogue) IDs(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		c.queries.Add(1)
		servers.ProductIDs(ctx, c.db.DB)(yield)
	}
}
