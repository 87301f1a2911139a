package breaker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
)

var errNothingToDo = errors.New("nothing to do")

// Begin runs in the call's place. Catches one that is asked while the call still waits.
func TestBeginIsCalledWhenTheCallHasItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1})
		release := make(chan struct{})
		occupy(b, 1, release)
		var steps []string
		go func() {
			err := b.Run(t.Context(), breaker.Call{Begin: func() error {
				if b.HasPlace() {
					t.Error("Begin is called without a place")
				}
				steps = append(steps, "begin")
				return nil
			}}, func(context.Context) error { steps = append(steps, "run"); return nil })
			if err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if len(steps) > 0 {
			t.Errorf("%v before there was a place", steps)
		}
		close(release)
		synctest.Wait()
		if len(steps) != 2 || steps[0] != "begin" || steps[1] != "run" {
			t.Errorf("got %v, want begin and run", steps)
		}
	})
}

// Catches a place that is kept, a function that runs all the same, a verdict on a source
// that was not asked, and a pace that learns from it.
func TestACallWhoseBeginHasAnErrorGivesItsPlaceBack(t *testing.T) {
	for name, begin := range map[string]func() error{
		"an error": func() error { time.Sleep(time.Minute); return errNothingToDo },
		"a panic":  func() error { time.Sleep(time.Minute); panic(errNothingToDo) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, breaker.Options{MaxConcurrent: 1, MinRequests: 1})
				for range 3 {
					err := func() (err error) {
						defer func() {
							if v := recover(); v != nil {
								err = v.(error)
							}
						}()
						return b.Run(t.Context(), breaker.Call{Begin: begin}, func(context.Context) error {
							t.Error("the function runs")
							return nil
						})
					}()
					if err != errNothingToDo || !b.HasPlace() {
						t.Errorf("got %v, and a place is free: %v", err, b.HasPlace())
					}
				}
				if s := b.Stats(); s != (breaker.Stats{}) {
					t.Errorf("got %+v, want nothing", s)
				}
			})
		})
	}
}

// Half-open, one call may try. Catches a call that takes this right and tries nothing.
func TestACallWhoseBeginHasAnErrorDoesNotTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{})
		trip(t, b)
		time.Sleep(6 * time.Second)
		_ = b.Run(t.Context(), breaker.Call{Begin: func() error { return errNothingToDo }}, succeed)
		if err := b.Do(t.Context(), succeed); err != nil || b.State() != breaker.Closed {
			t.Errorf("got %v and %v, want a success that closes it", err, b.State())
		}
	})
}

// Catches a call that goes on to wait, and one that is withdrawn and keeps its place in
// the line: nobody would take the next place.
func TestAWithdrawnCallLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, breaker.Options{MaxConcurrent: 1})
		release, withdraw := make(chan struct{}), make(chan struct{}, 1)
		occupy(b, 1, release)
		withdrawn := make(chan error, 1)
		go func() {
			withdrawn <- b.Run(t.Context(), breaker.Call{Withdraw: withdraw}, func(context.Context) error {
				t.Error("the function runs")
				return nil
			})
		}()
		synctest.Wait()
		occupy(b, 1, release) // behind it
		withdraw <- struct{}{}
		if err := <-withdrawn; err != breaker.ErrWithdrawn {
			t.Errorf("got %v, want ErrWithdrawn", err)
		}
		if s := b.Stats(); s.Waiting != 1 || s.RefusedLimited+s.Left != 0 {
			t.Errorf("got %+v, want one that waits and nobody refused", s)
		}
		close(release)
		synctest.Wait()
		conserved(t, b, 2)
	})
}
