package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cachetest"
)

// go-redis writes each failed dial to stderr. Tests that take Redis away need none of it.
func init() { redis.SetLogger(silence{}) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// A table is the Store of a test: rows in memory that count their loads and fail when told to.
type table struct {
	cachetest.Store[int64, Product]
}

func newTable(products ...Product) *table {
	t := &table{}
	for _, p := range products {
		t.Put(p.ID, p)
	}
	return t
}

func (t *table) Product(ctx context.Context, id int64) (Product, error) { return t.Load(ctx, id) }

func (t *table) Rename(_ context.Context, id int64, name string) error {
	return t.Update(id, func(p *Product) { p.Name = name })
}

// open makes a Catalog of store. Its cache ends with the test.
func open(t *testing.T, rdb redis.UniversalClient, store *table) *Catalog {
	return New(store, cachetest.New(t, rdb, store.Product, Options))
}

func (c *Catalog) shows(t *testing.T, id int64, want string) {
	t.Helper()
	if name, err := c.Name(t.Context(), id); err != nil || name != want {
		t.Errorf("product %d is %q, %v; want %q", id, name, err, want)
	}
}

// A loaded value is there for the next Get, so counts are exact. No Redis, no sleep.
func TestAProductIsReadOnce(t *testing.T) {
	store := newTable(Product{1, "lamp", 500})
	products := cachetest.New(t, nil, store.Product, Options)
	c := New(store, products)
	for range 100 {
		c.shows(t, 1, "lamp")
		c.shows(t, 404, "")
	}
	if n, absent := store.Loads(1), store.Loads(404); n != 1 || absent != 1 {
		t.Errorf("%d loads, and %d of a row that does not exist", n, absent)
	}
}

func TestRenameInvalidatesThatProductAlone(t *testing.T) {
	store := newTable(Product{1, "lamp", 500}, Product{2, "chair", 700})
	c := open(t, nil, store)
	ended := cachetest.Invalidated(t, c.products, []int64{1, 2}, func() {
		if err := c.Rename(t.Context(), 1, "desk"); err != nil {
			t.Error(err)
		}
	})
	if !slices.Equal(ended, []int64{1}) {
		t.Errorf("Rename of product 1 has invalidated %v", ended)
	}
	c.shows(t, 1, "desk")
}

// In a synctest bubble ten minutes take no time, and Wait waits for the refresh in the
// background. The cache is made and closed inside the bubble.
func TestAProductIsRefreshedAfterTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTable(Product{1, "lamp", 500})
		c := open(t, nil, store)
		c.shows(t, 1, "lamp")
		store.Put(1, Product{1, "desk", 500}) // by somebody who does not tell the cache
		time.Sleep(Options.TTL)
		c.shows(t, 1, "lamp") // past its TTL: the old value is served while a new one is loaded
		synctest.Wait()
		c.shows(t, 1, "desk")
		if n := store.Loads(1); n != 2 {
			t.Errorf("%d loads", n)
		}
	})
}

// A fault of the database: the old value is served for an hour (StaleIfError).
func TestAProductOutlivesItsDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTable(Product{1, "lamp", 500})
		c := open(t, nil, store)
		c.shows(t, 1, "lamp")
		broken := errors.New("connection refused")
		store.Fail(broken)
		time.Sleep(30 * time.Minute)
		c.shows(t, 1, "lamp")
		if _, err := c.Name(t.Context(), 2); !errors.Is(err, broken) {
			t.Errorf("a product that was never read: %v", err)
		}
	})
}

// miniredis is a Redis inside the test: no server to install, and two caches are two
// processes of the service.
func TestTwoProcessesLoadOnce(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	store := newTable(Product{1, "lamp", 500})
	one, other := open(t, rdb, store), open(t, rdb, store)
	one.shows(t, 1, "lamp")
	other.shows(t, 1, "lamp")
	if n := store.Loads(1); n != 1 {
		t.Errorf("%d loads", n)
	}
}

// A fault of Redis: Gets are answered all the same, and a committed write is no error of the caller.
func TestTheCatalogWorksWithoutItsRedis(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	store := newTable(Product{1, "lamp", 500}, Product{2, "chair", 700})
	c := open(t, rdb, store)
	c.shows(t, 1, "lamp")
	server.Close() // or server.SetError("LOADING"), for one that replies with errors
	c.shows(t, 2, "chair")
	if err := c.Rename(t.Context(), 1, "desk"); err != nil {
		t.Errorf("a committed write is an error: %v", err)
	}
	c.shows(t, 1, "desk") // in this process at once
}

// A real server: the one at TEST_REDIS_ADDR, or one of the test's own.
func TestAgainstARealRedis(t *testing.T) {
	rdb := realRedis(t)
	o := Options
	o.Prefix = rand.Text() // nothing of an earlier run
	store := newTable(Product{1, "lamp", 500})
	products := cachetest.New(t, rdb, store.Product, o)
	one, other := New(store, products), New(store, cachetest.New(t, rdb, store.Product, o))
	if err := products.Check(t.Context()); errors.Is(err, cache.ErrUnavailable) {
		t.Fatal(err)
	}
	other.shows(t, 1, "lamp")
	if err := one.Rename(t.Context(), 1, "desk"); err != nil {
		t.Error(err)
	}
	for range 500 { // the other process is notified within milliseconds, on a busy machine a bit later
		if name, _ := other.Name(t.Context(), 1); name == "desk" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("the other process is never notified of the new name")
}

// realRedis returns a client of a server that miniredis does not imitate in all: it evicts, has
// users with rights, and may lose messages.
func realRedis(t *testing.T) *redis.Client {
	if addr := os.Getenv("TEST_REDIS_ADDR"); addr != "" {
		return clientOf(t, &redis.Options{Addr: addr})
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("there is no redis-server in the PATH")
	}
	socket := filepath.Join(t.TempDir(), "redis.sock") // no port to choose
	server := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	rdb := clientOf(t, &redis.Options{Network: "unix", Addr: socket})
	for range 500 { // until it has started
		if err = rdb.Ping(t.Context()).Err(); err == nil {
			return rdb
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal(err)
	return nil
}

func clientOf(t *testing.T, o *redis.Options) *redis.Client {
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
