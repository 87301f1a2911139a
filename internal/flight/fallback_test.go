package flight_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/flight"
)

// has is a caller's own fallback, which it has found already; none is no fallback.
func has() (any, bool)  { return "old", true }
func none() (any, bool) { return nil, false }

func TestAFallbackIsTakenAtTheSoftTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		began := time.Now()
		opener := join(t, g, opened)
		impatient := wait(t.Context(), opener, patience{SoftTimeout: 200 * time.Millisecond, Fallback: has})
		patient := wait(t.Context(), join(t, g, waits), patience{Fallback: has})
		without := wait(t.Context(), join(t, g, waits), patience{SoftTimeout: 200 * time.Millisecond, Fallback: none})
		time.Sleep(199 * time.Millisecond)
		impatient.waits(t)
		time.Sleep(time.Millisecond)
		impatient.want(t, answer{"old", true, nil})
		if took := impatient.at.Sub(began); took != 200*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		time.Sleep(time.Minute)
		patient.waits(t)
		without.waits(t)
		opener.Flight.Decide()
		opener.Flight.Finish("new", nil, nil)
		patient.want(t, answer{"new", false, nil})
		without.want(t, answer{"new", false, nil})
	})
}

// What a caller has kept may become good while it waits.
func TestAFallbackIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := join(t, newGroup(), opened)
		asked := 0
		w := wait(t.Context(), c, patience{SoftTimeout: 200 * time.Millisecond, Fallback: func() (any, bool) {
			asked++
			return "old", asked > 1
		}})
		time.Sleep(300 * time.Millisecond)
		w.waits(t)
		time.Sleep(100 * time.Millisecond)
		w.want(t, answer{"old", true, nil})
		c.Flight.Finish("new", nil, nil)
	})
}

// The soft timeout counts from the caller's Wait, also over two flights.
func TestTheSoftTimeoutGoesOnInTheNextFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		c := join(t, g, opened)
		c.Flight.Decide()
		late := wait(t.Context(), join(t, g, waits), patience{SoftTimeout: 200 * time.Millisecond, Fallback: has})
		time.Sleep(150 * time.Millisecond)
		next := c.Flight.Finish("v1", nil, nil)
		late.waits(t)
		time.Sleep(50 * time.Millisecond)
		late.want(t, answer{"old", true, nil})
		next.Finish("new", nil, nil)
	})
}

func TestAFallbackIsTakenWhenTheCallersContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := join(t, newGroup(), opened)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		with, without := wait(ctx, c, patience{Fallback: has}), wait(ctx, c, patience{Fallback: none})
		time.Sleep(time.Second)
		with.want(t, answer{"old", true, nil})
		without.want(t, answer{"", true, context.DeadlineExceeded})
		c.Flight.Finish("new", nil, nil)
	})
}

// At its deadline a caller can read nothing any more. If it did not look before that, who
// has joined a running flight would get an error although there is an old value.
func TestAFallbackIsLookedForBeforeTheDeadline(t *testing.T) {
	for name, test := range map[string]struct{ left, at time.Duration }{
		"with time":     {time.Second, 900 * time.Millisecond},
		"with little":   {100 * time.Millisecond, 50 * time.Millisecond},
		"without limit": {0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := join(t, newGroup(), opened)
				c.Flight.Decide()
				ctx := t.Context()
				if test.left > 0 {
					limited, cancel := context.WithTimeout(ctx, test.left)
					defer cancel()
					ctx = limited
				}
				began, looked := time.Now(), time.Hour
				w := wait(ctx, c, patience{Lead: 100 * time.Millisecond, Fallback: func() (any, bool) {
					looked = min(looked, time.Since(began))
					return "old", ctx.Err() == nil || looked < time.Since(began)
				}})
				time.Sleep(max(test.left, time.Second))
				if test.left > 0 {
					w.want(t, answer{"old", true, nil})
				} else {
					w.waits(t)
				}
				if looked != test.at {
					t.Errorf("looked after %v, want %v", looked, test.at)
				}
				c.Flight.Finish("new", nil, nil)
			})
		})
	}
}

// A flight that ends while a caller looks for its fallback has the better answer, also if
// the deadline has come meanwhile.
func TestAResultComesBeforeAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 20 { // a select takes either
			c := join(t, newGroup(), opened)
			c.Flight.Decide()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			w := wait(ctx, c, patience{Lead: 100 * time.Millisecond, Fallback: func() (any, bool) {
				time.Sleep(200 * time.Millisecond)
				return "old", true
			}})
			time.Sleep(950 * time.Millisecond)
			c.Flight.Finish("new", nil, nil)
			time.Sleep(time.Second)
			w.want(t, answer{"new", true, nil})
			cancel()
		}
	})
}

// The last caller leaves, and another joins before the load that waits for its turn has
// heard of it. The refusal goes to those who have left. Catches one that goes to the new
// caller, who is told that nobody waits.
func TestARefusalIsNotForWhoJoinsAfterTheCrowdHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		opener := join(t, g, opened)
		f := opener.Flight
		waiting, stop := g.Waiting(t.Context(), f)
		defer stop()
		ctx, leave := context.WithCancel(t.Context())
		first := wait(ctx, opener, patience{})
		synctest.Wait()
		if waiting.Err() != nil {
			t.Error("the crowd has not left")
		}
		leave()
		first.want(t, answer{"", true, context.Canceled})
		if cause := context.Cause(waiting); !errors.Is(cause, flight.ErrDeserted) {
			t.Errorf("got %v, want ErrDeserted", cause)
		}
		second := wait(t.Context(), join(t, g, waits), patience{})
		next := f.Refuse(context.Cause(waiting))
		second.waits(t)
		if next == nil {
			t.Fatal("there is no flight for the second caller")
		}
		next.Decide()
		next.Finish("v1", nil, nil)
		second.want(t, answer{"v1", true, nil})
	})
}

// Who waits for a load that waits for its turn says how long that is worth while: the last to
// leave. Catches a deadline that is the opener's.
func TestTheCrowdsDeadlineIsThatOfTheLastToLeave(t *testing.T) {
	g := newGroup()
	in := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	short, long := in(time.Minute), in(time.Hour)
	c, _, err := g.Join(short, "id", flight.Callers{}, newFlight)
	if err != nil {
		t.Fatal(err)
	}
	waiting, stop := g.Waiting(t.Context(), c.Flight)
	wants := func(want context.Context, what string) {
		t.Helper()
		got, ok := waiting.Deadline()
		if deadline, ends := want.Deadline(); ok != ends || !got.Equal(deadline) {
			t.Errorf("%s: got %v, %v, want %v", what, got, ok, deadline)
		}
	}
	wants(short, "alone")
	_, _, _ = g.Join(long, "id", flight.Callers{}, newFlight)
	wants(long, "with a longer one")
	_, _, _ = g.Join(short, "id", flight.Callers{}, newFlight)
	wants(long, "with a shorter one")
	stop()
	bound := in(30 * time.Minute)
	waiting, stop = g.Waiting(bound, c.Flight)
	wants(bound, "bound by the load's own")
	stop()
	_, _, _ = g.Join(t.Context(), "id", flight.Callers{}, newFlight)
	waiting, stop = g.Waiting(t.Context(), c.Flight)
	wants(t.Context(), "with a patient one")
	stop()
	waiting, stop = g.Waiting(bound, c.Flight)
	wants(t.Context(), "with a patient one, bound") // bound ends the waiting, and does not lengthen it
	stop()
	c.Flight.Finish("", nil, nil)
}
