package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// A Database is a file of SQLite, or a schema of its own in PostgreSQL. SQL needs no schema's name: it is on the search path.
type Database struct {
	*sql.DB
	Name   string // for the heading
	Source Source
	remove func() error
}

// A Source is what another process needs to open the same Database: the file of SQLite, or the DSN and the schema of PostgreSQL.
type Source struct{ File, DSN, Schema string }

// OpenDatabase makes a schema in the PostgreSQL database of a DSN, or a file in a new temporary directory if that is empty.
func OpenDatabase(ctx context.Context, dsn, schema string) (*Database, error) {
	if dsn == "" {
		return openSQLite(schema)
	}
	return openPostgres(ctx, dsn, schema)
}

func openSQLite(name string) (*Database, error) {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return nil, err
	}
	d := &Database{Name: "SQLite", Source: Source{File: filepath.Join(dir, "database")}}
	d.remove = func() error { return os.RemoveAll(dir) }
	if d.DB, err = d.Source.Open(); err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

func openPostgres(ctx context.Context, dsn, schema string) (*Database, error) {
	d := &Database{Name: "PostgreSQL", Source: Source{DSN: dsn, Schema: schema}}
	var err error
	if d.DB, err = d.Source.Open(); err != nil {
		return nil, err
	}
	reach, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := d.ExecContext(reach, "CREATE SCHEMA "+schema); err != nil {
		return nil, errors.Join(fmt.Errorf("making a schema in PostgreSQL: %w", err), d.DB.Close())
	}
	d.remove = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		db, err := d.Source.Open()
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "DROP SCHEMA "+schema+" CASCADE")
		return errors.Join(err, db.Close())
	}
	return d, nil
}

// Open connects to the database.
func (s Source) Open() (*sql.DB, error) {
	if s.DSN == "" {
		// The write-ahead log lets readers and the writer work side by side; writers wait for one another instead of failing, from the
		// beginning of their transactions on.
		return sql.Open("sqlite", "file:"+s.File+
			"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
	}
	config, err := pgx.ParseConfig(s.DSN)
	if err != nil {
		return nil, fmt.Errorf("the DSN of PostgreSQL: %w", err)
	}
	config.RuntimeParams["search_path"] = s.Schema
	return stdlib.OpenDB(*config), nil
}

// Close closes the database and takes away what was made.
func (d *Database) Close() error { return errors.Join(d.DB.Close(), d.remove()) }
