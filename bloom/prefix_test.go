package bloom_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// Staging and production on one Redis: without Prefix the filters share a table, and a Rebuild of the one
// denies what only the other has.
func TestFiltersOfTwoPrefixesShareNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	under := func(prefix string) func(*bloom.Options) {
		return func(o *bloom.Options) { o.Prefix = prefix }
	}
	first := map[string]int{"": 0, "staging": 10_000, "production": 20_000} // of a filter's thousand ids
	filters := map[string]*bloom.Filter{}
	for prefix, n := range first {
		filters[prefix] = open(t, s.Client(t), under(prefix))
		rebuild(t, filters[prefix], n, n+900)
	}
	other := open(t, s.Client(t), under("staging")) // of another process
	for prefix, n := range first {
		f := filters[prefix]
		answers(t, f)
		add(t, f, n+900, n+1000)
		if denied := missing(f, n, n+1000); denied > 0 {
			t.Errorf("%q denies %d of its own ids", prefix, denied)
		}
		for also, n := range first {
			if passed := 1000 - missing(f, n, n+1000); also != prefix && passed > 100 {
				t.Errorf("%q lets %d ids of %q pass", prefix, passed, also)
			}
		}
		if err := f.Check(t.Context()); err != nil {
			t.Errorf("%q: Check: %v", prefix, err)
		}
	}
	answers(t, other)
	redistest.Eventually(t, 30*time.Second, "the other process of the same prefix finds them", func() bool { return missing(other, 10_000, 11_000) == 0 })
	keys := map[string]bool{}
	for _, key := range redistest.Must(rdb.Keys(t.Context(), "*").Result()) {
		keys[key[:strings.Index(key, "}")+1]] = true
	}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, []string{"levee:b2:{product}", "production:levee:b2:{product}", "staging:levee:b2:{product}"}) {
		t.Errorf("the names in Redis begin with %q", got)
	}
	for _, bad := range []string{"a{b", "a}", "line\n", strings.Repeat("x", 101)} {
		if _, err := bloom.Open(context.Background(), rdb, sharedOptions(under(bad))); err == nil || !strings.Contains(err.Error(), "Prefix") {
			t.Errorf("Open with the prefix %q: %v", bad, err)
		}
	}
}
