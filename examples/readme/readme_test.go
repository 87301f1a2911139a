package readme

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/dbtest"
	"github.com/levee-go/levee/internal/redistest"
)

var postgres = dbtest.Shared{Start: dbtest.Postgres}

func TestMain(m *testing.M) { dbtest.Main(m, &postgres) }

// A Product is a row.
type Product struct {
	ID   int64
	Name string
}

// A store is the database of README.
type store struct{ *sql.DB }

func (s store) Product(ctx context.Context, id int64) (p Product, err error) {
	err = s.QueryRowContext(ctx, "SELECT id, name FROM product WHERE id = $1", id).Scan(&p.ID, &p.Name)
	return p, err
}

func (s store) Rename(ctx context.Context, id int64, name string) error {
	_, err := s.ExecContext(ctx, "UPDATE product SET name = $2 WHERE id = $1", id, name)
	return err
}

func (s store) Keys(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		rows, err := s.QueryContext(ctx, "SELECT id FROM product")
		if err != nil {
			yield(0, err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); !yield(id, err) || err != nil {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(0, err)
		}
	}
}

// claim is what the lock protects: the database refuses a holder with a lower fence than the last.
func (s store) claim(ctx context.Context, fence int64) error {
	result, err := s.ExecContext(ctx, "UPDATE coupon SET claimed = claimed + 1, fence = $1 WHERE id = 66 AND fence <= $1", fence)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errors.New("a later holder has been here"))
	}
	return nil
}

// open fills a database with two products and a coupon.
func open(t *testing.T) store {
	t.Helper()
	db, err := sql.Open("pgx", postgres.Get(t).PostgresURL("postgres", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, statement := range []string{
		"DROP TABLE IF EXISTS product, coupon",
		"CREATE TABLE product (id bigint PRIMARY KEY, name text NOT NULL)",
		"INSERT INTO product VALUES (42, 'old'), (43, 'other')",
		"CREATE TABLE coupon (id bigint PRIMARY KEY, claimed int NOT NULL, fence bigint NOT NULL)",
		"INSERT INTO coupon VALUES (66, 0, 0)",
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	return store{db}
}

// theCaches and theKeeper are the two servers that operations.md asks for.
func theCaches(t *testing.T) *redistest.Server {
	return redistest.Start(t, "--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru")
}

func theKeeper(t *testing.T) *redistest.Server {
	return redistest.Start(t, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
}

func TestTheTenLinesReadAndWrite(t *testing.T) {
	store, server := open(t), theCaches(t)
	rdb := server.Client(t)
	err := tenLines(t.Context(), rdb, store, func(before Product, products products) {
		if before.Name != "old" {
			t.Errorf("before the Write: %+v", before)
		}
		for range 2 {
			if p, err := products.Get(t.Context(), 42); err != nil || p.Name != "new" {
				t.Errorf("after it: %+v, %v", p, err)
			}
		}
		if n := products.Stats().Loads; n != 2 {
			t.Errorf("%d loads, want one before and one after", n)
		}
		if _, err := products.Get(t.Context(), 2000); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("an absent product: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The first build of a filter waits for a minute, as the piece says: the rest of it is a long test.
func TestTheFilterKeepsScrapersOut(t *testing.T) {
	store, caches, keeper := open(t), theCaches(t), theKeeper(t)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	err := keepScrapersOut(ctx, caches.Client(t), keeper.Client(t), store, func(products products) {
		for id, want := range map[int64]error{42: nil, 2000: cache.ErrNotFound} {
			if _, err := products.Get(ctx, id); !errors.Is(err, want) {
				t.Errorf("product %d, before the filter is built: %v", id, err)
			}
		}
		if os.Getenv("LEVEE_LONG") == "" {
			return
		}
		redistest.Eventually(t, 2*time.Minute, "the filter answers", func() bool {
			if p, err := products.Get(ctx, 42); err != nil || p.ID != 42 {
				t.Errorf("%+v, %v", p, err)
			}
			_, err := products.Get(ctx, 3000)
			return errors.Is(err, cache.ErrNotFound) && products.Stats().Filter > 0
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneAtATimeClaimsTheCoupon(t *testing.T) {
	store, keeper := open(t), theKeeper(t)
	var inside sync.Mutex
	var customers sync.WaitGroup
	for range 8 {
		rdb := keeper.Client(t)
		customers.Go(func() {
			err := lockOut(t.Context(), rdb, func(ctx context.Context, fence int64) error {
				if !inside.TryLock() {
					t.Error("two holders at once")
				} else {
					defer inside.Unlock()
				}
				return store.claim(ctx, fence)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	customers.Wait()
	var claimed int
	if err := store.QueryRow("SELECT claimed FROM coupon").Scan(&claimed); err != nil || claimed != 8 {
		t.Errorf("%d claims of 8, %v", claimed, err)
	}
}

var piece = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// A piece that is changed on the page and not here, or the other way round, or that no test runs, is found here.
func TestEveryPieceOfREADMEIsRun(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("pieces_test.go")
	if err != nil {
		t.Fatal(err)
	}
	pieces := piece.FindAllStringSubmatch(string(page), -1)
	for _, p := range pieces {
		here := "\t" + strings.TrimSuffix(strings.ReplaceAll(p[1], "\n", "\n\t"), "\t")
		if here = strings.ReplaceAll(here, "\n\t\n", "\n\n"); !strings.Contains(string(file), "\n"+here) {
			t.Errorf("pieces_test.go does not hold\n%s", p[1])
		}
	}
	if functions := strings.Count(string(file), "\nfunc "); len(pieces) != functions {
		t.Errorf("%d pieces, %d functions", len(pieces), functions)
	}
}
