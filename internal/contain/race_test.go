package contain_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

func TestRaceReturnsTheResultOfAFunctionThatIsFirst(t *testing.T) {
	for _, test := range []struct {
		name  string
		fn    func() (int, error)
		value int
		err   error
	}{
		{"return", func() (int, error) { return 7, nil }, 7, nil},
		{"return an error", func() (int, error) { return 7, io.EOF }, 7, io.EOF},
		{"panic with an error", func() (int, error) { panic(io.EOF) }, 0, io.EOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			value, late, err := contain.Race(t.Context(), test.fn)
			if value != test.value || !errors.Is(err, test.err) || late != nil {
				t.Errorf("got %d, %v, late %v; want %d, %v and nil", value, err, late, test.value, test.err)
			}
		})
	}
}

func TestRaceReturnsThatAFunctionCalledGoexit(t *testing.T) {
	value, late, err := contain.Race(t.Context(), func() (int, error) { runtime.Goexit(); return 7, nil })
	var panicked *contain.PanicError
	if value != 0 || !errors.As(err, &panicked) || late != nil {
		t.Errorf("got %d, %v, late %v", value, err, late)
	}
}

// Catches a Race that waits for a function that does not look at its context, and
// one that loses the late result.
func TestRaceLeavesWithItsContextAndSendsTheLateResult(t *testing.T) {
	for name, end := range map[string]func() (int, error){
		"return": func() (int, error) { return 7, io.EOF },
		"panic":  func() (int, error) { panic(io.EOF) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				errSlow := errors.New("too slow")
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errSlow)
				defer cancel()
				begin := time.Now()
				value, late, err := contain.Race(ctx, func() (int, error) { time.Sleep(time.Hour); return end() })
				if value != 0 || err != errSlow || time.Since(begin) != time.Second {
					t.Errorf("got %d, %v after %v, want 0, %v after 1s", value, err, time.Since(begin), errSlow)
				}
				if r := <-late; !errors.Is(r.Err, io.EOF) || time.Since(begin) != time.Hour {
					t.Errorf("late: got %v after %v, want EOF after 1h", r, time.Since(begin))
				}
			})
		})
	}
}

// Nobody listens to late here. On a channel without a buffer the function's
// goroutine would stay for good, which goleak reports.
func TestALateResultNeedsNoListener(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{})
	_, late, err := contain.Race(ctx, func() (int, error) { <-release; return 7, nil })
	if late == nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, late %v; want the cancellation and a channel", err, late)
	}
	close(release)
}

// Without its second look Race leaves about half of these results behind, although
// the functions were over in time.
func TestAFunctionThatIsOverWhenItsContextEndsIsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			value, late, err := contain.Race(endsWhenAsked{ctx, cancel}, func() (int, error) { return 7, nil })
			if value != 7 || err != nil || late != nil {
				t.Fatalf("got %d, %v, late %v; want 7 and nil", value, err, late)
			}
		}
	})
}

// endsWhenAsked ends as soon as somebody waits for its end and all other
// goroutines of the bubble have done what they can.
type endsWhenAsked struct {
	context.Context
	cancel context.CancelFunc
}

func (c endsWhenAsked) Done() <-chan struct{} {
	synctest.Wait()
	c.cancel()
	return c.Context.Done()
}
