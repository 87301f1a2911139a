package mysqlfeed

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

// connect opens a connection that the test closes at its end.
func (r *rig) connect() *client.Conn {
	r.t.Helper()
	c, err := client.Connect(r.addr(), "root", "", r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// reader returns a loader that reads by a connection of its own, with mu held.
func (r *rig) reader(mu *sync.Mutex) (*client.Conn, cache.Loader[int64, string]) {
	db := r.connect()
	return db, func(_ context.Context, id int64) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		result, err := db.Execute(fmt.Sprintf("SELECT name FROM product WHERE id = %d", id))
		if err != nil {
			return "", err
		}
		defer result.Close()
		name, err := result.GetString(0, 0)
		return strings.Clone(name), err
	}
}

// fleet is the table product for tests of whole processes.
func (r *rig) fleet() feedtest.Database {
	writer := r.connect()
	return feedtest.Database{
		Table:  r.name + ".product",
		Feed:   func() feed.Feed { return r.feed(nil, Table{Name: "product"}) },
		Reader: func() cache.Loader[int64, string] { _, load := r.reader(new(sync.Mutex)); return load },
		Write: func(id int64, name string) error {
			_, err := writer.Execute(fmt.Sprintf("UPDATE product SET name = '%s' WHERE id = %d", name, id))
			return err
		},
	}
}

func TestEveryProcessServesWhatPlainSQLHasWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "INSERT INTO product VALUES (1, '', ''), (2, '', ''), (3, '', ''), (4, '', ''), (5, '', '')")
	feedtest.EveryProcessServes(t, r.fleet())
}

func TestFollowTakesLittleMemoryForALongTransaction(t *testing.T) {
	r := newRig(t, product)
	feedtest.ALongTransaction(t, r.fleet(), r.fill, func() { r.exec("DELETE FROM product") })
}

// fill inserts rows with the ids from 1 to n in one transaction.
func (r *rig) fill(n int) {
	r.t.Helper()
	r.exec("INSERT INTO product SELECT n, n, REPEAT('x', 160) FROM " + numbers(n))
}

// numbers is a table of the numbers n from 1 on, up to a million, in MySQL as in MariaDB.
func numbers(upTo int) string {
	var digits, sum []string
	for i, factor := 0, 1; factor < 1_000_000; i, factor = i+1, factor*10 {
		digits = append(digits, fmt.Sprintf("(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 "+
			"UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) AS d%d", i))
		sum = append(sum, fmt.Sprintf("%d * d%d.d", factor, i))
	}
	return fmt.Sprintf("(SELECT 1 + %s AS n FROM %s HAVING n <= %d) AS numbers", strings.Join(sum, " + "), strings.Join(digits, ", "), upTo)
}

func TestNoRowIsDeniedThatCameWhileNobodyWasTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	feedtest.NoRowIsDenied(t, r.fleet(), func() (ids []int64) {
		for _, id := range strings.Fields(r.value("SELECT COALESCE(GROUP_CONCAT(id SEPARATOR ' '), '') FROM product")) {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				t.Error(err)
			}
			ids = append(ids, n)
		}
		return ids
	}, func(id int64) { r.exec(fmt.Sprintf("INSERT INTO product VALUES (%d, '', '')", id)) })
}

// ledgers is fleet for Ledgers, each with a feed of its own.
func (r *rig) ledgers() feedtest.Ledgers {
	return feedtest.Ledgers{
		Database: r.fleet(),
		Ledger: func(n int) feed.Feed {
			return r.feed(func(o *Options) { o.Name = fmt.Sprint(r.name, "_ledger", n) }, Table{Name: "product"})
		},
		Replica: func() (cache.Loader[int64, string], func()) {
			var mu sync.Mutex // a connection is for one at a time
			db, load := r.reader(&mu)
			follow := func() {
				mu.Lock()
				defer mu.Unlock()
				for _, sql := range []string{"ROLLBACK", "START TRANSACTION WITH CONSISTENT SNAPSHOT"} {
					if _, err := db.Execute(sql); err != nil {
						r.t.Error(err)
					}
				}
			}
			follow()
			return load, follow
		},
	}
}

func TestALedgerFindsFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "INSERT INTO product SELECT n, n, '' FROM "+numbers(6))
	feedtest.ALedgerFindsFaults(t, r.ledgers())
}

func TestALedgerIsSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "INSERT INTO product SELECT n, n, '' FROM "+numbers(feedtest.SilentRows))
	feedtest.ALedgerIsSilent(t, r.ledgers())
}

func TestTheListsOfAGroupFollow(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	feedtest.TheListsOfAGroupFollow(t, r.feed(nil, Table{Name: "product", Columns: []string{"id", "slug"}}), r.name+".product", r.exec, r.value)
}
