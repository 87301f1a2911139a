package breaker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
)

// The machinery has its tests in internal/guard; here is that what a user calls reaches it.
func TestABreakerDoesWhatItsOptionsSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		var changes []breaker.State
		b, err := breaker.New(breaker.Options{Name: "db", MinRequests: 2, Timeout: time.Second, OnStateChange: func(_, to breaker.State) { changes = append(changes, to) }})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Do(t.Context(), func(context.Context) error { return down }); err != down {
				t.Errorf("got %v, want the function's error", err)
			}
		}
		if err := b.Do(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("got %v, want ErrOpen", err)
		}
		synctest.Wait()
		if s := b.Stats(); b.Name() != "db" || b.State() != breaker.Open || s.State != breaker.Open || s.Failures != 2 || s.RefusedOpen != 1 || len(changes) != 1 {
			t.Errorf("%s is %v: %+v; changes %v", b.Name(), b.State(), s, changes)
		}
		time.Sleep(7 * time.Second)
		if err := b.Do(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }); !errors.Is(err, breaker.ErrTimeout) {
			t.Errorf("got %v, want ErrTimeout", err)
		}
	})
	if b, err := breaker.New(breaker.Options{MinRequests: -1}); b != nil || err == nil {
		t.Errorf("got %v, %v", b, err)
	}
}

func TestACallOfANilBreakerRuns(t *testing.T) {
	var b *breaker.Breaker
	var panicked *breaker.PanicError
	if err := b.Do(t.Context(), func(context.Context) error { panic("ouch") }); !errors.As(err, &panicked) {
		t.Errorf("got %v, want its panic", err)
	}
	if b.Name() != "" || b.State() != breaker.Closed || b.Stats() != (breaker.Stats{}) {
		t.Errorf("%q, %v, %+v", b.Name(), b.State(), b.Stats())
	}
}
