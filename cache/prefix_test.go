package cache_test

import (
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// Staging and production on one Redis: without Prefix the second cache would serve the rows of the first,
// and each would end what the other has stored.
func TestCachesOfTwoPrefixesShareNothing(t *testing.T) {
	server := redistest.Start(t)
	r := onServer(t, server, cell{redis: "real", local: true})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	under := func(prefix string) func(*cache.Options) {
		return func(o *cache.Options) { o.Prefix = prefix }
	}
	rows, others := newRows(r, 1), newRows(r)
	others.put(1, "the other")
	staging, production := open(r, rows.source(), under("staging")), open(r, others.source(), under("production"))
	again := open(r, others.source(), under("production")) // of another process
	plain := open(r, rows.source())
	staging.gives(r, 1, "v1")
	production.gives(r, 1, "the other")
	again.gives(r, 1, "the other")
	plain.gives(r, 1, "v1")
	for _, ended := range []struct {
		name string
		by   func() error
	}{
		{"an Invalidate", func() error { return staging.Invalidate(r.ctx, 1) }},
		{"a Clear", func() error { return staging.Clear(r.ctx) }},
		{"a Set", func() error { return staging.Set(r.ctx, 1, "v2") }},
	} {
		others.put(1, "after "+ended.name) // nobody is told
		must(ended.by())
		for _, c := range []*probe[int64, string]{production, again} {
			if got, err := c.With(cache.Reads{SkipLocal: true}).Get(r.ctx, 1); got != "the other" || err != nil {
				t.Errorf("after %s under another prefix there is %q, %v", ended.name, got, err)
			}
		}
	}
	staging.gives(r, 1, "v2")
	plain.gives(r, 1, "v1")
	must(again.Invalidate(r.ctx, 1))
	r.eventually("the other process of the same prefix is told", func() bool {
		got, err := production.Get(r.ctx, 1)
		return err == nil && strings.HasPrefix(got, "after ")
	})
	if err := production.Check(r.ctx); err != nil {
		t.Errorf("Check: %v", err)
	}
	for _, prefix := range []string{"staging", "production", ""} {
		if name := keys.OfCache("test").Under(prefix).Value(0, "1"); server.Client(t).Exists(r.ctx, name).Val() != 1 {
			t.Errorf("there is no %q", name)
		}
	}
	// A value that somebody copies to the other prefix is none there.
	rdb, value := server.Client(t), func(prefix string) string { return keys.OfCache("test").Under(prefix).Value(0, "1") }
	must(rdb.Set(r.ctx, value("production"), rdb.Get(r.ctx, value("staging")).Val(), time.Minute).Err())
	if got, err := again.With(cache.Reads{SkipLocal: true}).Get(r.ctx, 1); !strings.HasPrefix(got, "after ") || err != nil {
		t.Errorf("a value of another prefix answers: %q, %v", got, err)
	}
	for _, bad := range []string{"a{b", "}", strings.Repeat("x", 101), "a\nb"} {
		if _, err := cache.New(nil, rows.load, cache.Options{Name: "p", Prefix: bad}); err == nil || !strings.Contains(err.Error(), "Prefix") {
			t.Errorf("%q is accepted: %v", bad, err)
		}
	}
}
