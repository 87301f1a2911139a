package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// A failure ends the flight for all who are on it, and gives the lease back:
// without that the next load would wait until the lease ends.
func TestAFailedLoadReleasesItsLeaseAtOnce(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		at := newGate()
		loads := 0
		failing := func(context.Context) (string, error) {
			loads++
			at.reached <- struct{}{}
			<-at.open
			return "", errSource
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
			if err := <-answers; err != errSource {
				r.Fatalf("got %v", err)
			}
		}
		next.mustBe(r, nil)
		r.took(began, 0, "the next load")
		if loads != 1 || r.stored("x") != "v" {
			r.Errorf("%d loads failed, Redis has %q", loads, r.stored("x"))
		}
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

// While a process asks for its lease, another one publishes the value, and LoadTimeout ends: no error of a load
// that was not begun may hide the value that the request has brought.
func TestAValueFoundWithTheLeaseIsTheAnswerThoughItsTimeIsUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		other, rdb := r.group(opts{}), r.client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
		publish := redistest.Once(func() {
			r.want(other, "x", "v1", gives("v1"))
			time.Sleep(2 * time.Second)
		})
		rdb.AddHook(redistest.EachCommand(func(cmd redis.Cmder) {
			if strings.HasPrefix(cmd.Name(), "eval") && slices.Contains(cmd.Args(), any("ask")) {
				publish()
			}
		}))
		g := r.with(rdb, opts{RedisTimeout: 10 * time.Second, LoadTimeout: time.Second})
		r.want(g, "x", "v1", gives("a value of its own"))
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
