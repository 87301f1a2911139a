// Package cachedebug shows the state of the caches of this process, as a page and as JSON, in
// the spirit of net/http/pprof:
//
//	debug := http.NewServeMux()
//	debug.Handle("/debug/levee", cachedebug.New(cachedebug.Options{
//		Caches: []cachedebug.Cache{products, bySlug},
//	}))
//	go http.ListenAndServe("localhost:6060", debug)
//
// The page has a section for each cache: which share of the Gets each tier has served, the
// loads, the stale values, the state of the breaker, of Redis and of the messages, and the
// hottest keys. It looks up a key: whether it is in the process and in Redis, how old its
// value is, whether somebody rebuilds or writes it. With ?format=json it returns all this as JSON.
//
// # It must not be public
//
// The page shows names of keys, and with [Options.Values] the stored values. Each look-up reads Redis.
// Anybody who can reach the page learns how to harm the service. Importing the package serves
// nothing: mount the Handler on a port that only operators can reach, or behind a check of
// the client, and never on the mux that serves the public.
//
// The Handler is read-only: it has no form, parameter or method that changes a cache, and accepts
// GET and HEAD only. Its look-ups are not counted in Stats. Keys, errors and log lines may
// come from anybody, so it quotes and escapes them. The page has no script.
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

// A Cache is a *cache.Cache of any types.
type Cache interface {
	// Name returns Options.Name of the cache.
	Name() string
	// Stats returns a snapshot of the cache's counters.
	Stats() cache.Stats
	// Inside returns what else this package needs of the cache.
	Inside() inside.Cache
}

// Options configures a Handler. Each field may be left out.
type Options struct {
	// Caches are the caches to show. Their names must differ, because a look-up names one.
	Caches []Cache
	// Filters are the filters to show, by the names under which they are shown.
	Filters map[string]*bloom.Filter
	// Log is the log whose lines are shown; the caches' Options.Logger must write to it. Nil: none.
	Log *Log
	// TopKeys is how many of the hottest keys of a cache are shown, if its Options.Local.HotKeys
	// is set. 0: 20; negative: none.
	TopKeys int
	// Values makes a look-up show the value that it finds, as JSON, up to 4 KB of it.
	Values bool
}

// A Handler serves the page. It may be used concurrently and at any path, and need not be closed.
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

// patience is how long a look-up may take, whatever the cache's RedisTimeout.
const patience = 5 * time.Second

// ServeHTTP serves GET and HEAD requests. These are its parameters:
//
//	format=json       JSON instead of the page
//	cache=…&key=…     looks up the key with this text
//	refresh=…         has the browser reload the page after so many seconds
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

// find returns the cache with a name, or nil.
func (h *Handler) find(name string) Cache {
	for _, c := range h.o.Caches {
		if c.Name() == name {
			return c
		}
	}
	return nil
}
