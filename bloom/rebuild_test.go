package bloom_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/internal/redistest"
)

func TestRebuildForgetsWhatIsGone(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1})
	for _, err := range []error{f.Rebuild(t.Context(), numbered(0, 1000)), f.Rebuild(t.Context(), numbered(500, 1500))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if missing(f, 500, 1500) > 0 || passing(f, 0, 500) > 0.05 {
		t.Errorf("%d denied, %v of those gone pass", missing(f, 500, 1500), passing(f, 0, 500))
	}
}

func TestARebuildThatFailsChangesNothing(t *testing.T) {
	broken := func(end func(yield func(string, error) bool)) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for id := range numbered(5000, 5100) {
				yield(id, nil)
			}
			end(yield)
		}
	}
	var panicked *bloom.PanicError
	for name, test := range map[string]struct {
		ids iter.Seq2[string, error]
		is  func(error) bool
	}{
		"error":  {broken(func(yield func(string, error) bool) { yield("", io.ErrUnexpectedEOF) }), func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		"panic":  {broken(func(func(string, error) bool) { panic("boom") }), func(err error) bool { return errors.As(err, &panicked) }},
		"Goexit": {broken(func(func(string, error) bool) { runtime.Goexit() }), func(err error) bool { return errors.As(err, &panicked) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1})
			if err := f.Rebuild(t.Context(), test.ids); !test.is(err) {
				t.Fatalf("got %v", err)
			}
			if s := f.Stats(); !s.Abstaining || s.Rebuilding {
				t.Errorf("first Rebuild: got %+v, want still abstaining", s)
			}
			if err := f.Rebuild(t.Context(), numbered(0, 1000)); err != nil {
				t.Fatal(err)
			}
			if err := f.Rebuild(t.Context(), test.ids); !test.is(err) {
				t.Fatalf("got %v", err)
			}
			add(t, f, 1000, 1010)
			if missing(f, 0, 1010) > 0 || passing(f, 5000, 5100) > 0.1 {
				t.Errorf("%d denied, %v of the failed Rebuild pass", missing(f, 0, 1010), passing(f, 5000, 5100))
			}
			if s := f.Stats(); s.Rebuilds != 1 || s.Rebuilding {
				t.Errorf("got %+v, want one Rebuild", s)
			}
		})
	}
}

func TestARebuildEndsWithItsContext(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1})
	for name, ids := range map[string]func(stop func()) iter.Seq2[string, error]{
		"that goes on": func(stop func()) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for id := range numbered(0, math.MaxInt) {
					if id == idOf(10) {
						stop()
					}
					if !yield(id, nil) {
						return
					}
				}
			}
		},
		"that stops without a word": func(stop func()) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { yield("a", nil); stop() }
		},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := f.Rebuild(ctx, ids(func() { cancel(io.EOF) }))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, io.EOF) || !strings.HasPrefix(err.Error(), "bloom: ") {
			t.Errorf("an iterator %s: got %v, want the cancellation and its cause", name, err)
		}
		if !f.Stats().Abstaining {
			t.Errorf("an iterator %s: half a set is taken for the whole", name)
		}
	}
}

func TestCloseEndsARebuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilter(t, bloom.Options{Capacity: 1000})
		done := make(chan error)
		go func() {
			done <- f.Rebuild(t.Context(), func(yield func(string, error) bool) {
				for yield("a", nil) {
					time.Sleep(time.Millisecond)
				}
			})
		}()
		time.Sleep(time.Second)
		_ = f.Close()
		if err := <-done; err != bloom.ErrClosed {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

// slowly yields ids for as long as d.
func slowly(d time.Duration, read *int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for id := range numbered(0, 100) {
			time.Sleep(d / 100)
			*read++
			if !yield(id, nil) {
				return
			}
		}
	}
}

func TestASecondRebuildWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilter(t, bloom.Options{Capacity: 1000})
		first, second := 0, 0
		go func() { _ = f.Rebuild(context.Background(), slowly(time.Minute, &first)) }()
		synctest.Wait()
		begin := time.Now()
		if !f.Stats().Rebuilding {
			t.Error("Stats do not show the Rebuild")
		}
		if err := f.Rebuild(t.Context(), slowly(time.Minute, &second)); err != nil || time.Since(begin) != time.Minute {
			t.Errorf("got %v after %v, want nil after a minute", err, time.Since(begin))
		}
		if second != 0 || f.Stats().Rebuilds != 1 || f.Stats().Abstaining {
			t.Errorf("the second read %d ids: %+v", second, f.Stats())
		}
	})
}

func TestAWaitingRebuildLeavesWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilter(t, bloom.Options{Capacity: 1000})
		read := 0
		go func() { _ = f.Rebuild(context.Background(), slowly(time.Minute, &read)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := f.Rebuild(ctx, numbered(0, 1)); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v, want the deadline after 1s", err, time.Since(begin))
		}
		time.Sleep(time.Minute)
	})
}

// With nil for the waiting one, a filter would be taken for rebuilt that is not.
func TestAWaitingRebuildTakesItsTurnWhenTheFirstFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1})
		go func() {
			_ = f.Rebuild(context.Background(), func(yield func(string, error) bool) { time.Sleep(time.Second); yield("", io.EOF) })
		}()
		synctest.Wait()
		if err := f.Rebuild(t.Context(), numbered(0, 100)); err != nil {
			t.Fatal(err)
		}
		if missing(f, 0, 100) > 0 || f.Stats().Abstaining {
			t.Errorf("%d denied: %+v", missing(f, 0, 100), f.Stats())
		}
	})
}

// A row that is added before the scan begins and committed after it has passed is
// in no scan. It fails if a Rebuild starts from nothing.
func TestARowCommittedBehindTheScanIsNotDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: time.Minute})
		add(t, f, 0, 10)
		time.Sleep(time.Minute)
		add(t, f, 10, 20)
		time.Sleep(59 * time.Second)
		if err := f.Rebuild(t.Context(), numbered(100, 200)); err != nil {
			t.Fatal(err)
		}
		if d := missing(f, 10, 20); d > 0 {
			t.Errorf("%d rows denied that may still commit", d)
		}
		time.Sleep(time.Minute)
		if err := f.Rebuild(t.Context(), numbered(100, 200)); err != nil {
			t.Fatal(err)
		}
		if rate := passing(f, 0, 20); rate > 0.2 {
			t.Errorf("%v of the rows pass that never committed", rate)
		}
	})
}

func TestRebuildReportsItsProgress(t *testing.T) {
	var reports []uint64
	f := newFilter(t, bloom.Options{Capacity: 200_000, Progress: func(done uint64) { reports = append(reports, done) }})
	if err := f.Rebuild(t.Context(), numbered(0, 200_000)); err != nil {
		t.Fatal(err)
	}
	if len(reports) < 3 || !slices.IsSorted(reports) || reports[len(reports)-1] != 200_000 {
		t.Errorf("got %v, want several reports up to 200000", reports)
	}
}

func TestAPanicOfProgressFailsTheRebuildOnly(t *testing.T) {
	f := newFilter(t, bloom.Options{Capacity: 100, Progress: func(uint64) { panic("boom") }})
	var panicked *bloom.PanicError
	if err := f.Rebuild(t.Context(), numbered(0, 10)); !errors.As(err, &panicked) {
		t.Errorf("got %v, want a PanicError", err)
	}
}

// An endedFirst is a context in the moment in which it has ended, and those derived from it
// have not.
type endedFirst struct {
	context.Context
	ended atomic.Bool
}

func (c *endedFirst) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

func (*endedFirst) Done() <-chan struct{} { return nil }

// Ids that end early with the caller's context are not all that exist. Catches a Rebuild that
// looks only at a context of its own, which ends a moment later: the filter denied every id
// that the scan had not come to.
func TestIdsThatEndWithTheCallersContextAreNotAll(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for name, f := range map[string]*bloom.Filter{
		"local":  newFilter(t, bloom.Options{Capacity: 1000, MaxTransaction: -1}),
		"shared": open(t, rdb),
	} {
		if err := f.Rebuild(t.Context(), numbered(0, 100)); err != nil {
			t.Fatal(err)
		}
		ctx := &endedFirst{Context: t.Context()}
		err := f.Rebuild(ctx, func(yield func(string, error) bool) {
			for id, err := range numbered(0, 50) {
				yield(id, err)
			}
			ctx.ended.Store(true)
		})
		if !errors.Is(err, context.Canceled) || missing(f, 0, 100) > 0 {
			t.Errorf("%s: %v, %d denied", name, err, missing(f, 0, 100))
		}
	}
}
