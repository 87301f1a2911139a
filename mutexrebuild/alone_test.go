package mutexrebuild_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/mutexrebuild"
)

// alone runs a test of a group without Redis, in a bubble.
func alone(t *testing.T, o opts, behaviour func(r *rig, g *group)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, ctx: t.Context()}
		g, err := newGroup(nil, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Close)
		behaviour(r, g)
	})
}

func TestWithoutRedisFailuresAreContainedAndHeld(t *testing.T) {
	for name, load := range map[string]load{
		"error":  fails(errSource),
		"panic":  func(context.Context) (string, error) { panic(errSource) },
		"goexit": func(context.Context) (string, error) { runtime.Goexit(); return "", nil },
		"hang": func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return "", nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, opts{LoadTimeout: time.Second}, func(r *rig, g *group) {
				_, err := rebuild(r.ctx, g, "x", load)
				want := map[string]error{"error": errSource, "panic": errSource, "hang": mutexrebuild.ErrLoadTimeout}[name]
				var panicked *mutexrebuild.PanicError
				if !errors.Is(err, want) && (name != "goexit" || !errors.As(err, &panicked)) {
					r.Errorf("got %v", err)
				}
				if _, again := rebuild(r.ctx, g, "x", gives("v")); again != err {
					r.Errorf("held: %v", again)
				}
				r.must(g.Invalidate(r.ctx, "x"))
				r.want(g, "x", "v", gives("v"))
			})
		})
	}
}

func TestWithoutRedisCallersComeAndGo(t *testing.T) {
	alone(t, opts{}, func(r *rig, g *group) {
		db, at := newSource(), newGate()
		db.write("x", "v")
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		began := time.Now()
		leaves := r.doWith(ctx, g, "x", db.gated("x", at), nil)
		<-at.reached
		stays := r.do(g, "x", db.gated("x", at), nil)
		leaves.mustBe(r, context.DeadlineExceeded)
		if !g.Stats().InProcess || !g.Live() {
			r.Errorf("%+v", g.Stats())
		}
		if took := time.Since(began); took != time.Second {
			r.Errorf("it left after %v", took)
		}
		close(at.open)
		stays.mustBe(r, nil)
		_, err := rebuild(r.ctx, g, "y", func(ctx context.Context) (string, error) {
			return rebuild(ctx, g, "y", gives("?"))
		})
		if !errors.Is(err, mutexrebuild.ErrReentrant) {
			r.Errorf("got %v", err)
		}
		g.Close()
		if _, err := rebuild(r.ctx, g, "x", gives("v")); !errors.Is(err, mutexrebuild.ErrClosed) {
			r.Errorf("after Close: %v", err)
		}
	})
}
