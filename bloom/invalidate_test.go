package bloom_test

import (
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

// answering reports whether f answers, by ids that it does not hold: one in a hundred passes all the same.
func answering(f *bloom.Filter) bool { return passing(f, 5000, 5100) < 0.5 }

// abstaining reports whether f denies nothing.
func abstaining(f *bloom.Filter) bool { return missing(f, 5000, 5100) == 0 }

// Rows were inserted of which nobody has told the filter. From then on no process may deny one, until a scan
// that began afterwards has found them.
func TestAnInvalidFilterAbstainsEverywhereUntilItIsRebuilt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := open(t, s.Client(t), quick), open(t, s.Client(t), quick)
	rebuild(t, a, 0, 1000)
	redistest.Eventually(t, 10*time.Second, "both answer", func() bool { return answering(a) && answering(b) })
	if err := a.Invalidate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !abstaining(a) {
		t.Error("the process that has invalidated the filter denies a row")
	}
	redistest.Eventually(t, 10*time.Second, "the other process abstains", func() bool { return abstaining(b) && b.Stats().NeedsRebuild })
	c := open(t, s.Client(t), quick)
	redistest.Eventually(t, 10*time.Second, "all say that they need a Rebuild", func() bool {
		return a.Stats().NeedsRebuild && b.Stats().NeedsRebuild && c.Stats().NeedsRebuild
	})
	ifOlder(t, b, time.Hour, true) // however young the last one is
	redistest.Eventually(t, 10*time.Second, "all answer", func() bool {
		return answering(a) && answering(b) && answering(c)
	})
	for _, f := range []*bloom.Filter{a, b, c} {
		if missing(f, 0, 1000) > 0 {
			t.Error("an id that was scanned is denied")
		}
	}
}

// The scan may have passed the rows by.
func TestARebuildThatRunsDoesNotSurviveAnInvalidate(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, own, shared := s.Client(t), newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1}), open(t, s.Client(t), quick)
	for name, lease := range map[string]string{"of a process": "", "shared": "", "shared and paused": names.Rebuild()} {
		t.Run(name, func(t *testing.T) {
			f := shared
			if name == "of a process" {
				f = own
			}
			rebuild(t, f, 0, 1000)
			err := f.Rebuild(t.Context(), func(yield func(string, error) bool) {
				for id, err := range numbered(0, 500) {
					if !yield(id, err) {
						return
					}
				}
				if lease == "" {
					if err := f.Invalidate(t.Context()); err != nil {
						t.Error(err)
					}
				} else { // and the lease has expired before this process goes on
					p := rdb.TxPipeline()
					p.HSet(t.Context(), names.Record(), "shape", "")
					p.HIncrBy(t.Context(), names.Record(), "invalid", 1)
					p.Del(t.Context(), lease)
					if _, err := p.Exec(t.Context()); err != nil {
						t.Error(err)
					}
					redistest.Eventually(t, 10*time.Second, "the Rebuild takes the lease again", func() bool { return rdb.Exists(t.Context(), lease).Val() == 1 })
				}
				numbered(500, 1000)(yield)
			})
			if err == nil || lease == "" && !abstaining(f) { // of what others have invalidated it hears within MaxLag
				t.Errorf("a Rebuild from before is over with %v, and leaves %+v", err, f.Stats())
			}
			redistest.Eventually(t, 10*time.Second, "the filter says that it needs a Rebuild", func() bool { return f.Stats().NeedsRebuild })
			if !abstaining(f) {
				t.Errorf("a filter that needs a Rebuild answers: %+v", f.Stats())
			}
			ifOlder(t, f, time.Hour, true)
			redistest.Eventually(t, 10*time.Second, "the next one answers", func() bool { return answering(f) })
		})
	}
}

func TestInvalidateOfAFilterThatIsClosedOrCannotBeReached(t *testing.T) {
	t.Parallel()
	f := newFilter(t, bloom.Options{Capacity: 1000})
	_ = f.Close()
	if err := f.Invalidate(t.Context()); !errors.Is(err, bloom.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	s := redistest.Start(t)
	shared := open(t, s.Client(t))
	s.Kill()
	if err := shared.Invalidate(t.Context()); !errors.Is(err, bloom.ErrUnavailable) {
		t.Errorf("without Redis: %v", err)
	}
	_ = shared.Close()
	if err := shared.Invalidate(t.Context()); !errors.Is(err, bloom.ErrClosed) {
		t.Errorf("shared and closed: %v", err)
	}
	if err := (*bloom.Filter)(nil).Invalidate(t.Context()); err != nil {
		t.Errorf("nil: %v", err)
	}
}
