package flight_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/flight"
)

// loadSlowly opens a flight that has found the fallback "old" and now loads.
func loadSlowly(t *testing.T, g *group) (opener caller, f *run) {
	t.Helper()
	c := join(t, g, flight.Opened)
	c.Flight.Decide()
	c.Flight.SetFallback("old")
	return c, c.Flight
}

// own is a caller's own fallback.
func own() (string, bool) { return "own", true }

func TestAFallbackAnswersAtTheSoftTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		began := time.Now()
		opener, f := loadSlowly(t, g)
		impatient := wait(t.Context(), opener, patience{SoftTimeout: 200 * time.Millisecond})
		patient := wait(t.Context(), opener, patience{})
		time.Sleep(199 * time.Millisecond)
		impatient.waits(t)
		time.Sleep(time.Millisecond)
		impatient.want(t, answer{"old", true, nil})
		if took := impatient.at.Sub(began); took != 200*time.Millisecond {
			t.Errorf("the fallback came after %v, want 200ms", took)
		}
		time.Sleep(time.Hour)
		patient.waits(t)
		f.Finish("new", nil, nil)
		patient.want(t, answer{"new", true, nil})
	})
}

// Without a fallback the soft timeout ends nothing, and it comes again: the fallback
// may be there by then.
func TestTheSoftTimeoutComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		c := join(t, g, flight.Opened)
		w := wait(t.Context(), c, patience{SoftTimeout: 200 * time.Millisecond})
		time.Sleep(300 * time.Millisecond)
		w.waits(t)
		c.Flight.Decide()
		c.Flight.SetFallback("old")
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
		c := join(t, g, flight.Opened)
		c.Flight.Decide()
		late := wait(t.Context(), join(t, g, flight.Waits), patience{SoftTimeout: 200 * time.Millisecond})
		time.Sleep(150 * time.Millisecond)
		next := c.Flight.Finish("v1", nil, nil)
		next.Decide()
		next.SetFallback("old")
		late.waits(t)
		time.Sleep(50 * time.Millisecond)
		late.want(t, answer{"old", true, nil})
		next.Finish("new", nil, nil)
	})
}

func TestAFallbackAnswersWhenTheCallersContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		opener, f := loadSlowly(t, g)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		early, late := wait(ctx, opener, patience{}), wait(ctx, join(t, g, flight.LateForFallback), patience{})
		time.Sleep(time.Second)
		early.want(t, answer{"old", true, nil})
		late.want(t, answer{"", false, context.DeadlineExceeded})
		f.Finish("new", nil, nil)
	})
}

// A caller who joined after the fallback was read may know of an invalidation that
// came after it. So a failed load sends that caller to the next flight.
func TestAFallbackStandsInForTheErrorOfALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		opener, f := loadSlowly(t, g)
		early := wait(t.Context(), opener, patience{})
		late := wait(t.Context(), join(t, g, flight.LateForFallback), patience{})
		f.Decide() // the load may decide for late, the fallback may not
		next := f.Finish("", io.EOF, nil)
		early.want(t, answer{"old", true, nil})
		late.waits(t)
		if next == nil {
			t.Fatal("there is no flight for the caller who came late")
		}
		next.Decide()
		next.Finish("", io.ErrUnexpectedEOF, nil)
		late.want(t, answer{"", true, io.ErrUnexpectedEOF})
	})
}

// After Close a load fails because it was cut short. To answer with an old value
// would hide that from the caller.
func TestNoFallbackStandsInForAnErrorAfterClose(t *testing.T) {
	g := newGroup()
	opener, f := loadSlowly(t, g)
	g.Close()
	f.Finish("", flight.ErrClosed, nil)
	now(t, opener, answer{"", true, flight.ErrClosed})
}

func TestALateCallerGetsTheFallbackOnlyAfterItWasReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		_, f := loadSlowly(t, g)
		soft := patience{SoftTimeout: 100 * time.Millisecond}
		late := wait(t.Context(), join(t, g, flight.LateForFallback), soft)
		time.Sleep(time.Second)
		late.waits(t)
		go f.RereadFallback(func() (string, bool) { time.Sleep(10 * time.Millisecond); return "older", true })
		late.waits(t)
		time.Sleep(200 * time.Millisecond)
		late.want(t, answer{"older", false, nil})
		f.Finish("new", nil, nil)
	})
}

// One goroutine reads for all. A caller who joins while it reads makes it read once
// more, and gets only what that read found.
func TestRereadFallbackReadsUntilItIsGoodForEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		_, f := loadSlowly(t, g)
		soft := patience{SoftTimeout: time.Second}
		first := wait(t.Context(), join(t, g, flight.LateForFallback), soft)
		reads, over := 0, make(chan struct{})
		var second *pending
		go func() {
			defer close(over)
			f.RereadFallback(func() (string, bool) {
				reads++
				if reads == 1 { // somebody reads already, so this caller only waits
					second = wait(t.Context(), join(t, g, flight.Waits), soft)
					return "read before second joined", true
				}
				time.Sleep(1500 * time.Millisecond)
				return "read after second joined", true
			})
		}()
		time.Sleep(1200 * time.Millisecond)
		first.want(t, answer{"read before second joined", false, nil})
		second.waits(t)
		time.Sleep(time.Second)
		second.want(t, answer{"read after second joined", false, nil})
		<-over
		if reads != 2 {
			t.Errorf("the fallback was read %d times, want 2", reads)
		}
		join(t, g, flight.LateForFallback) // the next one to come late has to read again
		f.Finish("new", nil, nil)
	})
}

// When nothing is left in Redis there is no use in reading it again and again. Those
// for whom the old fallback is good keep it.
func TestRereadFallbackEndsWhenNothingIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		opener, f := loadSlowly(t, g)
		soft := patience{SoftTimeout: time.Second}
		late := wait(t.Context(), join(t, g, flight.LateForFallback), soft)
		reads := 0
		f.RereadFallback(func() (string, bool) { reads++; return "", false })
		if reads != 1 {
			t.Errorf("read %d times, want once", reads)
		}
		early := wait(t.Context(), opener, soft)
		time.Sleep(time.Minute)
		late.waits(t)
		early.want(t, answer{"old", true, nil})
		join(t, g, flight.LateForFallback)
		f.Decide()
		f.Finish("new", nil, nil)
		late.want(t, answer{"new", false, nil})
	})
}

func TestRereadFallbackEndsWithItsFlight(t *testing.T) {
	g := newGroup()
	_, f := loadSlowly(t, g)
	join(t, g, flight.LateForFallback)
	reads := 0
	f.RereadFallback(func() (string, bool) {
		reads++
		join(t, g, flight.Waits) // without an end there would be a read for this one
		f.Finish("new", nil, nil)
		return "old", true
	})
	f.RereadFallback(func() (string, bool) { reads++; return "old", true })
	if reads != 1 {
		t.Errorf("read %d times, want once", reads)
	}
}

// The runner may find another old value while it asks for the lease. It decided that
// before the second caller joined, so it must not take away what was read for that
// caller.
func TestALaterSetFallbackDoesNotTakeAFallbackAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		opener, f := loadSlowly(t, g)
		f.Decide()
		late := join(t, g, flight.LateForFallback)
		f.RereadFallback(func() (string, bool) { return "read for late", true })
		f.SetFallback("read before late joined")
		soft := patience{SoftTimeout: time.Second}
		one, two := wait(t.Context(), opener, soft), wait(t.Context(), late, soft)
		time.Sleep(time.Second)
		one.want(t, answer{"read for late", true, nil})
		two.want(t, answer{"read for late", false, nil})
		f.Finish("new", nil, nil)
	})
}

func TestACallersOwnFallbackAnswersWhereTheFlightHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		withOwn := patience{SoftTimeout: time.Second, Own: own}
		opener, f := loadSlowly(t, g)
		early := wait(t.Context(), opener, withOwn)
		late := wait(t.Context(), join(t, g, flight.LateForFallback), withOwn)
		none := wait(t.Context(), join(t, g, flight.Waits), patience{
			SoftTimeout: time.Second, Own: func() (string, bool) { return "", false },
		})
		time.Sleep(time.Second)
		early.want(t, answer{"old", true, nil})
		late.want(t, answer{"own", false, nil})
		none.waits(t)
		f.Decide()
		f.Finish("new", nil, nil)
		none.want(t, answer{"new", false, nil})
	})
}

// The last caller leaves, and another joins before the load that waits for its turn has
// heard of it. The refusal goes to those who have left. When somebody asked for the
// deadline meanwhile, it went to the new one too, who was told that nobody waits.
func TestARefusalIsNotForWhoJoinsAfterTheCrowdHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		g.Refused = func(err error) bool { return errors.Is(err, flight.ErrDeserted) }
		opener := join(t, g, flight.Opened)
		f := opener.Flight
		crowd := g.Crowd(0, f)
		ctx, leave := context.WithCancel(t.Context())
		first := wait(ctx, opener, patience{})
		synctest.Wait()
		leave()
		first.want(t, answer{"", true, context.Canceled})
		second := wait(t.Context(), join(t, g, flight.Waits), patience{})
		crowd.Deadline()
		next := f.Finish("", crowd.Err(), nil)
		second.waits(t)
		if next == nil {
			t.Fatal("there is no flight for the second caller")
		}
		next.Decide()
		next.Finish("v1", nil, nil)
		second.want(t, answer{"v1", true, nil})
	})
}
