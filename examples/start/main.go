// Start is the service of docs/getting-started.md: a product page that reads through levee, with metrics and a page
// for operators beside it.
//
//	REDIS_ADDR=127.0.0.1:6379 go run ./start
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/cache/cacheprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
)

// A Product is a row.
type Product struct {
	ID   int64
	Name string
}

// load stands for your query. A row that is not there is cache.ErrNotFound or sql.ErrNoRows.
func load(ctx context.Context, id int64) (Product, error) {
	time.Sleep(50 * time.Millisecond)
	if id < 1 || id > 1000 {
		return Product{}, cache.ErrNotFound
	}
	return Product{id, fmt.Sprint("product ", id)}, nil
}

func main() {
	var rdb redis.UniversalClient // nil: without Redis, in this process alone
	if addr := os.Getenv("REDIS_ADDR"); addr != "" {
		rdb = redis.NewClient(&redis.Options{Addr: addr})
	}
	products, err := cache.New(rdb, load, cache.Options{Name: "product", TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()

	if err := cacheprom.Register(prometheus.DefaultRegisterer, products); err != nil {
		log.Fatal(err)
	}
	admin := http.NewServeMux() // names and numbers that are not for the public, on a port of their own
	admin.Handle("GET /metrics", promhttp.Handler())
	admin.Handle("GET /debug/levee", cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{products}}))
	operate, err := cacheadmin.New(cacheadmin.Options{
		Caches: []cacheadmin.Cache{products}, Allow: cacheadmin.AllowToken(os.Getenv("ADMIN_TOKEN")), // without one nobody may
	})
	if err != nil {
		log.Fatal(err)
	}
	admin.Handle("/admin/levee", operate)
	adminAddr := cmp.Or(os.Getenv("ADMIN_ADDR"), "127.0.0.1:6060")
	go func() { log.Fatal(http.ListenAndServe(adminAddr, admin)) }()

	http.HandleFunc("GET /product/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		got, err := products.Fetch(r.Context(), id) // Get, and where the value came from
		switch {
		case errors.Is(err, cache.ErrNotFound):
			http.NotFound(w, r)
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			fmt.Fprintf(w, "%s, from: %s, age: %v\n", got.Value.Name, got.Tier, got.Age.Round(time.Millisecond))
		}
	})
	addr := cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8080")
	log.Print("http://" + addr + "/product/42 and http://" + adminAddr + "/debug/levee")
	server := &http.Server{Addr: addr}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { defer stop(); log.Print(server.ListenAndServe()) }()
	<-ctx.Done()
	last, end := context.WithTimeout(context.Background(), 10*time.Second)
	defer end()
	_ = server.Shutdown(last) // requests under way finish, and then the cache is closed
}
