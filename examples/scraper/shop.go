package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/redis/go-redis/v9"
)

// A shop is one process of the service: an HTTP server on the loopback address, with a cache and a Redis client of its own.
type shop struct {
	products products
	filter   *bloom.Filter // nil if the way has none
	handler  http.Handler
	url      string // of product 0, without the 0

	rdb    *redis.Client
	server *http.Server
	served chan error
}

func (s site) openShop(ctx context.Context) (*shop, error) {
	rdb := s.redis.client()
	products, filter, err := s.open(ctx, rdb)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	h := &shop{products: products, filter: filter, rdb: rdb, served: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /product/{id}", h.product)
	h.handler = mux
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, h.closeStores())
	}
	h.url = "http://" + listener.Addr().String() + "/product/"
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { h.served <- h.server.Serve(listener) }()
	return h, nil
}

// product answers with a product, or with 404 if there is none.
func (h *shop) product(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "an id is a number", http.StatusBadRequest)
		return
	}
	p, err := h.products.Get(r.Context(), id)
	switch {
	case errors.Is(err, cache.ErrNotFound), errors.Is(err, sql.ErrNoRows):
		http.Error(w, "no such product", http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p) // who does not wait for the answer does not need it
	}
}

// close ends the process in order: the requests under way, the cache, the filter, the client.
func (h *shop) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := h.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, h.server.Close())
	}
	if e := <-h.served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, h.closeStores())
}

func (h *shop) closeStores() error {
	return errors.Join(h.products.Close(), h.filter.Close(), h.rdb.Close())
}
