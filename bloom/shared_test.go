package bloom_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// sharedOptions suit the tests: small, quick, and a Rebuild does not wait for the log
// to grow old.
func sharedOptions(changes ...func(*bloom.Options)) bloom.Options {
	o := bloom.Options{
		Name: "product", Capacity: 20_000, MaxLag: time.Second, MaxTransaction: -1,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, change := range changes {
		change(&o)
	}
	return o
}

func open(t testing.TB, rdb redis.UniversalClient, changes ...func(*bloom.Options)) *bloom.Filter {
	t.Helper()
	f, err := bloom.Open(context.Background(), rdb, sharedOptions(changes...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// rebuild begins again where a busy machine takes longer than a call to Redis may.
func rebuild(t testing.TB, f *bloom.Filter, from, to int) {
	t.Helper()
	err := f.Rebuild(context.Background(), numbered(from, to))
	for end := time.Now().Add(20 * time.Second); errors.Is(err, bloom.ErrUnavailable) && time.Now().Before(end); {
		err = f.Rebuild(context.Background(), numbered(from, to))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// answers waits until f no longer abstains.
func answers(t testing.TB, f *bloom.Filter) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "the filter answers", func() bool { return !f.Stats().Abstaining })
}

// denies waits until f lets at most the given share of ids pass that nobody added. A busy machine
// reads the log late, and the filter abstains until it has.
func denies(t testing.TB, f *bloom.Filter, from, to int, share float64) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "the filter denies what was not added", func() bool { return passing(f, from, to) <= share })
}

// hasRead waits until f has read all that the log holds by now.
func hasRead(t testing.TB, f *bloom.Filter) {
	t.Helper()
	begun := time.Now()
	redistest.Eventually(t, 30*time.Second, "the filter has read the log", func() bool {
		passed, s := time.Since(begun), f.Stats()
		return s.Complete && s.Lag < passed
	})
}

// abstains waits until f says yes to what it never heard of.
func abstains(t testing.TB, f *bloom.Filter) {
	t.Helper()
	redistest.Eventually(t, 30*time.Second, "the filter abstains", func() bool { return f.Stats().Abstaining })
	if missing(f, 1e9, 1e9+1000) > 0 {
		t.Error("the filter denies although it abstains")
	}
}

func TestWhatOneProcessAddsOthersFind(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, s.Client(t)), open(t, s.Client(t))
	if missing(a, 0, 1000) > 0 || !a.Stats().Abstaining {
		t.Error("denies before the first Rebuild")
	}
	add(t, a, 0, 100) // before there is a generation: only into the log
	rebuild(t, a, 1000, 20_000)
	answers(t, b)
	for _, f := range []*bloom.Filter{a, b} {
		if n := missing(f, 1000, 20_000); n > 0 {
			t.Errorf("%d scanned ids denied", n)
		}
		denies(t, f, 1e6, 1e6+50_000, 0.015) // 0.01 is what it is made for
	}
	const fresh = 2e6
	for i := range 300 {
		add(t, a, fresh+i, fresh+i+1)
		if missing(a, fresh+i, fresh+i+1) > 0 {
			t.Fatal("an id is denied after its own Add")
		}
		redistest.Eventually(t, 30*time.Second, "the other process finds it", func() bool { return missing(b, fresh+i, fresh+i+1) == 0 })
	}
	t.Logf("%+v", b.Stats())
}

// Two filters on one client share its subscription. Without the sync.Once in close, the
// second Close of the one ends the subscription of the other, or panics.
func TestClosingTwiceLeavesOtherFiltersOfTheClientAlone(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	lazy := func(o *bloom.Options) { o.MaxLag = time.Minute } // finds adds by messages only
	a, b, c := open(t, s.Client(t)), open(t, rdb, lazy), open(t, rdb, lazy)
	rebuild(t, a, 0, 100)
	answers(t, b)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for i := range 3 {
		add(t, a, 1000+i, 1001+i)
		redistest.Eventually(t, 5*time.Second, "the other finds it", func() bool { return missing(b, 1000+i, 1001+i) == 0 })
	}
}
