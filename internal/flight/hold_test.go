package flight_test

import (
	"errors"
	"io"
	"strconv"
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
	c, _, err := g.Join(t.Context(), id, flight.Callers{}, newFlight)
	if err == nil {
		c.Flight.Decide()
		c.Flight.Finish("", nil, nil)
	}
	return err != nil
}

// Without the hold, callers of a source that is down load one after another.
func TestAnErrorIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		fail(t, g, io.EOF)
		if _, _, err := g.Join(t.Context(), "id", flight.Callers{}, newFlight); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the held error", err)
		}
		if c, _, err := g.Join(t.Context(), "id", flight.Callers{}, nil); c.Flight != nil || err != nil {
			t.Errorf("a caller who opens no flight: got %v, %v", c.Flight, err)
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
			g := flight.NewGroup(errorHold)
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
	g := flight.NewGroup(-1)
	fail(t, g, io.EOF)
	if held(t, g, "id") {
		t.Error("an error is held")
	}
}

func TestASuccessIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		fail(t, g, nil)
		if held(t, g, "id") {
			t.Error("a nil error is held")
		}
	})
}

// A writer of this process may have mended what the load failed for.
func TestForgetEndsTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
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
		g := flight.NewGroup(errorHold)
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
		g := flight.NewGroup(errorHold)
		c := join(t, g, opened)
		c.Flight.Refuse(io.EOF)
		now(t, c, answer{"", true, io.EOF})
		if _, _, err := g.Join(t.Context(), "id", flight.Callers{Fallback: true}, newFlight); !errors.Is(err, io.EOF) {
			t.Errorf("with a fallback: got %v, want the refusal", err)
		}
		without, opened, err := g.Join(t.Context(), "id", flight.Callers{Fallback: false}, newFlight)
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
		g := flight.NewGroup(errorHold)
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
		g := flight.NewGroup(errorHold)
		c, _, err := g.Join(t.Context(), "id", flight.Callers{Fallback: true}, newFlight)
		if err != nil {
			t.Fatal(err)
		}
		c.Flight.Finish("", io.EOF, nil)
		if _, _, err := g.Join(t.Context(), "id", flight.Callers{Fallback: true}, newFlight); !errors.Is(err, io.EOF) {
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
		g := flight.NewGroup(errorHold)
		first, _, err := g.Join(t.Context(), "id", flight.Callers{Fallback: false}, newFlight)
		if err != nil {
			t.Fatal(err)
		}
		first.Flight.Decide()
		if _, _, err := g.Join(t.Context(), "id", flight.Callers{Fallback: true}, newFlight); err != nil { // too late for the first
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
		g := flight.NewGroup(errorHold)
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
		g := flight.NewGroup(errorHold)
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
		g := flight.NewGroup(errorHold)
		g.Alone("id").Finish("", io.EOF, nil)
		c, opened, err := g.Join(t.Context(), "id", flight.Callers{Fallback: true}, newFlight)
		if err != nil || !opened {
			t.Fatalf("got %v, %v, want a flight", opened, err)
		}
		c.Flight.Finish("", io.ErrUnexpectedEOF, nil) // this one is held, in place of the refresh's
		if _, _, err := g.Join(t.Context(), "id", flight.Callers{Fallback: true}, newFlight); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the held error is %v", err)
		}
	})
}

// failAfter runs a flight whose load fails and asks to be left alone.
func failAfter(t *testing.T, g *group, id string, after time.Duration) {
	t.Helper()
	c, _, err := g.Join(t.Context(), id, flight.Callers{}, newFlight)
	if err != nil {
		t.Fatal(err)
	}
	c.Flight.Failed(after)
	c.Flight.Finish("", io.EOF, nil)
}

// An error that says when to come again is held until then, and a little longer so that not all
// come again at once; never for less, nor for less than errorHold, nor for longer than a minute
// and a fifth. Catches a jitter downward, which asks a source too early.
func TestAnErrorIsHeldForAsLongAsTheSourceAsks(t *testing.T) {
	for _, test := range []struct{ asked, least, most time.Duration }{
		{asked: 0, least: errorHold * 79 / 100, most: errorHold * 121 / 100},
		{asked: -time.Second, least: errorHold * 79 / 100, most: errorHold * 121 / 100},
		{asked: time.Millisecond, least: errorHold * 79 / 100, most: errorHold * 121 / 100},
		{asked: 10 * time.Second, least: 10 * time.Second, most: 12*time.Second + time.Millisecond},
		{asked: time.Hour, least: time.Minute, most: 72*time.Second + time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			for range 20 {
				g, began := flight.NewGroup(errorHold), time.Now()
				failAfter(t, g, "id", test.asked)
				for held(t, g, "id") {
					time.Sleep(test.least / 100)
				}
				if took := time.Since(began); took < test.least || took > test.most+test.least/100 {
					t.Errorf("asked for %v, the error is held for %v", test.asked, took)
				}
			}
		})
	}
}

func TestForgetEndsAHoldThatTheSourceAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		for name, forget := range map[string]func(){"Forget": func() { g.Forget("id") }, "ForgetAll": g.ForgetAll} {
			failAfter(t, g, "id", time.Minute)
			forget()
			if held(t, g, "id") {
				t.Errorf("the error is still held after %s", name)
			}
		}
	})
}

// The load may have failed before the write that Forget is for, and succeed after it.
func TestAnErrorOfALoadThatRanDuringForgetIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		for name, forget := range map[string]func(){"Forget": func() { g.Forget("id") }, "ForgetAll": g.ForgetAll} {
			one := join(t, g, opened)
			forget()
			one.Flight.Failed(time.Minute)
			one.Flight.Finish("", io.EOF, nil)
			if held(t, g, "id") {
				t.Errorf("an error is held that came after %s, of a load that ran before", name)
			}
			fail(t, g, io.EOF)
			if !held(t, g, "id") {
				t.Errorf("after %s no error of a later load is held", name)
			}
			g.Forget("id")
		}
	})
}

// A refresh whose error asks for a rest keeps refreshes away until then, also if a caller's load
// fails meanwhile, whose error is held for a moment. Catches a hold that the shorter one ends.
func TestARefreshIsNotTriedAgainBeforeTheSourceAllowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, began := flight.NewGroup(errorHold), time.Now()
		refresh := g.Alone("id")
		refresh.Failed(10 * time.Second)
		refresh.Finish("", io.EOF, nil)
		time.Sleep(time.Second)
		fail(t, g, io.EOF)
		if !held(t, g, "id") {
			t.Error("the error of the load is not held")
		}
		time.Sleep(errorHold * 121 / 100)
		if held(t, g, "id") {
			t.Error("the error of the refresh is held for callers")
		}
		for {
			if f := g.Alone("id"); f != nil {
				f.Finish("", nil, nil)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took < 10*time.Second || took > 12100*time.Millisecond {
			t.Errorf("a refresh begins again after %v", took)
		}
	})
}

// A source may ask for a rest for each of a flood of keys. Catches memory that grows with it.
func TestFewErrorsAreHeldForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		const many = 20_000
		for n := range many {
			failAfter(t, g, strconv.Itoa(n), time.Minute)
		}
		time.Sleep(time.Second)
		left := 0
		for n := range many {
			if _, held := g.Peek(strconv.Itoa(n)); held != nil {
				left++
			}
		}
		if left != 10_000 {
			t.Errorf("%d errors are held, want 10000", left)
		}
	})
}

// holds runs flights that fail one after another, each as soon as the error of the one before
// is not held any more, and returns for how long each was.
func holds(t *testing.T, g *group, n int, failing func(f *run)) (took []time.Duration) {
	t.Helper()
	for range n {
		c := join(t, g, opened)
		failing(c.Flight)
		c.Flight.Finish("", io.EOF, nil)
		began := time.Now()
		for {
			if _, held := g.Peek("id"); held == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		took = append(took, time.Since(began))
	}
	return took
}

// A source that goes on to fail for an id is asked less and less: its errors are held for twice
// as long each time, up to four seconds. Catches one that is asked four times a second for ever.
func TestAnIDThatGoesOnFailingIsHeldForLongerAndLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		want := errorHold
		for i, took := range holds(t, g, 10, func(f *run) { f.Failed(0) }) {
			if took < want*79/100 || took > want*121/100+time.Millisecond {
				t.Errorf("failure %d is held for %v, want about %v", i+1, took, want)
			}
			want = min(2*want, 4*time.Second)
		}
	})
}

// What ends the row of failures. Catches an id that has succeeded and is held for long at the next
// mishap.
func TestARowOfFailuresEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, g *group){
		"with a success": func(t *testing.T, g *group) {
			c := join(t, g, opened)
			c.Flight.Decide()
			c.Flight.Finish("v", nil, nil)
		},
		"with the success of a refresh": func(_ *testing.T, g *group) { g.Alone("id").Finish("v", nil, nil) },
		"with Forget":                   func(_ *testing.T, g *group) { g.Forget("id") },
		"with ForgetAll":                func(_ *testing.T, g *group) { g.ForgetAll() },
		"with time":                     func(*testing.T, *group) { time.Sleep(4*time.Second + time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := flight.NewGroup(errorHold)
				holds(t, g, 6, func(f *run) { f.Failed(0) })
				end(t, g)
				if took := holds(t, g, 1, func(f *run) { f.Failed(0) })[0]; took > errorHold*121/100+time.Millisecond {
					t.Errorf("the next failure is held for %v", took)
				}
			})
		})
	}
}

// A refusal says nothing about the source, and another process that refreshes is no failure:
// neither makes a hold longer, nor a row shorter.
func TestOnlyFailuresOfLoadsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		for _, took := range holds(t, g, 10, func(*run) {}) {
			if took > errorHold*121/100+time.Millisecond {
				t.Errorf("an error that is none of a load is held for %v", took)
			}
		}
		holds(t, g, 3, func(f *run) { f.Failed(0) })
		g.Alone("id").Finish("", io.EOF, nil) // elsewhere
		time.Sleep(errorHold * 13 / 10)
		if took := holds(t, g, 1, func(f *run) { f.Failed(0) })[0]; took < 8*errorHold*79/100 || took > 8*errorHold*121/100+time.Millisecond {
			t.Errorf("the fourth failure is held for %v", took)
		}
	})
}

// A load may succeed while an error is held, which answers not all: that of a refresh, or one for
// callers who have a fallback. That ends the row of failures as well. Catches a next failure that is
// held as if nothing had succeeded in between.
func TestASuccessBesideAHeldErrorEndsTheRowOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		fails := func() (f *run) {
			for f = g.Alone("id"); f == nil; f = g.Alone("id") {
				time.Sleep(time.Millisecond)
			}
			f.Failed(0)
			f.Finish("", io.EOF, nil)
			return f
		}
		for range 6 {
			fails()
		}
		c := join(t, g, opened) // the error of a refresh is for no caller
		c.Flight.Decide()
		c.Flight.Finish("v", nil, nil)
		fails()
		began := time.Now()
		if fails(); time.Since(began) > errorHold*121/100+time.Millisecond {
			t.Errorf("the failure after the success is held for %v", time.Since(began))
		}
	})
}

// The same while an error is held for callers with a fallback, which answers nobody else. Catches
// that all the others load back to back until that one has ended, however long the source asks for.
func TestAnErrorForAllIsHeldBesideOneForCallersWithAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		answer := func(fallback bool) (c flight.Caller, err error) {
			c, _, err = g.Join(t.Context(), "id", flight.Callers{Fallback: fallback}, newFlight)
			return c, err
		}
		with, err := answer(true)
		if err != nil {
			t.Fatal(err)
		}
		with.Flight.Failed(10 * time.Second)
		with.Flight.Finish("", io.ErrUnexpectedEOF, nil)
		without, err := answer(false)
		if err != nil {
			t.Fatal("the error is for a caller without a fallback")
		}
		without.Flight.Failed(0)
		without.Flight.Finish("", io.EOF, nil)
		if _, err := answer(false); !errors.Is(err, io.EOF) {
			t.Errorf("without a fallback: got %v, want the held error", err)
		}
		time.Sleep(2 * errorHold * 121 / 100) // it was the second failure in a row
		if c, err := answer(false); err != nil {
			t.Errorf("without a fallback, after the hold: %v", err)
		} else {
			c.Flight.Decide()
			c.Flight.Finish("v", nil, nil)
		}
		time.Sleep(10*time.Second - 2*errorHold*121/100 - time.Millisecond)
		if _, err := answer(true); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("with a fallback: got %v, want the error that is held for longer", err)
		}
	})
}

// An error that is held for a moment does not hide how long the source asks to be left alone.
func TestWhatASourceAsksForIsHeldThoughAnErrorIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.NewGroup(errorHold)
		load, refresh := join(t, g, opened), g.Alone("id")
		load.Flight.Refuse(io.EOF)
		refresh.Failed(10 * time.Second)
		refresh.Finish("", io.EOF, nil)
		time.Sleep(9 * time.Second)
		if g.Alone("id") != nil {
			t.Error("a refresh begins before the source allows it")
		}
	})
}
