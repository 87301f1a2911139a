package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/internal/redistest"
)

// An item is a row of a table with two keys, of which the database makes one.
type item struct {
	ID       int64
	Slug     string
	Category string
	Cents    int64
}

// A store is a repository whose rows are cached by id and by slug.
type store struct {
	db       *sql.DB
	key      string // the placeholder of a statement's first argument
	products *cache.Cache[int64, item]
	bySlug   *cache.Cache[string, int64]
}

// Insert adds a product, whose id the database makes.
func (s *store) Insert(ctx context.Context, p item) (id int64, err error) {
	err = cache.Write(ctx, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		row := tx.QueryRowContext(ctx, "INSERT INTO product (slug, category, cents) VALUES ($1, $2, $3) RETURNING id", p.Slug, p.Category, p.Cents)
		if err := row.Scan(&id); err != nil {
			return err
		}
		if err := cache.Also(ctx, s.products.Changes(id)); err != nil { // before the commit
			return err // a filter that does not know the id would deny the row: roll back
		}
		return tx.Commit()
	}, s.bySlug.Changes(p.Slug))
	return id, cache.Committed(err) // an error: nothing was inserted, as far as the transaction knows
}

// Raise changes the prices of a category, whose products nobody knows before.
func (s *store) Raise(ctx context.Context, category string, cents int64) error {
	return cache.Write(ctx, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		rows, err := tx.QueryContext(ctx, "UPDATE product SET cents = cents + $1 WHERE category = $2 RETURNING id", cents, category)
		if err != nil {
			return err
		}
		ids, err := all(rows)
		if err != nil {
			return err
		}
		if err := cache.Also(ctx, s.products.Changes(ids...)); err != nil { // once, for all of them
			return err
		}
		return tx.Commit()
	})
}

// Rename moves a product to another slug. The old one is that of the locked row: read before
// the transaction, it may be another one by now.
func (s *store) Rename(ctx context.Context, id int64, slug string) error {
	return cache.Write(ctx, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		var old string
		if err := tx.QueryRowContext(ctx, "SELECT slug FROM product WHERE id = $1 FOR UPDATE", id).Scan(&old); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE product SET slug = $1 WHERE id = $2", slug, id); err != nil {
			return err
		}
		if err := cache.Also(ctx, s.bySlug.Changes(old)); err != nil {
			return err
		}
		return tx.Commit()
	}, s.products.Changes(id), s.bySlug.Changes(slug))
}

// all returns the ids of rows.
func all(rows *sql.Rows) (ids []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func (s *store) product(ctx context.Context, id int64) (p item, err error) {
	row := s.db.QueryRowContext(ctx, "SELECT id, slug, category, cents FROM product WHERE id = "+s.key, id)
	err = row.Scan(&p.ID, &p.Slug, &p.Category, &p.Cents)
	return p, err
}

func (s *store) id(ctx context.Context, slug string) (id int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT id FROM product WHERE slug = "+s.key, slug).Scan(&id)
	return id, err
}

// newStore opens the repository of one process on a Redis.
func newStore(d database, server *redistest.Server, exists *bloom.Filter) *store {
	d.Helper()
	rdb, s := server.Client(d), &store{db: d.DB, key: "$1"}
	if d.dialect == outbox.MySQL {
		s.key = "?"
	}
	s.products = redistest.Must(cache.New(rdb, s.product, cache.Options{Name: "product", Filter: exists, NullTTL: 10 * time.Minute, RedisTimeout: 5 * time.Second}))
	d.Cleanup(func() { _ = s.products.Close() })
	s.bySlug = redistest.Must(cache.New(rdb, s.id, cache.Options{Name: "product-slug", RedisTimeout: 5 * time.Second}))
	d.Cleanup(func() { _ = s.bySlug.Close() })
	return s
}

// The keys that INSERT, UPDATE and SELECT … FOR UPDATE give are closed before the commit, so
// what other processes read beside the transaction does not stay. Without Also the reader in
// the middle keeps the absent id, the old price and the old slug for their TTL. A counting
// filter counts the new id, also if it looks held: else it is denied when those are removed
// whose positions it shares.
func TestKeysThatPostgresReturnsJoinTheirWrite(t *testing.T) {
	d := onPostgres(t)
	d.do("DROP TABLE IF EXISTS product")
	d.do("CREATE TABLE product (id bigserial PRIMARY KEY, slug text UNIQUE, category text, cents bigint)")
	// Each COMMIT waits for a lock that the test holds.
	d.do(`CREATE OR REPLACE FUNCTION hold() RETURNS trigger AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$ LANGUAGE plpgsql`)
	d.do(`CREATE CONSTRAINT TRIGGER held AFTER INSERT OR UPDATE ON product DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()`)
	server := redistest.Start(t)
	ctx := t.Context()
	exists := redistest.Must(bloom.New(bloom.Options{Capacity: 100, Counting: true, Complete: true}))
	defer exists.Close()
	var others []string
	for n := 1000; !exists.MayContain(ctx, "1"); n++ {
		others = append(others, fmt.Sprint(n))
		if err := exists.Add(ctx, others[len(others)-1]); err != nil {
			t.Fatal(err)
		}
	}
	writer, reader := newStore(d, server, exists), newStore(d, server, exists)
	beside := func(write func() error, read func()) {
		t.Helper()
		lock := redistest.Must(d.Conn(ctx))
		defer lock.Close()
		_ = redistest.Must(lock.ExecContext(ctx, "SELECT pg_advisory_lock(7)"))
		done := make(chan error)
		go func() { done <- write() }()
		redistest.Eventually(t, 20*time.Second, "the commit waits", func() bool {
			var waiting int
			err := d.QueryRowContext(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&waiting)
			return err == nil && waiting == 1
		})
		read()
		_ = redistest.Must(lock.ExecContext(ctx, "SELECT pg_advisory_unlock(7)"))
		if err := <-done; err != nil {
			t.Error(err)
		}
	}

	var id int64
	beside(func() (err error) {
		id, err = writer.Insert(ctx, item{Slug: "lamp", Category: "light", Cents: 100})
		return err
	}, func() {
		for range 3 { // nulls go to Redis from the second on
			if _, err := reader.products.Get(ctx, 1); !errors.Is(err, cache.ErrNotFound) {
				t.Errorf("before the commit: %v", err)
			}
		}
	})
	wants := func(want item) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, fmt.Sprint("the reader sees ", want), func() bool { // its memory follows by message
			got, err := reader.products.Get(ctx, want.ID)
			of, err2 := reader.bySlug.Get(ctx, want.Slug)
			return err == nil && err2 == nil && got == want && of == want.ID
		})
	}
	if err := exists.Remove(ctx, others...); err != nil {
		t.Fatal(err)
	}
	wants(item{id, "lamp", "light", 100})

	beside(func() error { return writer.Raise(ctx, "light", 5) }, func() {
		for range 3 {
			if got, err := reader.products.Get(ctx, id); err != nil || got.Cents != 100 {
				t.Errorf("before the commit: %v, %v", got, err)
			}
		}
	})
	wants(item{id, "lamp", "light", 105})

	beside(func() error { return writer.Rename(ctx, id, "floor-lamp") }, func() {
		for range 3 {
			if got, err := reader.bySlug.Get(ctx, "lamp"); err != nil || got != id {
				t.Errorf("before the commit: %v, %v", got, err)
			}
		}
	})
	wants(item{id, "floor-lamp", "light", 105})
	redistest.Eventually(t, 20*time.Second, "nobody is found under the old slug", func() bool {
		_, err := reader.bySlug.Get(ctx, "lamp")
		return errors.Is(err, cache.ErrNotFound)
	})
}
