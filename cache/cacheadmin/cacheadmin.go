// Package cacheadmin lets operators act on the caches of a fleet: look a key up, invalidate,
// expire, refresh or announce it, clear a cache or a tag of it, rebuild its filter. Each call is
// logged with the operator's name.
//
//	admin, err := cacheadmin.New(cacheadmin.Options{
//		Caches: []cacheadmin.Cache{cacheadmin.WithScan(products, store.Keys), bySlug},
//		// Or a function that returns the name of the operator whom your login knows.
//		Allow: cacheadmin.AllowToken(os.Getenv("ADMIN_TOKEN")),
//	})
//	if err != nil {
//		return err
//	}
//	mux.Handle("/admin/levee", admin)
//
// A browser gets a page with forms, everybody else JSON. At a port that only operators reach:
//
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" "http://localhost:6060/admin/levee?cache=product&key=42"
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=invalidate -d key=42 -d key=43 http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=expire -d key=42 http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=refresh -d key=42 http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=clear http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=cleartags -d tag=tenant:7 http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=announce -d key=42 http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" -d cache=product -d do=rebuildfilter http://localhost:6060/admin/levee
//	curl -H "Authorization: Bearer $ADMIN_TOKEN" "http://localhost:6060/admin/levee?cache=product&do=filter"
//
// # What it does
//
// A request to one process takes effect in all processes of the cache, with the guarantees of
// [cache.Cache.Invalidate], [cache.Cache.Expire], [cache.Cache.Refresh], [cache.Cache.Announce],
// [cache.Cache.Clear], [cache.Cache.ClearTags] and [cache.Cache.RebuildFilter], which it calls. A DEL by redis-cli is no replacement: it ends neither a
// running load, which then puts the old value back, nor the entries in the memory of processes.
//
// A key is named by its text, which is its id in Redis: "42". A cache with a Source.Key, or whose
// keys have a MarshalText but no UnmarshalText, cannot refresh, because a load needs the key itself.
//
// A rebuild of a filter runs on after its request, and "filter" shows how far it is; see [WithScan].
//
// # Who may
//
// Anybody who reaches the Handler can put load on the database. So Options.Allow is required: [AllowToken]
// is one for operators who share a token. It is called before anything is done or shown, even for
// the page. It is not called for requests that are refused anyway: a form that cannot be read, an unknown verb, a wrong method, a POST from
// another site. All changes need a POST; a POST that a browser sends for another site is refused
// ([http.CrossOriginProtection]), so that no page that an operator visits can use the operator's
// login. Values are not shown.
package cacheadmin

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/cache/internal/look"
	"github.com/levee-go/levee/internal/logonce"
)

// A Cache is a *cache.Cache of any types.
type Cache interface {
	// Name returns Options.Name of the cache.
	Name() string
	// Clear ends all values and nulls of the cache.
	Clear(ctx context.Context) error
	// ClearTags ends the values that have one of tags.
	ClearTags(ctx context.Context, tags ...string) error
	// Stats returns a snapshot of the cache's counters.
	Stats() cache.Stats
	// Inside returns the functions of the cache for keys that are named by their text.
	Inside() inside.Cache
}

// Options configures a Handler. Caches and Allow are required.
type Options struct {
	// Caches are the caches to act on. Their names must differ, because a request names one. The
	// filter of one that comes from WithScan can be rebuilt.
	Caches []Cache
	// Allow returns the name of the operator who has sent a request, or an error: the response is
	// then 403 with the error's text. cache is the name in the request, which need not be the
	// name of a cache; "" for the page. verb is "inspect", for the page too, "invalidate",
	// "expire", "refresh", "announce", "clear", "cleartags", "filter" or "rebuildfilter". If Allow returns no name, the request is
	// refused. It may be called concurrently.
	Allow func(r *http.Request, cache, verb string) (who string, err error)
	// Logger gets each call and each refusal. Nil: slog.Default().
	Logger *slog.Logger
}

// AllowToken returns an Options.Allow for operators who share a token, of a client that can send a
// header, such as curl. It allows requests with the header "Authorization: Bearer" and token, and
// names all of them "the bearer of the token" in the log. If token is empty it allows nobody.
func AllowToken(token string) func(r *http.Request, cache, verb string) (who string, err error) {
	want := []byte("Bearer " + token)
	return func(r *http.Request, _, _ string) (string, error) {
		if token == "" {
			return "", errors.New("this process has no token, so nobody may")
		}
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) == 0 {
			return "", errors.New("wrong token")
		}
		return "the bearer of the token", nil
	}
}

// A Handler serves the page and carries out requests. It may be used concurrently and at any
// path, and need not be closed.
type Handler struct {
	o     Options
	guard *http.CrossOriginProtection
}

// New makes a Handler.
func New(o Options) (*Handler, error) {
	switch {
	case o.Allow == nil:
		return nil, errors.New("cacheadmin: Options.Allow is nil: it says who may act on the caches")
	case len(o.Caches) == 0:
		return nil, errors.New("cacheadmin: Options.Caches is empty")
	}
	var names []string
	for _, c := range o.Caches {
		if slices.Contains(names, c.Name()) {
			return nil, fmt.Errorf("cacheadmin: Options.Caches has two of the name %q", c.Name())
		}
		if s, ok := c.(*scanned); ok && s.unfit != nil {
			return nil, s.unfit
		}
		names = append(names, c.Name())
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = logonce.WithEvents(o.Logger)
	return &Handler{o: o, guard: http.NewCrossOriginProtection()}, nil
}

// An answer is the result of a request.
type answer struct {
	Cache string        `json:"cache"`
	Do    string        `json:"do"`
	Keys  []string      `json:"keys,omitempty"`
	Tags  []string      `json:"tags,omitempty"`
	Who   string        `json:"who,omitempty"`
	Found []*look.Found `json:"found,omitempty"`
	Error string        `json:"error,omitempty"`

	Rebuild *progress `json:"rebuild,omitempty"` // of the cache's filter

	Caches []string `json:"caches,omitempty"` // all caches, if the request was allowed

	status int
	log    *slog.Logger
}

// ServeHTTP serves GET and HEAD requests, and POST requests that change something. These are the
// parameters:
//
//	cache=…    the cache; may be left out if there is only one
//	do=…       inspect, invalidate, expire, refresh, announce, clear, cleartags, filter or rebuildfilter;
//	           "" is inspect if there is a key
//	key=…      the text of a key, for the first five; may be repeated, a hundred keys at most
//	tag=…      a tag, for cleartags; may be repeated, a hundred tags at most
//
// The status is 200 after success, 202 if a rebuild has begun, 409 if one is under way, 502 if a
// load has failed, and 503 if Redis has not confirmed a change or the cache is closed. Until it is
// closed, a cache tries an invalidate, expire, clear or cleartags again after a 503; it does not
// repeat an announce or a refresh. Commit a row that was announced after a 200 only.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Vary", "Accept")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin") // without an Origin the guard refuses the page's own forms
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", policy)
	a := h.answer(w, r)
	h.write(w, r, a)
}

// answer carries out a request and returns its result.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request) *answer {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	a := &answer{Do: page, status: http.StatusOK, log: h.o.Logger}
	if err := r.ParseForm(); err != nil {
		return a.fail(http.StatusBadRequest, err)
	}
	a.Cache, a.Keys, a.Tags = r.Form.Get("cache"), r.Form[key], r.Form[tag]
	if a.Cache == "" && len(h.o.Caches) == 1 && (len(a.Keys) > 0 || r.Form.Has("do")) {
		a.Cache = h.o.Caches[0].Name()
	}
	switch {
	case r.Form.Get("do") != "":
		a.Do = r.Form.Get("do")
	case len(a.Keys) > 0:
		a.Do = inspect
	}
	v, ok := verbs[a.Do]
	if !ok {
		return a.fail(http.StatusBadRequest, fmt.Errorf("there is no %q to do", a.Do))
	}
	if status, err := h.refusal(r, a, v); err != nil {
		h.o.Logger.Warn("a call of cacheadmin was refused", append(a.logged(r), "error", err)...)
		return a.fail(status, err)
	}
	if a.Do != page {
		h.carryOut(r, a, v)
	}
	for _, c := range h.o.Caches {
		a.Caches = append(a.Caches, c.Name())
	}
	return a
}

// refusal returns the status and the reason if a request is refused. It calls Options.Allow.
func (h *Handler) refusal(r *http.Request, a *answer, v verb) (status int, err error) {
	switch reads := r.Method == http.MethodGet || r.Method == http.MethodHead; {
	case !reads && r.Method != http.MethodPost, reads && v.writes:
		return http.StatusMethodNotAllowed, fmt.Errorf("%s is a POST", a.Do)
	}
	if err := h.guard.Check(r); err != nil {
		return http.StatusForbidden, err
	}
	asked := a.Do
	if asked == page {
		asked = inspect
	}
	if a.Who, err = h.o.Allow(r, a.Cache, asked); err == nil && a.Who == "" {
		err = errors.New("no name from Options.Allow")
	}
	if err != nil {
		return http.StatusForbidden, err
	}
	switch {
	case a.Do == page && r.Method == http.MethodPost: // also of a body that is no form
		return http.StatusBadRequest, errors.New("there is nothing to do: no do and no key was sent as a form")
	case a.Do == page:
	case h.find(a.Cache) == nil:
		return http.StatusNotFound, fmt.Errorf("there is no cache %.100q", a.Cache)
	case v.takes != "" && len(r.Form[v.takes]) == 0:
		return http.StatusBadRequest, fmt.Errorf("%s takes a %s", a.Do, v.takes)
	case v.takes != key && len(a.Keys) > 0:
		return http.StatusBadRequest, fmt.Errorf("%s takes no key", a.Do)
	case v.takes != tag && len(a.Tags) > 0:
		return http.StatusBadRequest, fmt.Errorf("%s takes no tag", a.Do)
	case len(a.Keys) > maxKeys, len(a.Tags) > maxKeys:
		return http.StatusBadRequest, fmt.Errorf("%d of %s, and at most %d are taken", len(r.Form[v.takes]), v.takes, maxKeys)
	}
	return 0, nil
}

// carryOut carries out a verb, and logs it.
func (h *Handler) carryOut(r *http.Request, a *answer, v verb) {
	began := time.Now()
	err := v.do(r.Context(), h.find(a.Cache), r.Form[v.takes], a)
	args := append(a.logged(r), "took", time.Since(began))
	if err == nil {
		h.o.Logger.Info("a call of cacheadmin", args...)
		return
	}
	h.o.Logger.Warn("a call of cacheadmin failed", append(args, "error", err)...)
	switch {
	case errors.Is(err, cache.ErrInvalidKey), errors.Is(err, inside.ErrNoKey), errors.Is(err, errNoScan):
		a.fail(http.StatusBadRequest, err)
	case errors.Is(err, errUnderWay):
		a.fail(http.StatusConflict, err)
	case errors.Is(err, cache.ErrNotInvalidated), errors.Is(err, cache.ErrUnavailable), errors.Is(err, cache.ErrClosed), errors.Is(err, bloom.ErrUnavailable):
		a.fail(http.StatusServiceUnavailable, err)
	default:
		a.fail(http.StatusBadGateway, err)
	}
}

// logged returns the log arguments of a request, which may come from somebody who is not allowed
// anything.
func (a *answer) logged(r *http.Request) []any {
	return []any{"who", a.Who, "from", r.RemoteAddr, "cache", fmt.Sprintf("%.200s", a.Cache), "do", a.Do, "keys", brief(a.Keys), "tags", brief(a.Tags)}
}

// brief shortens a list that would fill the log.
func brief(names []string) any {
	if text := fmt.Sprint(names); len(text) > 2000 {
		return fmt.Sprintf("%d of them, %.100s…", len(names), text)
	}
	return names
}

func (a *answer) fail(status int, err error) *answer {
	a.status, a.Error = status, err.Error()
	return a
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
