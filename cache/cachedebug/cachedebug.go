// Package cachedebug shows what the caches of this process do, as a page and as JSON, in
// the spirit of net/http/pprof:
//
//	debug := http.NewServeMux()
//	debug.Handle("/debug/levee", cachedebug.New(cachedebug.Options{
//		Caches: []cachedebug.Cache{products, bySlug},
//	}))
//	go http.ListenAndServe("localhost:6060", debug)
//
// The page has a section for each cache: which tier answers which share of the Gets, the
// loads, what was stale, the state of the breaker, of Redis and of the messages, and the
// hottest keys. It looks one key up: whether it is in the process and in Redis, how
// old it is, who rebuilds or writes it. With ?format=json it gives all this as JSON.
//
// # It must not be public
//
// The page shows names of keys, and with [Options.Values] what is stored. Each look-up reads Redis.
// Anybody who can reach it learns how the service can be hurt. Nothing of it is there unless
// it is mounted; mount it on a port that only operators can reach, or behind a check of
// the client, and never on the mux that serves the public.
//
// It is read-only: it has no form, parameter or method that changes a cache, and answers
// GET and HEAD alone. Its look-ups are not counted in Stats. What it shows of keys, errors
// and log lines may come from anybody, and is quoted and escaped. The page has no script.
package cachedebug

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
)

// A Cache is a *cache.Cache, of whatever types.
type Cache interface {
	// Name is Options.Name of the cache.
	Name() string
	// Stats is a snapshot of its counters.
	Stats() cache.Stats
	// Inside is what this package needs of the cache besides.
	Inside() inside.Cache
}

// Options say what a page shows. Each field may be left out.
type Options struct {
	// Caches have different names: a look-up names one.
	Caches []Cache
	// Filters are the caches' filters, by the names under which they are shown.
	Filters map[string]*bloom.Filter
	// Log shows its lines, if the caches' Options.Logger writes to it.
	Log *Log
	// TopKeys is how many of the hottest keys of a cache are shown. They are there if its
	// Options.Local.HotKeys is set. 0: 20; negative: none.
	TopKeys int
	// Values says that a look-up shows the value that it finds, in JSON and cut after 4 KB.
	Values bool
}

// A Handler serves the page. It may be used concurrently, at any path, and has nothing to
// close.
type Handler struct {
	o Options

	lookups sync.Mutex // one look-up at a time: an open page must not be a load on Redis
}

// New makes a Handler.
func New(o Options) *Handler {
	if o.TopKeys == 0 {
		o.TopKeys = 20
	}
	return &Handler{o: o}
}

// patience is the longest that a look-up may take, whatever the cache's RedisTimeout.
const patience = 5 * time.Second

// ServeHTTP answers GET and HEAD. These are its parameters:
//
//	format=json       JSON instead of the page
//	cache=…&key=…     looks a key up, as text
//	refresh=…         has the browser reload it after so many seconds
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", policy)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
		return
	}
	query := r.URL.Query()
	report := h.report()
	if query.Has("key") {
		report.Lookup = h.lookup(r.Context(), query.Get("cache"), query.Get("key"))
	}
	if query.Get("format") == "json" {
		header.Set("Content-Type", "application/json; charset=utf-8")
		out := json.NewEncoder(w)
		out.SetIndent("", "\t")
		_ = out.Encode(report)
		return
	}
	h.page(w, query, report)
}

// find returns the cache of a name, or nil.
func (h *Handler) find(name string) Cache {
	for _, c := range h.o.Caches {
		if c.Name() == name {
			return c
		}
	}
	return nil
}
