package docs

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A productTable stands for a database whose slugs are unique.
type productTable struct {
	mu   sync.Mutex
	rows map[int64]Product
}

func (t *productTable) byID(_ context.Context, id int64) (Product, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.rows[id]; ok {
		return p, nil
	}
	return Product{}, cache.ErrNotFound
}

func (t *productTable) bySlug(_ context.Context, slug string) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, p := range t.rows {
		if p.Slug == slug {
			return id, nil
		}
	}
	return 0, cache.ErrNotFound
}

// open returns the caches of a process.
func (t *productTable) open(tb testing.TB, rdb redis.UniversalClient) (byID *cache.Cache[int64, Product], bySlug *cache.Cache[string, int64]) {
	o := cache.Options{Name: "product", TTL: time.Hour, RedisTimeout: 5 * time.Second}
	o.Local.TTL, o.Local.DistrustTTL = time.Hour, time.Hour
	byID = redistest.Must(cache.New(rdb, t.byID, o))
	tb.Cleanup(func() { _ = byID.Close() })
	o.Name = "product-slug"
	bySlug = redistest.Must(cache.New(rdb, t.bySlug, o))
	tb.Cleanup(func() { _ = bySlug.Close() })
	return byID, bySlug
}

// One transaction gives the slug of a product to another one, and renames or deletes the first. A process that has not
// been told serves the page all the same: it existed at all times.
func TestThePageOfASlugThatPassesToAnotherProductIsNeverAbsent(t *testing.T) {
	for name, after := range map[string]map[int64]Product{
		"renamed": {1: {ID: 1, Slug: "lantern"}, 2: {ID: 2, Slug: "lamp"}},
		"deleted": {2: {ID: 2, Slug: "lamp"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			proxy := redistest.Proxy(t, server.Addr())
			proxy.DropMessages(true)
			table := &productTable{rows: map[int64]Product{1: {ID: 1, Slug: "lamp"}, 2: {ID: 2, Slug: "torch"}}}
			byID, bySlug := table.open(t, proxy.Client(t))
			ofWriter, slugsOfWriter := table.open(t, server.Client(t))
			redistest.Eventually(t, 10*time.Second, "the links stand", func() bool {
				return byID.Stats().LocalTier.Flushes > 0 && bySlug.Stats().LocalTier.Flushes > 0
			})

			if p, err := pageBySlug(t.Context(), byID, bySlug, "lamp"); err != nil || p.ID != 1 {
				t.Fatalf("%+v, %v", p, err)
			}
			if err := cache.Write(t.Context(), func(context.Context) error {
				table.mu.Lock()
				defer table.mu.Unlock()
				table.rows = maps.Clone(after)
				return nil
			}, ofWriter.Changes(1, 2), slugsOfWriter.Changes("lamp", "lantern", "torch")); err != nil {
				t.Fatal(err)
			}
			if id, err := bySlug.Get(t.Context(), "lamp"); err != nil || id != 1 {
				t.Fatalf("the process knows already: %d, %v", id, err)
			}
			p, err := byID.With(cache.Reads{SkipLocal: true}).Get(t.Context(), 1) // of the id it knows
			if want := after[1]; p != want || (err == nil) != (want.ID == 1) {
				t.Fatalf("%+v, %v", p, err)
			}
			if p, err := pageBySlug(t.Context(), byID, bySlug, "lamp"); err != nil || p.ID != 2 {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}
