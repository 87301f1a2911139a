package catalog

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
)

// go-redis writes each failed dial to stderr. Tests that take Redis away need none of it.
func init() { redis.SetLogger(silence{}) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// A table is the database of a test. It counts, and fails when it is told to.
type table struct {
	mu    sync.Mutex
	rows  map[int64]Product
	loads map[int64]int
	err   error
}

func newTable(products ...Product) *table {
	t := &table{rows: map[int64]Product{}, loads: map[int64]int{}}
	for _, p := range products {
		t.rows[p.ID] = p
	}
	return t
}

func (t *table) Product(_ context.Context, id int64) (Product, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loads[id]++
	p, ok := t.rows[id]
	switch {
	case t.err != nil:
		return Product{}, t.err
	case !ok:
		return Product{}, sql.ErrNoRows
	}
	return p, nil
}

func (t *table) Rename(_ context.Context, id int64, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.rows[id]
	p.Name = name
	t.rows[id] = p
	return t.err
}

func (t *table) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
}

func (t *table) loaded(id int64) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.loads[id]
}

func open(t *testing.T, rdb redis.UniversalClient, store Store, changes ...func(*cache.Options)) *Catalog {
	t.Helper()
	o := cache.Options{Logger: slog.New(slog.DiscardHandler)}
	for _, change := range changes {
		change(&o)
	}
	c, err := Open(rdb, store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (c *Catalog) shows(t *testing.T, id int64, want string) {
	t.Helper()
	if name, err := c.Name(t.Context(), id); err != nil || name != want {
		t.Errorf("product %d is %q, %v; want %q", id, name, err, want)
	}
}

// A counting loader: what was loaded is there for the next Get, so counts are exact. No
// Redis, no sleep.
func TestAProductIsReadOnce(t *testing.T) {
	store := newTable(Product{1, "lamp", 500}) // a map with a counter for each id
	c := open(t, nil, store)
	for range 100 {
		c.shows(t, 1, "lamp")
		c.shows(t, 404, "")
	}
	if n, absent := store.loaded(1), store.loaded(404); n != 1 || absent != 1 {
		t.Errorf("%d loads, and %d of what does not exist", n, absent)
	}
}

func TestARenamedProductIsReadOnceMore(t *testing.T) {
	store := newTable(Product{1, "lamp", 500})
	c := open(t, nil, store)
	c.shows(t, 1, "lamp")
	if err := c.Rename(t.Context(), 1, "desk"); err != nil {
		t.Error(err)
	}
	c.shows(t, 1, "desk")
	if n := store.loaded(1); n != 2 {
		t.Errorf("%d loads after a write", n)
	}
}

// In a synctest bubble ten minutes take no time, and Wait waits for the refresh in the
// background. The cache is made and closed inside the bubble.
func TestAProductIsRefreshedAfterTenMinutes(t *testing.T) {
	store := newTable(Product{1, "lamp", 500})
	synctest.Test(t, func(t *testing.T) {
		c := open(t, nil, store, func(o *cache.Options) { o.Jitter = -1 }) // else the TTL is up to a tenth shorter
		c.shows(t, 1, "lamp")
		_ = store.Rename(t.Context(), 1, "desk") // by somebody who does not tell the cache
		time.Sleep(10 * time.Minute)
		c.shows(t, 1, "lamp") // past its TTL: the old value is served while a new one is loaded
		synctest.Wait()
		c.shows(t, 1, "desk")
		if n := store.loaded(1); n != 2 {
			t.Errorf("%d loads", n)
		}
	})
}

// A fault of the database: the old value answers for an hour (StaleIfError).
func TestAProductOutlivesItsDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTable(Product{1, "lamp", 500})
		c := open(t, nil, store)
		c.shows(t, 1, "lamp")
		broken := errors.New("connection refused")
		store.fail(broken)
		time.Sleep(30 * time.Minute)
		c.shows(t, 1, "lamp")
		if _, err := c.Name(t.Context(), 2); !errors.Is(err, broken) {
			t.Errorf("what was never read: %v", err)
		}
	})
}

// miniredis is a Redis inside the test: no server to install, and two Catalogs are two
// processes of the service.
func TestTwoProcessesLoadOnce(t *testing.T) {
	store := newTable(Product{1, "lamp", 500})
	server := miniredis.RunT(t)
	one := open(t, redis.NewClient(&redis.Options{Addr: server.Addr()}), store, patient)
	other := open(t, redis.NewClient(&redis.Options{Addr: server.Addr()}), store, patient)
	one.shows(t, 1, "lamp")
	other.shows(t, 1, "lamp") // loaded once
	if n := store.loaded(1); n != 1 {
		t.Errorf("%d loads", n)
	}
}

// patient is for tests without a fault: a machine that is busy must not be taken for a
// Redis that does not answer.
func patient(o *cache.Options) { o.RedisTimeout = 5 * time.Second }

// A fault of Redis: Gets are answered all the same, and a write says that it is not
// known everywhere yet.
func TestTheCatalogWorksWithoutItsRedis(t *testing.T) {
	server := miniredis.RunT(t)
	store := newTable(Product{1, "lamp", 500}, Product{2, "chair", 700})
	c := open(t, redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialerRetries: 1}), store)
	c.shows(t, 1, "lamp")
	server.Close() // or server.SetError("LOADING"), for one that answers with errors
	c.shows(t, 2, "chair")
	if err := c.Rename(t.Context(), 1, "desk"); err != nil {
		t.Errorf("a committed write is an error: %v", err)
	}
	c.shows(t, 1, "desk") // in this process at once
}

// A real server, of the test's own: on a socket in its directory, so no port is taken.
// miniredis knows no evictions, no clusters, no rights and no messages that get lost.
func TestAgainstARealRedis(t *testing.T) {
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
	client := func() *redis.Client {
		rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	rdb := client()
	for range 500 { // until it has started
		if err = rdb.Ping(t.Context()).Err(); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	store := newTable(Product{1, "lamp", 500})
	one, other := open(t, rdb, store, patient), open(t, client(), store, patient)
	if err := one.products.Check(t.Context()); errors.Is(err, cache.ErrUnavailable) {
		t.Fatal(err)
	}
	other.shows(t, 1, "lamp")
	if err := one.Rename(t.Context(), 1, "desk"); err != nil {
		t.Error(err)
	}
	for range 500 { // the other process hears of it within milliseconds, on a busy machine a bit later
		if name, _ := other.Name(t.Context(), 1); name == "desk" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("the other process never hears of the new name")
}
