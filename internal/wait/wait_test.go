package wait_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

func TestSleepEndsWithItsTimeOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, test := range []struct{ d, want time.Duration }{{time.Second / 2, time.Second / 2}, {time.Hour, time.Second / 2}, {time.Hour, 0}, {-1, 0}} {
			began := time.Now()
			if wait.Sleep(ctx, test.d); time.Since(began) != test.want {
				t.Errorf("Sleep of %v took %v, want %v", test.d, time.Since(began), test.want)
			}
		}
	})
}

func TestJitterIsSpreadOverItsPart(t *testing.T) {
	shortest, longest := time.Hour, time.Duration(0)
	for range 10_000 {
		d := wait.Jitter(time.Second, 0.2)
		shortest, longest = min(shortest, d), max(longest, d)
	}
	if shortest < 800*time.Millisecond || shortest > 810*time.Millisecond || longest > 1200*time.Millisecond || longest < 1190*time.Millisecond {
		t.Errorf("got %v to %v, want 800ms to 1.2s", shortest, longest)
	}
	if d := wait.Jitter(0, 0.2); d != 0 {
		t.Errorf("got %v, want 0", d)
	}
}

func TestWakeDoesNotBlockAndKeepsOneSignal(t *testing.T) {
	ch := make(chan struct{}, 1)
	wait.Wake(ch)
	wait.Wake(ch)
	<-ch
	select {
	case <-ch:
		t.Error("two signals are kept, want one")
	default:
	}
}

func TestEndedNamesTheCause(t *testing.T) {
	cause := errors.New("the user has left")
	plain, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait.Ended(plain); err != context.Canceled {
		t.Errorf("got %v, want the bare %v", err, context.Canceled)
	}
	wrapped, cancelWrapped := context.WithCancelCause(t.Context())
	own := fmt.Errorf("%w by the user", context.Canceled)
	cancelWrapped(own)
	if err := wait.Ended(wrapped); err != own {
		t.Errorf("got %v, want %v", err, own)
	}
	caused, cancelCause := context.WithCancelCause(t.Context())
	cancelCause(cause)
	if err := wait.Ended(caused); !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
		t.Errorf("got %v, want both %v and its cause", err, context.Canceled)
	}
}

func TestABackoffDoublesUpToItsMaximum(t *testing.T) {
	b := wait.Backoff{First: time.Second, Max: 5 * time.Second}
	for round := range 2 {
		for i, want := range []time.Duration{1, 2, 4, 5, 5} {
			if got := b.Next().Seconds(); got < 0.75*float64(want) || got > 1.25*float64(want) {
				t.Errorf("round %d: pause %d is %v s, want %d s give or take a quarter", round, i, got, want)
			}
		}
		b.Reset()
	}
}
