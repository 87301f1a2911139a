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
	c := join(t, g, opened)
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

// If each error prolonged the hold, callers could keep an id from being loaded for as long
// as they come.
func TestAnErrorDoesNotProlongTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		began := time.Now()
		one, two := join(t, g, opened), join(t, g, waits)
		one.Flight.Decide()
		one.Flight.Finish("", io.EOF, nil)
		now(t, two, answer{"", false, io.EOF})
		for time.Since(began) < errorHold/2 {
			refresh, err := g.Apart(t.Context(), "id") // somebody else's load, which fails as well
			if err != nil || !held(t, g, "id") {
				t.Errorf("the error is not held, or %v", err)
			}
			refresh.Finish("", io.EOF, nil)
			time.Sleep(errorHold / 10)
		}
		time.Sleep(errorHold*121/100 - time.Since(began))
		if held(t, g, "id") {
			t.Error("the error is held for too long")
		}
	})
}

// A refused load says nothing about callers with more time, who try again. Those who have
// a fallback take the refusal instead of trying: without that each of them would stand in
// the queue of a breaker that is overloaded.
func TestARefusalIsHeldForThoseWhoHaveAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		c := join(t, g, opened)
		c.Flight.Refuse(io.EOF)
		now(t, c, answer{"", true, io.EOF})
		fresh := func() *run { return &run{} }
		if _, _, err := g.JoinIn(t.Context(), "id", true, fresh); !errors.Is(err, io.EOF) {
			t.Errorf("with a fallback: got %v, want the refusal", err)
		}
		without, opened, err := g.JoinIn(t.Context(), "id", false, fresh)
		if err != nil || !opened {
			t.Fatalf("without one: got %v, %v, want a flight", opened, err)
		}
		without.Flight.Decide()
		without.Flight.Finish("v1", nil, nil)
		now(t, without, answer{"v1", true, nil})
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
		c := join(t, g, opened)
		c.Flight.Decide()
		c.Flight.Finish("v", nil, nil)
		time.Sleep(errorHold * 121 / 100)
		if g.Alone("id") == nil {
			t.Error("no refresh begins after the hold")
		}
	})
}

// While the error of a load with a fallback is held, an invalidation may have removed that.
// A caller who finds none any more loads, since the write may have mended the row.
func TestTheErrorOfALoadWithAFallbackIsForCallersWithAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		fresh := func() *run { return &run{} }
		c, _, err := g.JoinIn(t.Context(), "id", true, fresh)
		if err != nil {
			t.Fatal(err)
		}
		c.Flight.Finish("", io.EOF, nil)
		if _, _, err := g.JoinIn(t.Context(), "id", true, fresh); !errors.Is(err, io.EOF) {
			t.Errorf("with a fallback: got %v, want the held error", err)
		}
		if held(t, g, "id") {
			t.Error("the error is for a caller without a fallback")
		}
	})
}

// Catches a fallback that is forgotten when a caller's answer comes from the next flight: the
// error of that answered callers without a fallback.
func TestACallerWithAFallbackTakesItToTheNextFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		fresh := func() *run { return &run{} }
		first, _, err := g.JoinIn(t.Context(), "id", false, fresh)
		if err != nil {
			t.Fatal(err)
		}
		first.Flight.Decide()
		if _, _, err := g.JoinIn(t.Context(), "id", true, fresh); err != nil { // too late for the first
			t.Fatal(err)
		}
		next := first.Flight.Finish("v", nil, nil)
		if next == nil {
			t.Fatal("there is no next flight")
		}
		next.Finish("", io.EOF, nil)
		if held(t, g, "id") {
			t.Error("the error is for a caller without a fallback")
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
		refresh, c := g.Alone("id"), join(t, g, opened)
		g.Close()
		refresh.Finish("", io.EOF, nil)
		c.Flight.Finish("", io.EOF, nil)
		if _, held := g.Peek("id"); held != nil {
			t.Errorf("%v is held", held)
		}
	})
}

// A refresh ends with an error also where another process refreshes. If a load took that
// for its own error, an old value that is served only for errors would be served although
// nothing failed.
func TestTheErrorOfARefreshIsForNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup[string](errorHold)
		g.Alone("id").Finish("", io.EOF, nil)
		c, opened, err := g.JoinIn(t.Context(), "id", true, func() *run { return &run{} })
		if err != nil || !opened {
			t.Fatalf("got %v, %v, want a flight", opened, err)
		}
		c.Flight.Finish("", io.ErrUnexpectedEOF, nil) // this one is held, in place of the refresh's
		if _, _, err := g.JoinIn(t.Context(), "id", true, func() *run { return &run{} }); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the held error is %v", err)
		}
	})
}
