package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A mysqlStore is the repository on MySQL and MariaDB, whose INSERT and UPDATE return no rows.
type mysqlStore struct{ *store }

// Insert adds a product, whose id the database makes.
func (s *mysqlStore) Insert(ctx context.Context, p item) (id int64, err error) {
	err = cache.Write(ctx, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		made, err := tx.ExecContext(ctx, "INSERT INTO product (slug, category, cents) VALUES (?, ?, ?)", p.Slug, p.Category, p.Cents)
		if err != nil {
			return err
		}
		if id, err = made.LastInsertId(); err != nil {
			return err
		}
		if err := cache.Also(ctx, s.products.Changes(id)); err != nil { // before the commit
			return err
		}
		return tx.Commit()
	}, s.bySlug.Changes(p.Slug))
	return id, cache.Committed(err) // an error: nothing was inserted, as far as the transaction knows
}

// Raise changes the prices of a category, whose products nobody knows before. It updates the rows that it has locked, and no
// other ones that come into the category meanwhile.
func (s *mysqlStore) Raise(ctx context.Context, category string, cents int64) error {
	return cache.Write(ctx, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		rows, err := tx.QueryContext(ctx, "SELECT id FROM product WHERE category = ? FOR UPDATE", category)
		if err != nil {
			return err
		}
		ids, err := all(rows)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "UPDATE product SET cents = cents + ? WHERE id = ?", cents, id); err != nil {
				return err
			}
		}
		if err := cache.Also(ctx, s.products.Changes(ids...)); err != nil { // once, for all of them
			return err
		}
		return tx.Commit()
	})
}

// Rename moves a product to another slug. The old one is that of the locked row.
func (s *mysqlStore) Rename(ctx context.Context, id int64, slug string) error {
	return cache.Write(ctx, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		var old string
		if err := tx.QueryRowContext(ctx, "SELECT slug FROM product WHERE id = ? FOR UPDATE", id).Scan(&old); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE product SET slug = ? WHERE id = ?", slug, id); err != nil {
			return err
		}
		if err := cache.Also(ctx, s.bySlug.Changes(old)); err != nil {
			return err
		}
		return tx.Commit()
	}, s.products.Changes(id), s.bySlug.Changes(slug))
}

// The keys that LastInsertId and SELECT … FOR UPDATE give are invalidated with those that were named. Without Also the other
// process keeps the absent id, the old price and the old slug, which it has cached before, for their TTL.
func TestKeysThatMariaDBFindsJoinTheirWrite(t *testing.T) {
	d := onMariaDB(t)
	d.do("DROP TABLE IF EXISTS product")
	d.do("CREATE TABLE product (id bigint AUTO_INCREMENT PRIMARY KEY, slug varchar(100) COLLATE utf8mb4_bin UNIQUE, category varchar(100), cents bigint)")
	server := redistest.Start(t)
	ctx := t.Context()
	writer, reader := &mysqlStore{newStore(d, server, nil)}, newStore(d, server, nil)
	cached := func() {
		for range 3 { // nulls go to Redis from the second on
			_, _ = reader.products.Get(ctx, 1)
			_, _ = reader.bySlug.Get(ctx, "lamp")
		}
	}
	wants := func(want item) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, fmt.Sprint("the reader sees ", want), func() bool { // its memory follows by message
			got, err := reader.products.Get(ctx, want.ID)
			of, err2 := reader.bySlug.Get(ctx, want.Slug)
			return err == nil && err2 == nil && got == want && of == want.ID
		})
	}

	cached()
	id, err := writer.Insert(ctx, item{Slug: "lamp", Category: "light", Cents: 100})
	if err != nil || id != 1 {
		t.Fatal(id, err)
	}
	wants(item{1, "lamp", "light", 100})

	cached()
	if err := writer.Raise(ctx, "light", 5); err != nil {
		t.Fatal(err)
	}
	wants(item{1, "lamp", "light", 105})

	cached()
	if err := writer.Rename(ctx, 1, "floor-lamp"); err != nil {
		t.Fatal(err)
	}
	wants(item{1, "floor-lamp", "light", 105})
	redistest.Eventually(t, 20*time.Second, "nobody is found under the old slug", func() bool {
		_, err := reader.bySlug.Get(ctx, "lamp")
		return errors.Is(err, cache.ErrNotFound)
	})
}
