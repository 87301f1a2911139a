// Package web is what the services of the examples have in common: HTTP in front of a table of hotels.
// It knows neither the database nor the cache.
package web

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Routes are what a service has: reads of one hotel and of the hotels in a city, and a write.
type Routes[H any] struct {
	Hotel  func(ctx context.Context, id int64) (H, error)
	InCity func(ctx context.Context, city string) ([]H, error)
	Move   func(ctx context.Context, id int64, city string) error
	Absent func(error) bool // the error says that there is no such hotel
}

// Serve serves GET /hotel/7, GET /city/Oslo and PUT /hotel/7/city/Oslo at the address ADDR, and runs the functions of
// background meanwhile. When ctx ends, it waits until the requests under way have finished, or for 5 s; then it ends the
// context of background, and returns after those functions. So the caller can close what requests and functions use.
func Serve[H any](ctx context.Context, to Routes[H], background ...func(context.Context) error) {
	server := &http.Server{Addr: os.Getenv("ADDR"), Handler: to.handler()}
	var done sync.WaitGroup
	running, end := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx, which ends at a SIGTERM
	for _, run := range background {
		done.Go(func() { log.Print(run(running)) }) // follow, for example
	}
	ctx, stop := context.WithCancel(ctx)
	go func() { log.Print(server.ListenAndServe()); stop() }()
	<-ctx.Done()
	limit, cancel := context.WithTimeout(running, 5*time.Second)
	defer cancel()
	_ = server.Shutdown(limit) // requests under way finish
	end()
	done.Wait() // follow has given its lock to another process; main may close the caches
}

func (to *Routes[H]) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hotel/{id}", func(w http.ResponseWriter, r *http.Request) {
		hotel, err := to.Hotel(r.Context(), id(r))
		to.reply(w, hotel, err)
	})
	mux.HandleFunc("GET /city/{city}", func(w http.ResponseWriter, r *http.Request) {
		hotels, err := to.InCity(r.Context(), r.PathValue("city"))
		to.reply(w, hotels, err)
	})
	mux.HandleFunc("PUT /hotel/{id}/city/{city}", func(w http.ResponseWriter, r *http.Request) {
		to.reply(w, "moved", to.Move(r.Context(), id(r), r.PathValue("city")))
	})
	return mux
}

// id returns the id of a path, 0 if it is no number.
func id(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	return n
}

func (to *Routes[H]) reply(w http.ResponseWriter, body any, err error) {
	switch {
	case err == nil:
		_ = json.NewEncoder(w).Encode(body)
	case to.Absent(err):
		http.Error(w, "no such hotel", http.StatusNotFound)
	default:
		log.Print(err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// Context ends when the program is to stop: at Ctrl-C, or at the SIGTERM of a deployment.
func Context() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// Must returns a value, or ends the program if there is an error.
func Must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
