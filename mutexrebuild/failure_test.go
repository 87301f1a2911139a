package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
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
			return errors.Is(err, mutexrebuild.ErrGoexit)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g, other := r.group(opts{}), r.group(opts{})
				at := newGate()
				failing := func(context.Context, bool) (string, error) {
					at.reached <- struct{}{}
					<-at.open
					return failure.fail()
				}
				answers := make(chan error, 20)
				for range cap(answers) {
					go func() {
						_, err := g.Do(r.ctx, "x", failing)
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
				r.checkStats(g, "of the group that failed", func(s stats) bool { return s.Loads == 1 && s.LoadErrors == 1 })
				r.checkStats(other, "of the next group", func(s stats) bool { return s.Loads == 1 && s.Degraded == 0 })
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

// The codec is the user's too. What it does on the flight's way must neither end
// the process nor keep the lease.
func TestAPanicOfTheCodecIsContainedAndReleasesTheLease(t *testing.T) {
	everywhere(t, func(r *rig) {
		broken := true
		codec := framed
		codec.Encode = func(id, value string) ([]byte, time.Duration, error) {
			if broken {
				panic("encode")
			}
			return framed.Encode(id, value)
		}
		codec.Decode = func(id string, data []byte) (string, mutexrebuild.Condition) {
			if broken {
				panic("decode")
			}
			return framed.Decode(id, data)
		}
		g, err := mutexrebuild.New(r.client(), "p", codec, events{}, opts{ErrorHold: -1, RedisTimeout: 5 * time.Second})
		if err != nil {
			r.Fatal(err)
		}
		r.Cleanup(g.Close)

		var p *mutexrebuild.PanicError
		if _, err := g.Do(r.ctx, "x", gives("v")); !errors.As(err, &p) || p.Value != "encode" {
			r.Errorf("Encode: %v", err)
		}
		broken = false
		began := time.Now()
		r.want(g, "x", "v", gives("v"))
		r.took(began, 0, "the next load")
		broken = true
		if _, err := g.Do(r.ctx, "x", gives("v")); !errors.As(err, &p) || p.Value != "decode" {
			r.Errorf("Decode: %v", err)
		}
		broken = false
		r.want(g, "x", "v", fails(errSource))
	})
}

// Without the hold, those who wait would retry one after another.
func TestAnErrorIsHeldForItsTimeAndThenForgotten(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{ErrorHold: time.Second})
		if _, err := g.Do(r.ctx, "x", fails(errSource)); !errors.Is(err, errSource) {
			r.Fatal(err)
		}
		time.Sleep(799 * time.Millisecond) // a fifth less is the shortest
		for range 100 {
			if got, err := g.Do(r.ctx, "x", gives("v")); !errors.Is(err, errSource) || got.First {
				r.Fatalf("held: %+v, %v", got, err)
			}
		}
		r.checkStats(g, "held", func(s stats) bool { return s.Loads == 1 && s.Held == 100 })
		r.want(g, "y", "v", gives("v")) // another key is another matter
		time.Sleep(402 * time.Millisecond)
		r.want(g, "x", "v", gives("v"))
	})
}

func TestTheDefaultErrorHoldIsAQuarterOfASecond(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{})
		_, _ = g.Do(r.ctx, "x", fails(errSource))
		time.Sleep(199 * time.Millisecond)
		if _, err := g.Do(r.ctx, "x", gives("v")); !errors.Is(err, errSource) {
			r.Errorf("held: %v", err)
		}
		time.Sleep(102 * time.Millisecond)
		r.want(g, "x", "v", gives("v"))
	})
}

func TestWithANegativeErrorHoldEveryCallLoads(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{ErrorHold: -1})
		for range 3 {
			_, err := g.Do(r.ctx, "x", fails(errSource))
			if !errors.Is(err, errSource) {
				r.Error(err)
			}
		}
		r.checkStats(g, "not held", func(s stats) bool { return s.Loads == 3 && s.Held == 0 })
	})
}

// A write is news: the next reader must not get an error from before it.
func TestAHeldErrorEndsWithAWrite(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, g *group) error{
		"Invalidate": func(ctx context.Context, g *group) error { return g.Invalidate(ctx, "x") },
		"Set":        func(ctx context.Context, g *group) error { _, err := g.Set(ctx, "x", "v"); return err },
		"Hold": func(ctx context.Context, g *group) error {
			end, err := g.Hold(ctx, "x")
			return errors.Join(err, end(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g := r.group(opts{ErrorHold: time.Hour})
				_, _ = g.Do(r.ctx, "x", fails(errSource))
				_, _ = g.Do(r.ctx, "y", fails(errSource))
				r.must(write(r.ctx, g))
				r.want(g, "x", "v", gives("v"))
				if _, err := g.Do(r.ctx, "y", gives("v")); !errors.Is(err, errSource) {
					r.Errorf("the error of another key: %v", err)
				}
			})
		})
	}
}

// A load that fails while the write is on its way to Redis is from before it too.
// Dropping the held error first and writing then fails here.
func TestAnErrorFromDuringAWriteIsNotHeldAfterIt(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, g *group) error{
		"Invalidate": func(ctx context.Context, g *group) error { return g.Invalidate(ctx, "x") },
		"Set":        func(ctx context.Context, g *group) error { _, err := g.Set(ctx, "x", "v"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				g := r.group(opts{ErrorHold: time.Hour})
				failed := false
				r.mini.Before(func(command string, args []string) {
					if command == "EVALSHA" && !failed {
						failed = true
						_, _ = g.Do(r.ctx, "x", fails(errSource))
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

// A loader without regard for its context would keep its key for ever.
func TestALoadThatIgnoresItsContextIsLeftBehind(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{LoadTimeout: 500 * time.Millisecond}), r.group(opts{})
		db, at := newSource(), newGate()
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

// A loader gives back its context's error, which is easily taken for the caller's
// own deadline.
func TestALoadThatEndsWithItsContextIsALoadTimeout(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{LoadTimeout: 100 * time.Millisecond, ErrorHold: -1})
		_, err := g.Do(r.ctx, "x", func(ctx context.Context, _ bool) (string, error) {
			<-ctx.Done()
			return "", fmt.Errorf("query: %w", ctx.Err())
		})
		if !errors.Is(err, mutexrebuild.ErrLoadTimeout) || errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("got %v", err)
		}
		// An error of its own before that is the loader's.
		_, err = g.Do(r.ctx, "x", func(ctx context.Context, _ bool) (string, error) {
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
		waiting := r.do(g, "x", func(ctx context.Context, _ bool) (string, error) {
			close(entered)
			<-ctx.Done()
			return "", ctx.Err()
		}, nil)
		<-entered
		began := time.Now()
		g.Close()
		waiting.mustBe(r, mutexrebuild.ErrClosed)
		if _, err := g.Do(r.ctx, "x", gives("v")); !errors.Is(err, mutexrebuild.ErrClosed) || !g.Closed() {
			r.Errorf("after Close: %v, closed %v", err, g.Closed())
		}
		r.want(other, "x", "v", gives("v"))
		r.took(began, 0, "Close and the next load")
		g.Close() // again
	})
}

// Those who wait for another process's lease are let go too.
func TestCloseEndsAFlightThatWaits(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		db, at := newSource(), newGate()
		built := r.do(other, "x", db.gated("x", at), nil)
		<-at.reached
		waiting := r.do(g, "x", gives("v"), nil)
		r.waits(g)
		began := time.Now()
		g.Close()
		waiting.mustBe(r, mutexrebuild.ErrClosed)
		r.took(began, 0, "Close")
		close(at.open)
		built.mustBe(r, nil)
	})
}

func TestCloseIsBoundedWhateverALoadDoes(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{LoadTimeout: 300 * time.Millisecond})
		db, at := newSource(), newGate()
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
		g, other := r.group(opts{}), r.group(opts{})
		began := time.Now()
		_, err := g.Do(r.ctx, "x", func(ctx context.Context, _ bool) (string, error) {
			got, err := g.Do(ctx, "x", gives("?"))
			return got.Value, err
		})
		if !errors.Is(err, mutexrebuild.ErrReentrant) {
			r.Errorf("directly: %v", err)
		}
		_, err = g.Do(r.ctx, "a", func(ctx context.Context, _ bool) (string, error) {
			got, err := g.Do(ctx, "b", func(ctx context.Context, _ bool) (string, error) {
				got, err := g.Do(ctx, "a", gives("?"))
				return got.Value, err
			})
			return got.Value, err
		})
		if !errors.Is(err, mutexrebuild.ErrReentrant) {
			r.Errorf("over another key: %v", err)
		}
		r.took(began, 0, "to be told")
		got := r.want(g, "c", "dd", func(ctx context.Context, _ bool) (string, error) {
			got, err := g.Do(ctx, "d", gives("d"))
			return got.Value + "d", err
		})
		if got.Origin != mutexrebuild.Built {
			r.Errorf("a load that asks for another key: %+v", got)
		}
		_ = other
	})
}
