package bloom_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
)

// One main serves tests and production: without a client Open makes the filter of New.
func TestOpenWithoutAClientMakesAFilterOfThisProcess(t *testing.T) {
	ctx := t.Context()
	f, err := bloom.Open(ctx, nil, bloom.Options{Name: "product", Capacity: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if s := f.Stats(); !s.Abstaining || !f.MayContain(ctx, "2") {
		t.Errorf("it does not abstain before its first Rebuild: %+v", s)
	}
	ids := func(yield func(string, error) bool) { yield("1", nil) }
	if err := f.Rebuild(ctx, ids); err != nil {
		t.Fatal(err)
	}
	if err := f.Add(ctx, "3"); err != nil {
		t.Fatal(err)
	}
	if !f.MayContain(ctx, "1") || f.MayContain(ctx, "2") || !f.MayContain(ctx, "3") {
		t.Error("it does not know which ids exist")
	}
	if ran, err := f.RebuildIfOlder(ctx, time.Hour, ids); ran || err != nil {
		t.Errorf("ran=%v, %v: the last Rebuild is not an hour old", ran, err)
	}
	if err := f.Check(ctx); err != nil {
		t.Errorf("Check: %v", err)
	}
}

// What production would refuse, a test without Redis refuses too.
func TestOpenWithoutAClientKeepsTheRulesOfASharedFilter(t *testing.T) {
	var typed *redis.Client
	for want, open := range map[string]func() (*bloom.Filter, error){
		"Name": func() (*bloom.Filter, error) { return bloom.Open(t.Context(), nil, bloom.Options{Capacity: 1}) },
		"does not count": func() (*bloom.Filter, error) {
			return bloom.Open(t.Context(), nil, bloom.Options{Name: "product", Capacity: 1, Counting: true})
		},
		"MaxLag": func() (*bloom.Filter, error) {
			return bloom.Open(t.Context(), nil, bloom.Options{Name: "product", Capacity: 1, MaxLag: time.Millisecond})
		},
		"nil *redis.Client": func() (*bloom.Filter, error) {
			return bloom.Open(t.Context(), typed, bloom.Options{Name: "product", Capacity: 1})
		},
	} {
		if f, err := open(); f != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v; want an error about %q", f, err, want)
		}
	}
}
