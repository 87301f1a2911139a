package mysqlfeed

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/dbtest"
)

var server = &dbtest.Shared{Start: dbtest.MariaDB}

func TestMain(m *testing.M) { dbtest.Main(m, server) }

var databases atomic.Int32

// A rig is a database of the test's own, on the server that the tests share.
type rig struct {
	t    testing.TB
	s    *dbtest.Server
	name string
}

func newRig(t testing.TB, statements ...string) *rig {
	t.Helper()
	r := &rig{t: t, s: server.Get(t), name: fmt.Sprintf("test%d", databases.Add(1))}
	r.on("", func(c *client.Conn) error { _, err := c.Execute("CREATE DATABASE " + r.name); return err })
	t.Cleanup(func() {
		r.s = server.Get(t)
		r.exec("DROP DATABASE IF EXISTS " + r.name)
	})
	r.exec(statements...)
	return r
}

func (r *rig) addr() string { return fmt.Sprintf("127.0.0.1:%d", r.s.Port) }

func (r *rig) on(database string, do func(*client.Conn) error) {
	r.t.Helper()
	c, err := client.Connect(r.addr(), "root", "", database)
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	if err := do(c); err != nil {
		r.t.Fatal(err)
	}
}

// exec runs statements in one session.
func (r *rig) exec(statements ...string) {
	r.t.Helper()
	r.on(r.name, func(c *client.Conn) error {
		for _, sql := range statements {
			if _, err := c.Execute(sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
}

func (r *rig) value(sql string) (v string) {
	r.t.Helper()
	r.on(r.name, func(c *client.Conn) error {
		result, err := c.Execute(sql)
		if err == nil {
			v, err = result.GetString(0, 0)
		}
		return err
	})
	return v
}

// feed makes a feed of tables of the database; change may be nil.
func (r *rig) feed(change func(*Options), tables ...Table) *Feed {
	r.t.Helper()
	for i := range tables {
		if !strings.Contains(tables[i].Name, ".") {
			tables[i].Name = r.name + "." + tables[i].Name
		}
	}
	o := Options{Name: r.name, Addr: r.addr(), User: "root", Tables: tables, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// A follower reads a stream as cache.Follow does.
type follower struct {
	t testing.TB
	cache.Stream
	at   cache.Position // of the last batch that had one
	once sync.Once
}

func (r *rig) open(f *Feed, from cache.Position) *follower {
	r.t.Helper()
	s, err := f.Open(soon(r.t), from)
	if err != nil {
		r.t.Fatal(err)
	}
	w := &follower{t: r.t, Stream: s, at: from}
	r.t.Cleanup(w.close)
	return w
}

func (w *follower) close() {
	w.once.Do(func() {
		if err := w.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

// next returns the next n changes at least, and then what belongs to their transaction.
func (w *follower) next(n int) (changes []cache.Change) {
	w.t.Helper()
	ctx := soon(w.t)
	for ended := false; len(changes) < n || !ended; {
		b, err := w.Next(ctx)
		if err != nil {
			w.t.Fatalf("after %d of %d changes: %v", len(changes), n, err)
		}
		changes = append(changes, b.Changes...)
		if ended = b.Position != (cache.Position{}); ended {
			if b.Position.Order < w.at.Order {
				w.t.Errorf("position %v after %v", b.Position, w.at)
			}
			w.at = b.Position
		}
	}
	return changes
}

// soon ends when a test has waited long enough.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func summary(changes []cache.Change) string {
	var b strings.Builder
	show := func(r cache.Row) string {
		if r == nil {
			return "<nil>"
		}
		return fmt.Sprint(r)
	}
	for _, c := range changes {
		fmt.Fprintf(&b, "%d %s %s; ", c.Kind, show(c.Old), show(c.New))
	}
	return b.String()
}
