package pgfeed

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
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

var databases atomic.Int32

// A rig is a database of the test's own, on the server that the tests share.
type rig struct {
	t    testing.TB
	s    *dbtest.Server
	name string
	log  *strings.Builder
}

func newRig(t testing.TB, statements ...string) *rig {
	t.Helper()
	r := &rig{t: t, s: server.Get(t), name: fmt.Sprintf("test%d", databases.Add(1)), log: &strings.Builder{}}
	r.admin("CREATE DATABASE " + r.name)
	t.Cleanup(func() {
		r.s = server.Get(t)
		r.admin("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '" + r.name + "' AND active")
		redistest.Eventually(t, 10*time.Second, "the slots are free", func() bool {
			return r.value("SELECT count(*) FROM pg_replication_slots WHERE database = '"+r.name+"' AND active") == int64(0)
		})
		r.admin("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '" + r.name + "'")
		r.admin("DROP DATABASE " + r.name + " WITH (FORCE)")
	})
	r.exec(statements...)
	return r
}

func (r *rig) url(user string) string { return r.s.PostgresURL(user, r.name) }

func (r *rig) admin(sql string) {
	r.t.Helper()
	r.on(r.s.PostgresURL("postgres", "postgres"), func(db *pgx.Conn) error {
		_, err := db.Exec(context.Background(), sql)
		return err
	})
}

func (r *rig) exec(statements ...string) {
	r.t.Helper()
	r.on(r.url("postgres"), func(db *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := db.Exec(context.Background(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
}

func (r *rig) value(sql string) (v any) {
	r.t.Helper()
	r.on(r.url("postgres"), func(db *pgx.Conn) error { return db.QueryRow(context.Background(), sql).Scan(&v) })
	return v
}

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
