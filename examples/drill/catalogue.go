package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A Product is one row of the catalogue. Version counts its updates, so that a reader can tell an old answer from a new one.
type Product struct {
	ID      int64
	Name    string
	Price   int64
	Version int64
}

// nameOf is what the catalogue calls a product. An answer under any other name belongs to another key.
func nameOf(id int64) string { return "product " + strconv.FormatInt(id, 10) }

// originally is the row that a product begins as.
func originally(id int64) Product {
	return Product{ID: id, Name: nameOf(id), Price: 100 + id*7919%10000, Version: 1}
}

// A databaseLoad says how heavily loaded the database behaves.
type databaseLoad struct {
	queryTime   time.Duration // that every query takes
	connections int           // that there are for all
}

// A Catalogue is the database behind the caches: a table of products in SQLite or PostgreSQL that behaves like a loaded one. A query
// holds one of a fixed number of connections for a fixed time, and those that find none free wait in line. It counts what is asked of it.
//
// Its methods may be called concurrently.
type Catalogue struct {
	name      string // for the heading
	db        *servers.Database
	queryTime time.Duration

	queries atomic.Int64 // asked since the last reset
	absent  atomic.Int64 // of those, the ones for a row that does not exist
	running atomic.Int64 // asked and not yet answered: running, or waiting for a connection
	peak    atomic.Int64 // the most there were of those

	mu    sync.Mutex
	asked map[int64][]time.Time // when the products watched by watch were asked for
}

// newCatalogue makes a catalogue in a database.
func newCatalogue(ctx context.Context, db *servers.Database, rows int, load databaseLoad) (*Catalogue, error) {
	c := &Catalogue{name: db.Name, db: db, queryTime: load.queryTime}
	return c, c.fill(ctx, rows, load.connections)
}

// fill makes the table and its rows; if it cannot, it takes everything away again.
func (c *Catalogue) fill(ctx context.Context, rows, connections int) error {
	c.db.SetMaxOpenConns(connections)
	c.db.SetMaxIdleConns(connections)
	if err := c.insert(ctx, rows); err != nil {
		return errors.Join(fmt.Errorf("filling the catalogue: %w", err), c.Close())
	}
	return nil
}

// insert writes the rows 1 to n in one transaction, and in one statement that both databases understand.
func (c *Catalogue) insert(ctx context.Context, n int) error {
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing, before it the first error is the one to tell
	create := "CREATE TABLE product (id BIGINT PRIMARY KEY, name TEXT NOT NULL, price BIGINT NOT NULL, version BIGINT NOT NULL)"
	if _, err := tx.ExecContext(ctx, create); err != nil {
		return err
	}
	insert := fmt.Sprintf(`INSERT INTO product (id, name, price, version)
		WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < %d)
		SELECT id, 'product ' || id, 100 + (id * 7919) %% 10000, 1 FROM n`, n)
	if _, err := tx.ExecContext(ctx, insert); err != nil {
		return err
	}
	return tx.Commit()
}

// Product reads one row, or returns sql.ErrNoRows. It has the form of a cache's loader.
func (c *Catalogue) Product(ctx context.Context, id int64) (p Product, err error) {
	c.note(id)
	// An answer is on its way for half of the time: it is that old when it arrives.
	err = c.query(ctx, c.queryTime/2, func(conn *sql.Conn) error {
		row := conn.QueryRowContext(ctx, "SELECT id, name, price, version FROM product WHERE id = $1", id)
		return row.Scan(&p.ID, &p.Name, &p.Price, &p.Version)
	})
	if errors.Is(err, sql.ErrNoRows) {
		c.absent.Add(1)
	}
	return p, err
}

// Reprice changes the price of a product and returns the version that this made. The change is committed when it returns.
func (c *Catalogue) Reprice(ctx context.Context, id, price int64) (version int64, err error) {
	err = c.query(ctx, 0, func(conn *sql.Conn) error {
		row := conn.QueryRowContext(ctx, "UPDATE product SET price = $1, version = version + 1 WHERE id = $2 RETURNING version", price, id)
		return row.Scan(&version)
	})
	return version, err
}

// query runs do on a connection of its own and takes the query time over it, the given part of it afterwards.
func (c *Catalogue) query(ctx context.Context, after time.Duration, do func(*sql.Conn) error) error {
	c.queries.Add(1)
	servers.Raise(&c.peak, c.running.Add(1))
	defer c.running.Add(-1)

	conn, err := c.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() // gives it back to the pool
	if err := servers.Sleep(ctx, c.queryTime-after); err != nil {
		return err
	}
	found := do(conn)
	if err := servers.Sleep(ctx, after); err != nil {
		return err
	}
	return found
}

// IDs streams the ids of all rows, which is what a filter is built from. It is neither slowed down nor counted.
func (c *Catalogue) IDs(ctx context.Context) iter.Seq2[string, error] {
	return servers.ProductIDs(ctx, c.db.DB)
}

// reset starts the counting anew, and from then on keeps the moments at which the given products are asked for.
func (c *Catalogue) reset(watch ...int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = make(map[int64][]time.Time)
	for _, id := range watch {
		c.asked[id] = nil
	}
	c.queries.Store(0)
	c.absent.Store(0)
	c.peak.Store(c.running.Load())
}

func (c *Catalogue) note(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if times, watched := c.asked[id]; watched {
		c.asked[id] = append(times, time.Now())
	}
}

// askedFor returns the moments since the reset at which a watched product was asked for.
func (c *Catalogue) askedFor(id int64) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[id]
}

// Close closes the database and takes away what was made for the drill.
func (c *Catalogue) Close() error { return c.db.Close() }
