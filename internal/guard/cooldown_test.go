package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/guard"
)

func TestTheCooldownsOfAFleetDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances, step = 400, 10 * time.Millisecond
		const shortest, longest = 1600 * time.Millisecond, 2400 * time.Millisecond // of the default
		var fifths [5]int
		for range instances {
			b := newBreaker(t, guard.Options{})
			trip(t, b)
			for range 3 { // each try fails and opens it again
				begin := time.Now()
				for errors.Is(b.Do(t.Context(), fail), guard.ErrOpen) {
					time.Sleep(step)
				}
				cooldown := time.Since(begin)
				if cooldown < shortest || cooldown > longest+step {
					t.Fatalf("a cooldown of %v, want %v to %v", cooldown, shortest, longest)
				}
				fifths[min(4, int((cooldown-shortest)*5/(longest-shortest)))]++
			}
		}
		for i, n := range fifths { // 240 each, standard deviation 24 as each counts thrice
			if n < 120 || n > 360 {
				t.Errorf("%d of %d cooldowns in fifth %d of the range, want about %d: %v", n, 3*instances, i, 3*instances/5, fifths)
			}
		}
	})
}

func TestTheShortestCooldownEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 30 {
			b := newBreaker(t, guard.Options{Cooldown: 1})
			trip(t, b)
			time.Sleep(time.Microsecond)
			if err := b.Do(t.Context(), succeed); err != nil {
				t.Fatalf("a microsecond after the opening: got %v, want nil", err)
			}
		}
	})
}

func TestARefusalWhileOpenTakesNoMutex(t *testing.T) {
	b := newBreaker(t, guard.Options{})
	refused := make(chan error, 1)
	b.AtOpening(func() { // under gobreaker's mutex
		go func() { refused <- b.Do(context.Background(), succeed) }()
		select {
		case err := <-refused:
			if err != guard.ErrOpen {
				t.Errorf("got %v, want ErrOpen", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the refusal waits for gobreaker's mutex")
		}
	})
	trip(t, b)
}

func TestAFlappingSourceCausesFewChangesAndNoCallsWhileOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes, calls := 0, 0
		b := newBreaker(t, guard.Options{Cooldown: 5 * time.Second, OnStateChange: func(_, _ guard.State) { changes++ }})
		begin := time.Now()
		for time.Since(begin) < time.Minute {
			open := b.State() == guard.Open
			err := b.Do(t.Context(), func(context.Context) error {
				calls++
				if time.Since(begin)/time.Second%2 == 0 {
					return errSource
				}
				return nil
			})
			if open && !errors.Is(err, guard.ErrOpen) {
				t.Fatal("a call passed while open")
			}
			time.Sleep(5 * time.Millisecond)
		}
		synctest.Wait()
		if changes > 60 {
			t.Errorf("%d changes in a minute, want at most one a second", changes)
		}
		t.Logf("%d changes, %d calls", changes, calls)
	})
}
