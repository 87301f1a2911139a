package pgfeed

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Writers of plain SQL change rows that three processes have in their memory, and the one
// that follows the feed goes away half way. Without Follow each would go on with what it has
// for half a minute. The log says how long after each commit the last of them had the row.
func TestEveryProcessServesWhatPlainSQLHasWritten(t *testing.T) {
	const rows, writes = 5, 200
	r := newRig(t, product, "INSERT INTO product SELECT i, '0', '' FROM generate_series(1, 5) i")
	redis := redistest.Start(t)
	var readers []*cache.Cache[int64, string]
	var followers sync.WaitGroup
	var ends []context.CancelFunc
	for range 3 {
		db, err := pgx.Connect(t.Context(), r.url("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close(context.Background()) })
		var mu sync.Mutex // a connection is for one at a time
		c, err := cache.New(redis.Client(t), func(ctx context.Context, id int64) (name string, err error) {
			mu.Lock()
			defer mu.Unlock()
			err = db.QueryRow(context.WithoutCancel(ctx), "SELECT name FROM product WHERE id = $1", id).Scan(&name)
			return name, err
		}, cache.Options{Name: "product", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		readers = append(readers, c)
		feed := r.feed(nil, Table{Name: "public.product"})
		ctx, cancel := context.WithCancel(t.Context())
		ends = append(ends, cancel)
		followers.Go(func() { _ = cache.Follow(ctx, feed, c.Route("public.product", nil)) })
	}
	defer followers.Wait()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	following := func() int {
		return slices.IndexFunc(readers, func(c *cache.Cache[int64, string]) bool { return c.Stats().Follow.Following })
	}
	redistest.Eventually(t, 30*time.Second, "one follows", func() bool { return following() >= 0 })

	writer, err := pgx.Connect(t.Context(), r.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close(context.Background())
	var took []time.Duration
	for i := range writes {
		if i == writes/2 {
			ends[following()]()
		}
		id, name := int64(i%rows)+1, fmt.Sprint(i+1)
		for _, c := range readers { // each has the old row in its memory
			if _, err := c.Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := writer.Exec(t.Context(), "UPDATE product SET name = $1 WHERE id = $2", name, id); err != nil {
			t.Fatal(err)
		}
		committed := time.Now()
		for n, c := range readers {
			redistest.Eventually(t, 20*time.Second, fmt.Sprintf("reader %d has write %d", n, i), func() bool {
				got, err := c.Get(t.Context(), id)
				return err == nil && got == name
			})
		}
		took = append(took, time.Since(committed))
	}
	slices.Sort(took)
	t.Logf("from the commit to the last of three processes: p50 %v, p99 %v; with the change of followers %v",
		took[writes/2], took[writes*98/100], took[writes-1])
}
