package redisconn_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/redisconn"
)

func TestRunReturnsWhatTheOperationReturns(t *testing.T) {
	r := redisconn.NewRunner(time.Second, 1)
	got, err := redisconn.Run(t.Context(), r, func(context.Context) (int, error) { return 7, io.EOF }, nil)
	if got != 7 || !errors.Is(err, io.EOF) {
		t.Fatalf("got %d, %v", got, err)
	}
}

// A call that waits for op itself fails here: op does not look at its context,
// as a go-redis read does not.
func TestRunLeavesAnOperationThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := redisconn.NewRunner(100*time.Millisecond, 2)
		var late int
		hang := func(context.Context) (int, error) { time.Sleep(5 * time.Second); return 7, nil }
		start := time.Now()
		_, err := redisconn.Run(t.Context(), r, hang, func(v int, err error) { late = v })
		if !errors.Is(err, redisconn.ErrTimeout) || time.Since(start) != 100*time.Millisecond {
			t.Errorf("came back after %v with %v", time.Since(start), err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		start = time.Now()
		_, err = redisconn.Run(ctx, r, hang, nil)
		if !errors.Is(err, context.Canceled) || time.Since(start) != time.Millisecond {
			t.Errorf("came back after %v with %v, want the cancellation at once", time.Since(start), err)
		}

		// Both operations still run, so there is no room for a third.
		if _, err = redisconn.Run(t.Context(), r, hang, nil); !errors.Is(err, redisconn.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if late != 7 {
			t.Errorf("the late result was %d, want 7", late)
		}
	})
}

// An operation on its caller's own goroutine is one of those that are counted.
func TestAnOperationThatTheCallerRunsTakesAPlaceToo(t *testing.T) {
	r := redisconn.NewRunner(time.Second, 1)
	nothing := func(context.Context) (int, error) { return 0, nil }
	if !r.Enter() {
		t.Fatal("there is no place")
	}
	if r.Enter() {
		t.Error("there is a second place")
	}
	if _, err := redisconn.Run(t.Context(), r, nothing, nil); !errors.Is(err, redisconn.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	r.Leave()
	if _, err := redisconn.Run(t.Context(), r, nothing, nil); err != nil {
		t.Errorf("the place was not given back: %v", err)
	}
}

// An operation runs the user's hooks too. That it panicked must not be taken for a
// cancellation, which is what the end of its context looks like.
func TestAPanicIsTheOperationsError(t *testing.T) {
	r := redisconn.NewRunner(time.Second, 1)
	for range 1000 {
		_, err := redisconn.Run(t.Context(), r, func(context.Context) (int, error) { panic("ouch") }, nil)
		var p *contain.PanicError
		if !errors.As(err, &p) {
			t.Fatalf("got %v", err)
		}
	}
}
