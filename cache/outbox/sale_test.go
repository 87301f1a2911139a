package outbox_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/internal/redistest"
)

var errSoldOut = errors.New("sold out")

// A till sells from a stock that many customers buy from at a time.
type till struct {
	db    *sql.DB
	stock *cache.Cache[int64, int64] // from the product to the amount that is left
	take  string                     // of these, a statement that takes the amount only if there is as much
	write string                     // and one that inserts the sale
}

// Sell sells n of a product to a customer, or returns errSoldOut.
func (t *till) Sell(ctx context.Context, product, customer, n int64) error {
	if left, err := t.stock.Get(ctx, product); err == nil && left < n {
		return errSoldOut // most customers of a flash sale end here, without the database
	}
	return cache.Committed(t.stock.Write(ctx, []int64{product}, func(ctx context.Context) error {
		tx, err := t.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		taken, err := tx.ExecContext(ctx, t.take, n, product, n)
		if err != nil {
			return err
		}
		if rows, err := taken.RowsAffected(); err != nil || rows == 0 { // no error of its own: the stock has less than n
			return cmp.Or(err, errSoldOut)
		}
		if _, err := tx.ExecContext(ctx, t.write, product, customer, n); err != nil {
			return err
		}
		return tx.Commit()
	}))
}

// newTill opens the till of one process.
func newTill(d database, server *redistest.Server) *till {
	d.Helper()
	t := &till{
		db:    d.DB,
		take:  "UPDATE stock SET amount = amount - $1 WHERE product = $2 AND amount >= $3",
		write: "INSERT INTO sale (product, customer, amount) VALUES ($1, $2, $3)",
	}
	left := "SELECT amount FROM stock WHERE product = $1"
	if d.dialect == outbox.MySQL {
		t.take = "UPDATE stock SET amount = amount - ? WHERE product = ? AND amount >= ?"
		t.write = "INSERT INTO sale (product, customer, amount) VALUES (?, ?, ?)"
		left = "SELECT amount FROM stock WHERE product = ?"
	}
	t.stock = redistest.Must(cache.New(server.Client(d), func(ctx context.Context, product int64) (n int64, err error) {
		err = t.db.QueryRowContext(ctx, left, product).Scan(&n)
		return n, err
	}, cache.Options{Name: "stock", RedisTimeout: 5 * time.Second}))
	d.Cleanup(func() { _ = t.stock.Close() })
	return t
}

// Two processes with many customers sell what there is and no more; the last item is not sold to somebody who wants two. Without
// the condition of the UPDATE, or without a look at RowsAffected, they sell more.
func TestAFlashSaleSellsWhatThereIs(t *testing.T) {
	for name, on := range map[string]func(*testing.T) database{"PostgreSQL": onPostgres, "MariaDB": onMariaDB} {
		t.Run(name, func(t *testing.T) {
			d := on(t)
			d.do("DROP TABLE IF EXISTS stock")
			d.do("DROP TABLE IF EXISTS sale")
			d.do("CREATE TABLE stock (product bigint PRIMARY KEY, amount bigint)")
			d.do("CREATE TABLE sale (product bigint, customer bigint, amount bigint)")
			d.do("INSERT INTO stock VALUES (1, 21)")
			server := redistest.Start(t)
			d.SetMaxOpenConns(10)
			var sold atomic.Int64
			var customers sync.WaitGroup
			for process := range int64(2) {
				till := newTill(d, server)
				for n := range int64(20) {
					customers.Go(func() {
						switch err := till.Sell(t.Context(), 1, 100*process+n, 2); {
						case err == nil:
							sold.Add(2)
						case !errors.Is(err, errSoldOut):
							t.Error(err)
						}
					})
				}
			}
			customers.Wait()
			var left, written int64
			if err := d.QueryRowContext(t.Context(), "SELECT amount, (SELECT sum(amount) FROM sale) FROM stock").Scan(&left, &written); err != nil {
				t.Fatal(err)
			}
			if sold.Load() != 20 || left != 1 || written != 20 {
				t.Errorf("%d sold, %d written, %d left of 21", sold.Load(), written, left)
			}
		})
	}
}
