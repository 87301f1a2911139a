package mysqlfeed

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
	"github.com/levee-go/levee/internal/dbtest"
)

// server is a MySQL if the PATH has one, and else a MariaDB. Both write of a transaction
// what the other does not, so the tests are to run with each.
var server = &dbtest.Shared{Start: func() (*dbtest.Server, error) {
	s, err := dbtest.MySQL()
	if errors.Is(err, dbtest.ErrAbsent) {
		return dbtest.MariaDB()
	}
	return s, err
}}

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

// mariaDB reports whether the server is one, and not a MySQL.
func (r *rig) mariaDB() bool {
	r.t.Helper()
	return strings.Contains(r.value("SELECT @@version"), "MariaDB")
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

func (r *rig) open(f *Feed, from feed.Position) *feedtest.Follower {
	r.t.Helper()
	return feedtest.Open(r.t, f, from)
}
