package pgfeed

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
)

var server = &dbtest.Shared{Start: dbtest.Postgres}

func TestMain(m *testing.M) { dbtest.Main(m, server) }

var (
	databases atomic.Int32
	empty     = make(chan string, 100) // databases that a test has left as it found them
	admins    session                  // to the database postgres
)

// A rig is a database of the test's own, on the server that the tests share.
type rig struct {
	t       testing.TB
	s       *dbtest.Server
	name    string
	session session
}

func newRig(t testing.TB, statements ...string) *rig {
	t.Helper()
	r := &rig{t: t, s: server.Get(t)}
	select {
	case r.name = <-empty:
	default:
		r.name = fmt.Sprintf("test%d", databases.Add(1))
		r.admin("CREATE DATABASE " + r.name)
	}
	t.Cleanup(r.end)
	r.exec(statements...)
	return r
}

// end removes all that the test has made. Another test gets the database then: that is less work for the server than
// to drop it and make a new one.
func (r *rig) end() {
	r.s = server.Get(r.t)
	r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	redistest.Eventually(r.t, 30*time.Second, "the slots are free", func() bool {
		return r.value("SELECT count(*) FROM pg_replication_slots WHERE database = '"+r.name+"' AND active") == int64(0)
	})
	r.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
	if r.t.Failed() {
		r.session.hangUp()
		r.admin("DROP DATABASE " + r.name + " WITH (FORCE)")
		return
	}
	r.exec("ALTER DATABASE "+r.name+" RESET ALL", "DROP SCHEMA public CASCADE",
		"CREATE SCHEMA public AUTHORIZATION pg_database_owner", "GRANT USAGE ON SCHEMA public TO PUBLIC", // as initdb makes it
		"DO $$ DECLARE p name; BEGIN FOR p IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', p); END LOOP; END $$")
	r.session.hangUp()
	empty <- r.name
}

// A session is a connection that is kept for statements, each as on a connection of its own.
type session struct{ idle atomic.Pointer[pgx.Conn] }

func (s *session) on(url string, do func(*pgx.Conn) error) error {
	ctx := context.Background()
	db := s.idle.Swap(nil)
	if db == nil || db.Ping(ctx) != nil { // the server was killed, or has ended the connection
		config, err := pgx.ParseConfig(url)
		if err != nil {
			return err
		}
		config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec // DISCARD ALL takes what is prepared away
		if db, err = pgx.ConnectConfig(ctx, config); err != nil {
			return err
		}
	}
	err := do(db)
	if err == nil {
		_, err = db.Exec(ctx, "DISCARD ALL")
	}
	if err != nil {
		_ = db.Close(ctx)
		return err
	}
	if old := s.idle.Swap(db); old != nil {
		_ = old.Close(ctx)
	}
	return nil
}

// hangUp closes the connection.
func (s *session) hangUp() {
	if db := s.idle.Swap(nil); db != nil {
		_ = db.Close(context.Background())
	}
}

func (r *rig) url(user string) string { return r.s.PostgresURL(user, r.name) }

func (r *rig) admin(sql string) {
	r.t.Helper()
	err := admins.on(r.s.PostgresURL("postgres", "postgres"), func(db *pgx.Conn) error {
		_, err := db.Exec(context.Background(), sql)
		return err
	})
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r *rig) exec(statements ...string) {
	r.t.Helper()
	err := r.session.on(r.url("postgres"), func(db *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := db.Exec(context.Background(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) value(sql string) (v any) {
	r.t.Helper()
	r.read(sql, &v)
	return v
}

// read reads the row of a query.
func (r *rig) read(sql string, into ...any) {
	r.t.Helper()
	err := r.session.on(r.url("postgres"), func(db *pgx.Conn) error { return db.QueryRow(context.Background(), sql).Scan(into...) })
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// on uses a connection of its own.
func (r *rig) on(url string, do func(*pgx.Conn) error) {
	r.t.Helper()
	db, err := pgx.Connect(context.Background(), url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer db.Close(context.Background())
	if err := do(db); err != nil {
		r.t.Fatal(err)
	}
}

// feed makes a feed of the database; change may be nil.
func (r *rig) feed(change func(*Options), tables ...Table) *Feed {
	r.t.Helper()
	o := Options{Name: r.name, URL: r.url("postgres"), Tables: tables, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *rig) open(f *Feed, from feed.Position) *feedtest.Follower {
	r.t.Helper()
	return feedtest.Open(r.t, f, from)
}
