package cache_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
)

// readsOf are the rules that a request asks for in its Cache-Control (RFC 9111, section 5.2.1).
// Whoever may send no-cache may cause loads: give it to those whom you would let reload.
func readsOf(r *http.Request) (rules cache.Reads) {
	for _, directive := range strings.Split(strings.Join(r.Header.Values("Cache-Control"), ","), ",") {
		name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(directive)), "=")
		switch name {
		case "no-cache":
			rules.Reload, rules.NoStale = true, true
		case "max-age":
			seconds, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 32)
			switch age := time.Duration(seconds) * time.Second; {
			case err != nil:
			case age <= 0: // as no-cache
				rules.Reload, rules.NoStale = true, true
			case rules.MaxAge == 0 || age < rules.MaxAge:
				rules.MaxAge, rules.NoStale = age, true
			}
		case "only-if-cached":
			rules.NoLoad = true
		}
	}
	return rules
}

// productHandler answers with a product's name, says how old that is and for how long it may be kept, and with 304 to a client
// that has it.
func productHandler(products *cache.Cache[int64, Product]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		p, err := products.With(readsOf(r)).Fetch(r.Context(), id)
		switch {
		case errors.Is(err, cache.ErrNotFound):
			http.NotFound(w, r)
		case errors.Is(err, cache.ErrNotCached):
			http.Error(w, "not cached", http.StatusGatewayTimeout) // as RFC 9111 says of only-if-cached
		case err != nil:
			http.Error(w, "it did not work", http.StatusServiceUnavailable)
		default:
			body, age := fmt.Appendln(nil, p.Value.Name), int(p.Age.Seconds())
			w.Header().Set("Age", strconv.Itoa(age))
			w.Header().Set("Cache-Control", fmt.Sprintf("max-age=%d", age+10)) // 10 s from now: it counts from the load, as Age does
			if p.Stale {
				w.Header().Set("Cache-Control", "no-cache") // keep it, but come back each time
			}
			w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(body)))
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body)) // 304 if If-None-Match has the ETag
		}
	}
}

// A handler turns the Cache-Control of a request into rules, and tells the age of its answer.
func ExampleCache_With() {
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	products, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
	mux := http.NewServeMux()
	mux.Handle("GET /product/{id}", productHandler(products))

	get := func(control string) {
		r := httptest.NewRequest(http.MethodGet, "/product/42", nil)
		r.Header.Set("Cache-Control", control)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%d %s", w.Code, w.Body)
	}
	get("only-if-cached")
	get("")
	_ = store.Rename(context.Background(), 42, "desk lamp") // and nobody tells the cache
	get("max-age=60")
	get("no-cache")
	get("only-if-cached")
	// Output:
	// 504 not cached
	//   the database is asked for 42
	// 200 lamp
	// 200 lamp
	//   the database is asked for 42
	// 200 desk lamp
	// 200 desk lamp
}

// The handler of the example says for how long its answer is fresh, and does not send again what the client has.
func TestAHandlerAnswersWithCacheControlAndETag(t *testing.T) {
	inCells(t, []cell{{redis: "mini", local: true}}, func(r *rig) {
		name, failure := "lamp", error(nil)
		c := open(r, cache.Source[int64, Product]{Load: func(_ context.Context, id int64) (Product, error) {
			return Product{id, name}, failure
		}})
		handler := http.NewServeMux()
		handler.Handle("/{id}", productHandler(c.Cache))
		get := func(etag string) *http.Response {
			c.asked.Add(1)
			request, w := httptest.NewRequest(http.MethodGet, "/42", nil), httptest.NewRecorder()
			request.Header.Set("If-None-Match", etag)
			handler.ServeHTTP(w, request)
			return w.Result()
		}
		check := func(what string, got *http.Response, status int, control string) (etag string) {
			r.Helper()
			if got.StatusCode != status || got.Header.Get("Cache-Control") != control {
				r.Errorf("%s: %d, Cache-Control %q, want %d and %q", what, got.StatusCode, got.Header.Get("Cache-Control"), status, control)
			}
			return got.Header.Get("ETag")
		}
		lamp := check("the first time", get(""), http.StatusOK, "max-age=10")
		time.Sleep(5 * time.Second)
		check("with its ETag", get(`"other", W/`+lamp), http.StatusNotModified, "max-age=15")

		name = "desk lamp"
		if err := c.Invalidate(r.Context(), 42); err != nil {
			r.Fatal(err)
		}
		if etag := check("with the ETag of before", get(lamp), http.StatusOK, "max-age=10"); etag == lamp {
			r.Errorf("another body has the ETag %s too", etag)
		}

		failure = errors.New("the database is down")
		if err := c.Expire(r.Context(), 42); err != nil {
			r.Fatal(err)
		}
		check("in place of an error", get(""), http.StatusOK, "no-cache")
	})
}

// The handler of the example keeps to what RFC 9111 says.
func TestAHandlerReadsByTheCacheControlOfItsRequest(t *testing.T) {
	for control, want := range map[string]cache.Reads{
		"":                             {},
		"no-cache":                     {Reload: true, NoStale: true},
		"No-Cache, max-age=5":          {Reload: true, MaxAge: 5 * time.Second, NoStale: true},
		"max-age=60":                   {MaxAge: time.Minute, NoStale: true},
		"max-age=0":                    {Reload: true, NoStale: true},
		`max-age="5" , only-if-cached`: {MaxAge: 5 * time.Second, NoLoad: true, NoStale: true},
		"max-age=never":                {},
		"max-age=-5":                   {Reload: true, NoStale: true},
		"max-stale=5, no-transform":    {},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Cache-Control", control)
		if got := readsOf(r); got != want {
			t.Errorf("%q is %+v, want %+v", control, got, want)
		}
	}
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		c := open(r, cache.Source[int64, Product]{Load: func(_ context.Context, id int64) (Product, error) {
			return Product{id, "lamp"}, nil
		}})
		handler := http.NewServeMux()
		handler.Handle("/{id}", productHandler(c.Cache))
		age := func(control string) string {
			c.asked.Add(1)
			request, w := httptest.NewRequest(http.MethodGet, "/42", nil), httptest.NewRecorder()
			request.Header.Set("Cache-Control", control)
			handler.ServeHTTP(w, request)
			return w.Header().Get("Age")
		}
		for _, step := range []struct {
			control, age string
		}{{"", "0"}, {"", "5"}, {"max-age=10", "10"}, {"max-age=10", "0"}, {"only-if-cached", "5"}, {"no-cache", "0"}, {"", "5"}} {
			if got := age(step.control); got != step.age {
				r.Errorf("the age with %q is %s, want %s", step.control, got, step.age)
			}
			time.Sleep(5 * time.Second)
		}
	})
}
