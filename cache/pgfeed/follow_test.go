package pgfeed

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

// connect opens a connection that the test closes at its end.
func (r *rig) connect() *pgx.Conn {
	r.t.Helper()
	db, err := pgx.Connect(context.Background(), r.url("postgres"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// reader returns a loader that reads by a connection of its own, with mu held.
func (r *rig) reader(mu *sync.Mutex) (*pgx.Conn, cache.Loader[int64, string]) {
	db := r.connect()
	return db, func(ctx context.Context, id int64) (name string, err error) {
		mu.Lock()
		defer mu.Unlock()
		err = db.QueryRow(context.WithoutCancel(ctx), "SELECT name FROM product WHERE id = $1", id).Scan(&name)
		return name, err
	}
}

// fleet is the table product for tests of whole processes.
func (r *rig) fleet() feedtest.Database {
	writer := r.connect()
	return feedtest.Database{
		Table:  "public.product",
		Feed:   func() feed.Feed { return r.feed(nil, Table{Name: "public.product"}) },
		Reader: func() cache.Loader[int64, string] { _, load := r.reader(new(sync.Mutex)); return load },
		Write: func(id int64, name string) error {
			_, err := writer.Exec(context.Background(), "UPDATE product SET name = $1 WHERE id = $2", name, id)
			return err
		},
	}
}

func TestEveryProcessServesWhatPlainSQLHasWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "INSERT INTO product SELECT i, '', '' FROM generate_series(1, 5) i")
	feedtest.EveryProcessServes(t, r.fleet())
}

func TestFollowTakesLittleMemoryForALongTransaction(t *testing.T) {
	r := newRig(t, product)
	feedtest.ALongTransaction(t, r.fleet(),
		func(n int) {
			r.exec(fmt.Sprintf("INSERT INTO product SELECT i, i::text, '' FROM generate_series(1, %d) i", n))
		},
		func() { r.exec("DELETE FROM product") })
}

func TestNoRowIsDeniedThatCameWhileNobodyWasTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	feedtest.NoRowIsDenied(t, r.fleet(), func() (ids []int64) {
		r.read("SELECT COALESCE(array_agg(id::bigint), '{}') FROM product", &ids)
		return ids
	}, func(id int64) { r.exec(fmt.Sprintf("INSERT INTO product VALUES (%d, '', '')", id)) })
}

// ledgers is fleet for Ledgers, each with a slot of its own.
func (r *rig) ledgers() feedtest.Ledgers {
	return feedtest.Ledgers{
		Database: r.fleet(),
		Ledger: func(n int) feed.Feed {
			return r.feed(func(o *Options) { o.Name = fmt.Sprint(r.name, "_ledger", n) }, Table{Name: "public.product"})
		},
		Replica: func() (cache.Loader[int64, string], func()) {
			var mu sync.Mutex // a connection is for one at a time
			db, load := r.reader(&mu)
			follow := func() { // a transaction sees the rows of its first statement
				mu.Lock()
				defer mu.Unlock()
				if _, err := db.Exec(context.Background(), "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM product"); err != nil {
					r.t.Error(err)
				}
			}
			follow()
			return load, follow
		},
	}
}

func TestALedgerFindsFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "INSERT INTO product SELECT i, '', '' FROM generate_series(1, 6) i")
	feedtest.ALedgerFindsFaults(t, r.ledgers())
}

func TestALedgerIsSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, fmt.Sprintf("INSERT INTO product SELECT i, '', '' FROM generate_series(1, %d) i", feedtest.SilentRows))
	feedtest.ALedgerIsSilent(t, r.ledgers())
}

func TestTheListsOfAGroupFollow(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "ALTER TABLE product REPLICA IDENTITY FULL")
	f := r.feed(nil, Table{Name: "public.product", Columns: []string{"id", "slug"}})
	feedtest.TheListsOfAGroupFollow(t, f, "public.product", r.exec, func(sql string) string { return fmt.Sprint(r.value(sql)) })
}
