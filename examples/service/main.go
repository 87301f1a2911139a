// Service is a product API as a small team would run it: PostgreSQL, Redis, levee between them, metrics for Prometheus and a page for
// operators. Two instances of it, with everything around them, at http://localhost:3000 the dashboard:
//
//	docker compose -f examples/service/compose.yaml up --build
//
// On Kubernetes: kubernetes.yaml. By itself, with a file of SQLite and without Redis:
//
//	go run -C examples ./service
//
// It is set up by variables: DATABASE_URL (postgres://… or file:…), REDIS_ADDR, FILTER_REDIS_ADDR, ADDR, ADMIN_ADDR and ADMIN_TOKEN. The Redis of
// the cache evicts and forgets, the one of the filter does neither; what has locks takes that one too.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/cache/cachedebug"
	"github.com/levee-go/levee/cache/cacheprom"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("the service ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	store, err := openStore(ctx, cmp.Or(os.Getenv("DATABASE_URL"), "file:products.sqlite"))
	if err != nil {
		return err
	}
	defer store.db.Close()

	// What is deferred runs from the bottom up, after serve has let the last requests end: what works in the background, then the cache,
	// then its filter, then the clients.
	var rdb, keeping redis.UniversalClient // nil: the cache and the filter work in this process alone
	if addr := os.Getenv("REDIS_ADDR"); addr != "" {
		rdb = redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		defer rdb.Close()
	}
	if addr := os.Getenv("FILTER_REDIS_ADDR"); addr != "" {
		keeping = redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		defer keeping.Close()
	}
	exists, err := bloom.Open(ctx, keeping, bloom.Options{Name: "product", Capacity: 1_000_000}) // all instances share it
	if err != nil {
		return err
	}
	defer exists.Close()

	// What protects the database. All caches of one database share it.
	database, err := breaker.New(breaker.Options{Name: "products", MaxConcurrent: connections})
	if err != nil {
		return err
	}
	lines := cachedebug.NewLog(slog.Default().Handler(), 50)
	products, err := cache.New(rdb, store.Product, cache.Options{
		Name: "product", TTL: 10 * time.Minute, Filter: exists, Breaker: database, Logger: slog.New(lines),
	})
	if err != nil {
		return err
	}
	defer products.Close()
	if err := products.Check(ctx); err != nil { // the service starts all the same: the source answers
		slog.Error("the cache is not at its best", "error", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup // ends with ctx
	defer background.Wait()
	defer stop() // ctx has not ended if serve has failed
	// The filter lets everything pass until it is filled, the first time for some 5 s.
	background.Go(func() {
		if err := products.KeepFilter(ctx, 24*time.Hour, store.Keys); ctx.Err() == nil {
			slog.Error("the filter is kept no longer", "error", err)
		}
	})

	if err := cacheprom.Register(prometheus.DefaultRegisterer, products); err != nil { // with its breaker and its filter
		return err
	}
	admin := http.NewServeMux() // for the operators' network only
	// For probes. Neither Redis nor the database may fail them: all instances would go at once.
	admin.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	admin.Handle("/metrics", promhttp.Handler())
	admin.Handle("/debug/levee", cachedebug.New(cachedebug.Options{
		Caches: []cachedebug.Cache{products}, Filters: map[string]*bloom.Filter{"product": exists}, Log: lines,
	}))
	// What the runbooks of the alerts tell an operator to do. Without an ADMIN_TOKEN nobody may.
	acting, err := cacheadmin.New(cacheadmin.Options{
		Caches: []cacheadmin.Cache{cacheadmin.WithScan(products, store.Keys)},
		Allow:  cacheadmin.AllowToken(os.Getenv("ADMIN_TOKEN")),
	})
	if err != nil {
		return err
	}
	admin.Handle("/admin/levee", acting)
	return serve(ctx, map[string]http.Handler{
		cmp.Or(os.Getenv("ADDR"), "127.0.0.1:8080"):       api(store, products),
		cmp.Or(os.Getenv("ADMIN_ADDR"), "127.0.0.1:9090"): admin,
	})
}

// api is what the users of the service call.
func api(store *store, products *cache.Cache[int64, Product]) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /product/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		p, err := products.Get(ctx, id)
		switch {
		case errors.Is(err, cache.ErrNotFound):
			http.NotFound(w, r)
		case errors.Is(err, cache.ErrOverloaded):
			http.Error(w, "too busy", http.StatusServiceUnavailable)
		case err != nil:
			slog.Warn("no answer", "product", id, "error", err)
			http.Error(w, "it did not work", http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(p)
		}
	})
	mux.HandleFunc("PUT /product/{id}/price", func(w http.ResponseWriter, r *http.Request) {
		id, err1 := strconv.ParseInt(r.PathValue("id"), 10, 64)
		cents, err2 := strconv.ParseInt(r.FormValue("cents"), 10, 64)
		if err1 != nil || err2 != nil || cents < 0 {
			http.Error(w, "a product and cents", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		// Anybody may send any id, so Write does not name it: the filter would learn ids that do not exist. Also does, once there is a row.
		err := cache.Committed(products.Write(ctx, nil, func(ctx context.Context) error {
			return store.SetPrice(ctx, id, cents, func() error { return cache.Also(ctx, products.Changes(id)) })
		}))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			http.NotFound(w, r)
		case errors.Is(err, bloom.ErrUnavailable): // the filter would deny the row; nothing is committed
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case err != nil:
			slog.Warn("no new price", "product", id, "error", err)
			http.Error(w, "it did not work", http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return mux
}

// serve serves each handler at its address until ctx ends, and then lets the requests under way end.
func serve(ctx context.Context, handlers map[string]http.Handler) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var servers []*http.Server
	for addr, handler := range handlers {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			for _, s := range servers {
				_ = s.Close()
			}
			return err
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, s)
		go func() {
			if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("serving: %w", err))
			}
		}()
		slog.Info("listening", "at", "http://"+strings.Replace(listener.Addr().String(), "[::]", "localhost", 1))
	}
	<-ctx.Done()
	var errs []error
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		errs = append(errs, err)
	}
	last, end := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer end()
	for _, s := range servers {
		errs = append(errs, s.Shutdown(last))
	}
	return errors.Join(errs...)
}

// A Product is a row.
type Product struct {
	ID    int64  `json:"id"`
	Name  string `json:"name"`
	Cents int64  `json:"cents"`
}
