package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/outbox"
)

// rename is a writer: it needs the database and the outbox, and no cache.
func rename(ctx context.Context, db *sql.DB, changes *outbox.Outbox, id int64, name string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, "UPDATE product SET name = $1 WHERE id = $2", name, id); err != nil {
		return err
	}
	if err := changes.Add(ctx, tx, "product", strconv.FormatInt(id, 10)); err != nil {
		return err // and no rename: the key and the row commit together, or neither does
	}
	return tx.Commit()
}

// A transaction says which key it changes, in one line, and needs no cache for that. In a
// service of several processes the cache has a Redis, and each of them calls Follow.
func Example() {
	dir, _ := os.MkdirTemp("", "outbox")
	defer os.RemoveAll(dir)
	db, _ := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	defer db.Close()
	ctx, cancel := context.WithCancel(context.Background())
	_, _ = db.ExecContext(ctx, "CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO product VALUES (42, 'lamp')")

	products, _ := cache.New(nil, func(ctx context.Context, id int64) (name string, err error) {
		err = db.QueryRowContext(ctx, "SELECT name FROM product WHERE id = ?", id).Scan(&name)
		return name, err
	}, cache.Options{Name: "product", Logger: slog.New(slog.DiscardHandler)})
	defer products.Close()

	changes, _ := outbox.New(db, outbox.Options{Dialect: outbox.SQLite})
	_ = changes.Create(ctx)
	followed := make(chan error)
	go func() { followed <- cache.Follow(ctx, changes, products.Route("product", nil)) }()

	fmt.Println(products.Get(ctx, 42))

	if err := rename(ctx, db, changes, 42, "torch"); err != nil {
		fmt.Println(err)
	}

	for products.Stats().Follow.Changes == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(products.Get(ctx, 42))
	cancel()
	<-followed
	// Output:
	// lamp <nil>
	// torch <nil>
}
