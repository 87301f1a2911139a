package hoteltest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
)

// Setup is what a database needs besides [Tables].
type Setup struct {
	Statements []string // rights of the feed's user, or the table of an outbox
	Outbox     string   // what a program without levee adds to its transaction, for the hotel ID that moves to CITY; "": nothing
}

// Outbox is a Setup with the table of an outbox.
func Outbox(d outbox.Dialect) Setup {
	return Setup{
		Statements: []string{d.Schema("levee_outbox")},
		Outbox: "INSERT INTO levee_outbox (subject, subject_key) " +
			"SELECT 'hotel', 'ID' UNION SELECT 'city', 'CITY' UNION SELECT 'city', city FROM hotels WHERE id = ID",
	}
}

// MariaDB makes the database shop on a server that dbtest.MariaDB has started. Its columns have the default collation,
// which finds Oslo by oslo.
func MariaDB(t testing.TB, shared *dbtest.Shared, setup Setup) Database {
	s := shared.Get(t)
	addr := fmt.Sprintf("127.0.0.1:%d", s.Port)
	db := open(t, "mysql", "root@tcp("+addr+")/")
	execute(t, db, slices.Concat([]string{"DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4", "USE shop"}, Tables, setup.Statements)...)
	return Database{
		Env:    []string{"DATABASE_DSN=root@tcp(" + addr + ")/shop", "DATABASE_ADDR=" + addr, "FEED_PASSWORD=secret"},
		ByHand: setup.byHand(db, "USE shop"),
		Kill:   s.Kill,
	}
}

// PostgreSQL makes the table in the database postgres of a server that dbtest.Postgres has started.
func PostgreSQL(t testing.TB, shared *dbtest.Shared, setup Setup) Database {
	s := shared.Get(t)
	url := s.PostgresURL("postgres", "postgres")
	db := open(t, "pgx", url)
	execute(t, db, slices.Concat([]string{
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", // of an earlier run on this server
		"DROP PUBLICATION IF EXISTS levee_hotels", "DROP TABLE IF EXISTS hotels, levee_outbox", "DROP ROLE IF EXISTS levee",
	}, Tables, setup.Statements)...)
	return Database{
		Env:    []string{"DATABASE_URL=" + url, "FEED_URL=" + s.PostgresURL("levee", "postgres")},
		ByHand: setup.byHand(db),
		Kill:   s.Kill,
	}
}

func open(t testing.TB, driver, source string) *sql.DB {
	t.Helper()
	db := redistest.Must(sql.Open(driver, source))
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// execute runs statements on one connection.
func execute(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	c := redistest.Must(db.Conn(context.Background()))
	defer c.Close()
	for _, statement := range statements {
		if _, err := c.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func (s Setup) byHand(db *sql.DB, first ...string) func(t testing.TB, id int, city string) {
	return func(t testing.TB, id int, city string) {
		t.Helper()
		all := append(slices.Clone(first), "BEGIN")
		if s.Outbox != "" {
			all = append(all, strings.NewReplacer("ID", fmt.Sprint(id), "CITY", city).Replace(s.Outbox))
		}
		execute(t, db, append(all, fmt.Sprintf("UPDATE hotels SET city = '%s' WHERE id = %d", city, id), "COMMIT")...)
	}
}
