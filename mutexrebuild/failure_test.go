package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/mutexrebuild"
)

// A failure ends the flight for all who are on it, and gives the lease back:
// without that the next load would wait until the lease ends. Recovering in the
// caller's goroutine instead of the load's would end the process.
func TestAFailedLoadIsContainedAndReleasesTheLeaseAtOnce(t *testing.T) {
	for name, failure := range map[string]struct {
		fail  func() (string, error)
		right func(err error) bool
	}{
		"error": {func() (string, error) { return "", errSource }, func(err error) bool { return err == errSource }},
		"panic": {func() (string, error) { panic("ouch") }, isPanic("ouch")},
		"panic with an error": {func() (string, error) { panic(errSource) }, func(err error) bool {
			return isPanic(errSource)(err) && errors.Is(err, errSource)
		}},
		"nil map": {func() (string, error) {
			var m map[int]int
			m[1]++ //nolint:staticcheck // it is to panic
			return "", nil
		}, func(err error) bool {
			var p *mutexrebuild.PanicError
			var r runtime.Error
			return errors.As(err, &p) && errors.As(err, &r)
		}},
		"goexit": {func() (string, error) { runtime.Goexit(); return "", nil }, func(err error) bool {
			var p *mutexrebuild.PanicError
			return errors.As(err, &p) && strings.Contains(err.Error(), "runtime.Goexit")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g, other := r.group(opts{}), r.group(opts{})
				at := newGate()
				loads := 0
				failing := func(context.Context) (string, error) {
					loads++
					at.reached <- struct{}{}
					<-at.open
					return failure.fail()
				}
				answers := make(chan error, 20)
				for range cap(answers) {
					go func() {
						_, err := rebuild(r.ctx, g, "x", failing)
						answers <- err
					}()
				}
				r.joined(g, "x", cap(answers))
				<-at.reached
				next := r.do(other, "x", gives("v"), nil)
				r.waits(other)
				began := time.Now()
				close(at.open)
				for range cap(answers) {
					if err := <-answers; !failure.right(err) {
						r.Fatalf("got %v", err)
					}
				}
				next.mustBe(r, nil)
				r.took(began, 0, "the next load")
				if loads != 1 || r.stored("x") != "v" {
					r.Errorf("%d loads failed, Redis has %q", loads, r.stored("x"))
				}
			})
		})
	}
}

func isPanic(value any) func(error) bool {
	return func(err error) bool {
		var p *mutexrebuild.PanicError
		return errors.As(err, &p) && p.Value == value && strings.Contains(err.Error(), "failure_test.go")
	}
}

// Without the hold, those who wait would retry one after another.
func TestAnErrorIsHeldForItsTimeAndThenForgotten(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{ErrorHold: time.Second})
		if _, err := rebuild(r.ctx, g, "x", fails(errSource)); !errors.Is(err, errSource) {
			r.Fatal(err)
		}
		time.Sleep(799 * time.Millisecond) // a fifth less is the shortest
		for range 100 {
			if got, err := rebuild(r.ctx, g, "x", gives("v")); !errors.Is(err, errSource) {
				r.Fatalf("held: %q, %v", got, err)
			}
		}
		r.want(g, "y", "v", gives("v")) // another key is another matter
		time.Sleep(402 * time.Millisecond)
		r.want(g, "x", "v", gives("v"))
	})
}

func TestTheDefaultErrorHoldIsAQuarterOfASecond(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{})
		_, _ = rebuild(r.ctx, g, "x", fails(errSource))
		time.Sleep(199 * time.Millisecond)
		if _, err := rebuild(r.ctx, g, "x", gives("v")); !errors.Is(err, errSource) {
			r.Errorf("held: %v", err)
		}
		time.Sleep(102 * time.Millisecond)
		r.want(g, "x", "v", gives("v"))
	})
}

func TestWithANegativeErrorHoldEveryCallLoads(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{ErrorHold: -1})
		loads := 0
		for range 3 {
			_, err := rebuild(r.ctx, g, "x", func(context.Context) (string, error) { loads++; return "", errSource })
			if !errors.Is(err, errSource) {
				r.Error(err)
			}
		}
		if loads != 3 {
			r.Errorf("%d loads, want 3", loads)
		}
	})
}

// A write is news: the next reader must not get an error from before it.
func TestAHeldErrorEndsWithAWrite(t *testing.T) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g := r.group(opts{ErrorHold: time.Hour})
				_, _ = rebuild(r.ctx, g, "x", fails(errSource))
				_, _ = rebuild(r.ctx, g, "y", fails(errSource))
				r.must(write(r.ctx, g))
				r.want(g, "x", "v", gives("v"))
				if _, err := rebuild(r.ctx, g, "y", gives("v")); !errors.Is(err, errSource) {
					r.Errorf("the error of another key: %v", err)
				}
			})
		})
	}
}

// A load that fails while the write is on its way to Redis is from before it too.
// Dropping the held error first and writing then fails here.
func TestAnErrorFromDuringAWriteIsNotHeldAfterIt(t *testing.T) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				g := r.group(opts{ErrorHold: time.Hour})
				failed := false
				r.mini.Before(func(command string, args []string) {
					if command == "EVALSHA" && !failed {
						failed = true
						_, _ = rebuild(r.ctx, g, "x", fails(errSource))
					}
				})
				r.must(write(r.ctx, g))
				if !failed {
					r.Error("nothing failed meanwhile")
				}
				r.want(g, "x", "v", gives("v"))
			})
		})
	}
}

// Without the timeout, a load that ignores its context would keep its key until it
// ends.
func TestALoadThatIgnoresItsContextIsLeftBehind(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{LoadTimeout: 500 * time.Millisecond}), r.group(opts{})
		db, at := newSource(), newGate()
		db.write("x", "v")
		began := time.Now()
		stuck := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		next := r.do(other, "x", gives("v"), nil)
		stuck.mustBe(r, mutexrebuild.ErrLoadTimeout)
		next.mustBe(r, nil) // the lease was given back
		r.took(began, 500*time.Millisecond, "the load timeout")
		close(at.open)
	})
}

// A load returns the error of its context, which looks like the caller's own deadline.
func TestALoadThatEndsWithItsContextIsALoadTimeout(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{LoadTimeout: 100 * time.Millisecond, ErrorHold: -1})
		_, err := rebuild(r.ctx, g, "x", func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", fmt.Errorf("query: %w", ctx.Err())
		})
		if !errors.Is(err, mutexrebuild.ErrLoadTimeout) || errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("got %v", err)
		}
		// An error of its own before that is the loader's.
		_, err = rebuild(r.ctx, g, "x", func(ctx context.Context) (string, error) {
			return "", context.DeadlineExceeded
		})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, mutexrebuild.ErrLoadTimeout) {
			r.Errorf("got %v", err)
		}
	})
}

func TestCloseEndsFlightsAndGivesTheirLeasesBack(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		entered := make(chan struct{})
		waiting := r.do(g, "x", func(ctx context.Context) (string, error) {
			close(entered)
			<-ctx.Done()
			return "", ctx.Err()
		}, nil)
		<-entered
		began := time.Now()
		g.Close()
		waiting.mustBe(r, mutexrebuild.ErrClosed)
		if _, err := rebuild(r.ctx, g, "x", gives("v")); !errors.Is(err, mutexrebuild.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
		r.want(other, "x", "v", gives("v"))
		r.took(began, 0, "Close and the next load")
		g.Close() // again
	})
}

// Callers who wait for another process's lease get ErrClosed too.
func TestCloseEndsAFlightThatWaits(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		db, at := newSource(), newGate()
		db.write("x", "v")
		built := r.do(other, "x", db.gated("x", at), nil)
		<-at.reached
		waiting := r.do(g, "x", func(context.Context) (string, error) { r.Error("it loads"); return "", nil }, nil)
		r.waits(g)
		began := time.Now()
		g.Close()
		waiting.mustBe(r, mutexrebuild.ErrClosed)
		r.took(began, 0, "Close")
		close(at.open)
		built.mustBe(r, nil)
	})
}

// A program that closes its database after the group must not find a load still at work
// there.
func TestCloseWaitsForTheLoadsThatItEnds(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		entered, ended := make(chan struct{}), atomic.Bool{}
		waiting := r.do(g, "x", func(ctx context.Context) (string, error) {
			close(entered)
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			ended.Store(true)
			return "", ctx.Err()
		}, nil)
		<-entered
		g.Close()
		if !ended.Load() {
			r.Error("the load goes on after Close")
		}
		waiting.mustBe(r, mutexrebuild.ErrClosed)
	})
}

func TestCloseIsBoundedWhateverALoadDoes(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{LoadTimeout: 300 * time.Millisecond})
		db, at := newSource(), newGate()
		db.write("x", "v")
		stuck := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		began := time.Now()
		g.Close()
		r.took(began, 300*time.Millisecond, "Close")
		stuck.mustBe(r, mutexrebuild.ErrClosed)
		close(at.open)
	})
}

// A load that asks for the key it loads would wait for itself until its timeout.
func TestALoadThatAsksForItsOwnKeyIsTold(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		began := time.Now()
		_, err := rebuild(r.ctx, g, "x", func(ctx context.Context) (string, error) {
			return rebuild(ctx, g, "x", gives("?"))
		})
		if !errors.Is(err, mutexrebuild.ErrReentrant) {
			r.Errorf("directly: %v", err)
		}
		_, err = rebuild(r.ctx, g, "a", func(ctx context.Context) (string, error) {
			return rebuild(ctx, g, "b", func(ctx context.Context) (string, error) {
				return rebuild(ctx, g, "a", gives("?"))
			})
		})
		if !errors.Is(err, mutexrebuild.ErrReentrant) {
			r.Errorf("over another key: %v", err)
		}
		r.took(began, 0, "to be told")
		r.want(g, "c", "dd", func(ctx context.Context) (string, error) {
			got, err := rebuild(ctx, g, "d", gives("d"))
			return got + "d", err
		})
		r.finds(g, "c", "dd") // a load that asks for another key is like any other
	})
}
