package flight_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/flight"
)

const errorHold = 100 * time.Millisecond

// fail runs a flight whose load fails.
func fail(t *testing.T, g *group, err error) {
	t.Helper()
	c := join(t, g, flight.Opened)
	c.Flight.Decide()
	c.Flight.Finish("", err, nil)
}

// held reports whether Join returns a held error.
func held(t *testing.T, g *group, id string) bool {
	t.Helper()
	c, _, err := g.Join(t.Context(), id)
	if err == nil {
		c.Flight.Decide()
		c.Flight.Finish("", nil, nil)
	}
	return err != nil
}

// Without the hold, callers of a source that is down load one after another.
func TestAnErrorIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		fail(t, g, io.EOF)
		if _, _, err := g.Join(t.Context(), "id"); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the held error", err)
		}
		if held(t, g, "other") {
			t.Error("the error of id is held for another")
		}
		time.Sleep(errorHold * 121 / 100)
		if held(t, g, "id") {
			t.Error("the error is held for too long")
		}
	})
}

// The holds of a fleet that failed together must not end together.
func TestTheErrorHoldIsJittered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shortest, longest time.Duration = time.Hour, 0
		for range 100 {
			g := flight.NewGroup[string](errorHold)
			fail(t, g, io.EOF)
			began := time.Now()
			for held(t, g, "id") {
				time.Sleep(time.Millisecond)
			}
			took := time.Since(began)
			shortest, longest = min(shortest, took), max(longest, took)
		}
		if shortest < errorHold*79/100 || longest > errorHold*121/100 || longest-shortest < errorHold/5 {
			t.Errorf("held for %v to %v, want it spread over 80ms to 120ms", shortest, longest)
		}
	})
}

func TestANegativeErrorHoldHoldsNothing(t *testing.T) {
	g := flight.NewGroup[string](-1)
	fail(t, g, io.EOF)
	if held(t, g, "id") {
		t.Error("an error is held")
	}
}

func TestASuccessIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		fail(t, g, nil)
		if held(t, g, "id") {
			t.Error("a nil error is held")
		}
	})
}

// A writer of this process may have mended what the load failed for.
func TestForgetEndsTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		fail(t, g, io.EOF)
		g.Forget("id")
		if held(t, g, "id") {
			t.Error("the error is still held")
		}
		// The timer of the forgotten error must not end the hold of a later one.
		time.Sleep(errorHold / 2)
		fail(t, g, io.EOF)
		time.Sleep(errorHold * 3 / 4)
		if !held(t, g, "id") {
			t.Error("the later error is not held any more")
		}
	})
}

// If each error prolonged the hold, callers with a fallback could keep an id from
// being loaded for as long as they come.
func TestAnErrorDoesNotProlongTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		began := time.Now()
		for time.Since(began) < errorHold/2 {
			_, f := loadSlowly(t, g)
			f.Finish("", io.EOF, nil)
			time.Sleep(errorHold / 10)
		}
		time.Sleep(errorHold*121/100 - time.Since(began))
		if _, f := loadSlowly(t, g); f.HeldError() != nil {
			t.Error("the error is held for too long")
		}
	})
}

// While the error of a load with a fallback is held, callers look into Redis before
// they take it: the old value may answer, or an invalidation may have removed it. If
// there is a value, the flight takes the error instead of a load; if not, it loads.
func TestTheErrorOfALoadWithAFallbackIsForFlightsWithAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		opener, f := loadSlowly(t, g)
		if err := f.HeldError(); err != nil {
			t.Errorf("before any error: got %v, want nil", err)
		}
		f.Finish("", io.EOF, nil)
		now(t, opener, answer{"old", true, nil})

		second, f := loadSlowly(t, g)
		if err := f.HeldError(); !errors.Is(err, io.EOF) {
			t.Errorf("with the fallback: got %v, want the held error", err)
		}
		f.Finish("", f.HeldError(), nil)
		now(t, second, answer{"old", true, nil})

		third := join(t, g, flight.Opened)
		third.Flight.Decide() // and finds nothing in Redis
		if err := third.Flight.HeldError(); err != nil {
			t.Errorf("without a fallback: got %v, want nil", err)
		}
		third.Flight.Finish("new", nil, nil)
		now(t, third, answer{"new", true, nil})
	})
}

// A refresh that failed is not tried again while its error is held. Callers do not get
// its error: the value that was to be refreshed still answers.
func TestTheErrorOfARefreshKeepsRefreshesAwayAndCallersNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		g.Alone("id").Finish("", io.EOF, nil)
		if g.Alone("id") != nil {
			t.Error("a refresh begins while the error of the last is held")
		}
		c := join(t, g, flight.Opened)
		c.Flight.Decide()
		c.Flight.Finish("v", nil, nil)
		time.Sleep(errorHold * 121 / 100)
		if g.Alone("id") == nil {
			t.Error("no refresh begins after the hold")
		}
	})
}

func TestTheErrorOfALoadKeepsRefreshesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		fail(t, g, io.EOF)
		if g.Alone("id") != nil {
			t.Error("a refresh begins while the error of a load is held")
		}
	})
}

// After Close loads are cut short. That says nothing about the source, and a timer for
// it would outlive the group.
func TestAfterCloseNoErrorIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		refresh := g.Alone("id")
		_, f := loadSlowly(t, g)
		g.Close()
		refresh.Finish("", io.EOF, nil)
		if err := f.HeldError(); err != nil {
			t.Errorf("got %v, want nil", err)
		}
		f.Finish("new", nil, nil)
	})
}

// A refresh ends with an error also where another process refreshes. If a load took that
// for its own error, an old value that answers only for errors would answer although
// nothing failed.
func TestTheErrorOfARefreshIsNoReasonForAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		g.Alone("id").Finish("", io.EOF, nil)
		c := join(t, g, flight.Opened)
		c.Flight.Decide()
		c.Flight.SetFallback("old")
		if err := c.Flight.HeldError(); err != nil {
			t.Errorf("the load is spared by %v", err)
		}
		c.Flight.Finish("", io.ErrUnexpectedEOF, nil) // this one is held, in place of the refresh's
		c = join(t, g, flight.Opened)
		c.Flight.Decide()
		c.Flight.SetFallback("old")
		if err := c.Flight.HeldError(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the held error is %v", err)
		}
		c.Flight.Finish("", nil, nil)
	})
}
