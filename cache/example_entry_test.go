package cache_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// An api reads pages of an HTTP server that knows ETags.
type api struct {
	client *http.Client
	base   string
}

// Page loads the page at a path, or says that the one that is there still holds.
func (a api) Page(ctx context.Context, path string, e *cache.Entry[string]) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return "", err
	}
	if e.Prev != nil && e.Version != "" {
		req.Header.Set("If-None-Match", e.Version)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotModified:
		return "", cache.ErrNotModified
	case http.StatusNotFound:
		return "", cache.ErrNotFound
	default:
		return "", refusal{resp}
	}
	e.Version = resp.Header.Get("ETag")
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// A refusal is an answer without a page. The cache leaves the server alone for as long as its
// Retry-After says.
type refusal struct{ *http.Response }

func (r refusal) Error() string { return "page: " + r.Status }

func (r refusal) RetryAfter() time.Duration {
	seconds, _ := strconv.Atoi(r.Header.Get("Retry-After"))
	return time.Duration(seconds) * time.Second
}

// A pageServer sends its page, and to those who have it nothing but a few headers.
type pageServer struct{ asked, bodies atomic.Int64 }

func (s *pageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const page, etag = "<h1>lamp</h1>", `"1"`
	s.asked.Add(1)
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.bodies.Add(1)
	_, _ = io.WriteString(w, page)
}

// A source that can say that nothing has changed sends its page once. Past its TTL the page is
// looked at again: the server compares the ETag, and the cache goes on with what it has.
func ExampleEntry() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	pages := &pageServer{}
	server := httptest.NewServer(pages)
	defer server.Close()

	c, err := cache.NewFrom(rdb, cache.Source[string, string]{LoadEntry: api{server.Client(), server.URL}.Page}, cache.Options{
		Name: "page", TTL: 10 * time.Millisecond, StaleWhileRevalidate: cache.Off, // so short for the example
		RedisTimeout: 5 * time.Second, // and patient with a busy machine
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for range 5 {
		page, err := c.Get(ctx, "/products/42")
		fmt.Println(page, err)
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Println("requests:", pages.asked.Load(), "pages sent:", pages.bodies.Load())
	// Output:
	// <h1>lamp</h1> <nil>
	// <h1>lamp</h1> <nil>
	// <h1>lamp</h1> <nil>
	// <h1>lamp</h1> <nil>
	// <h1>lamp</h1> <nil>
	// requests: 5 pages sent: 1
}

// served is an HTTP transport without a network, for a bubble.
type served struct{ http.Handler }

func (s served) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

// The server of the example is asked by refreshes of two processes, and sends
// its page once. Catches a version that is lost on the way, and refreshes without a Prev.
func TestRefreshesOfWhatIsUnchangedSendOnePage(t *testing.T) {
	inCells(t, entryCells, func(r *rig) {
		pages := &pageServer{}
		source := cache.Source[string, string]{LoadEntry: api{&http.Client{Transport: served{pages}}, "http://page"}.Page}
		one, other := open(r, source, staleAfterASecond), open(r, source, staleAfterASecond)
		for pages.asked.Load() <= redistest.Pick[int64](100, 1000) {
			one.gives(r, "/", "<h1>lamp</h1>")
			other.gives(r, "/", "<h1>lamp</h1>")
			time.Sleep(500 * time.Millisecond)
		}
		if sent := pages.bodies.Load(); sent != 1 {
			r.Errorf("%d pages were sent to %d requests", sent, pages.asked.Load())
		}
	})
}
