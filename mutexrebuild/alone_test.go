package mutexrebuild_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
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

func TestWithoutRedisThereIsOneLoadForManyCallers(t *testing.T) {
	alone(t, opts{}, func(r *rig, g *group) {
		if !g.Stats().InProcess || !g.Live() {
			r.Errorf("live %v, %+v", g.Live(), g.Stats())
		}
		db := newSource()
		db.write("x", "v")
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				r.want(g, "x", "v", db.load("x", time.Second))
			})
		}
		all.Wait()
		if n := db.loaded("x"); n != 1 {
			r.Errorf("%d loads", n)
		}
	})
}

// The load under way may have read the old value. Neither callers who come after the
// write take it, nor those who came before.
func TestWithoutRedisAWriteBeatsALoadUnderWay(t *testing.T) {
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			alone(t, opts{}, func(r *rig, g *group) {
				db, at := newSource(), newGate()
				db.write("x", "old")
				var a, b string
				before := r.do(g, "x", db.gated("x", at), &a)
				<-at.reached
				db.write("x", "new")
				r.must(write(r.ctx, g))
				after := r.do(g, "x", db.gated("x", at), &b)
				r.joined(g, "x", 2)
				close(at.open)
				before.mustBe(r, nil)
				after.mustBe(r, nil)
				if a != "new" || b != "new" {
					r.Errorf("got %q and %q", a, b)
				}
				r.checkStats(g, "of one flight", func(s stats) bool { return db.loaded("x") == 2 && s.Refused == 1 })
			})
		})
	}
}

// Callers who joined before the last load began asked before its value could be old.
// Later ones go on to a flight of their own.
func TestWithoutRedisALoadRefusedAgainAndAgainIsForThoseWhoWereThere(t *testing.T) {
	alone(t, opts{}, func(r *rig, g *group) {
		at, n := newGate(), 0
		load := func(context.Context) (string, error) {
			n++
			value := []string{"", "1", "2", "3", "4"}[n]
			at.reached <- struct{}{}
			<-at.open
			return value, nil
		}
		var a, b string
		first := r.do(g, "x", load, &a)
		for i := range 3 {
			<-at.reached
			r.must(g.Invalidate(r.ctx, "x"))
			if i < 2 {
				at.open <- struct{}{}
			}
		}
		late := r.do(g, "x", load, &b)
		r.joined(g, "x", 2)
		at.open <- struct{}{}
		first.mustBe(r, nil)
		at.open <- struct{}{}
		late.mustBe(r, nil)
		if a != "3" || b != "4" {
			r.Errorf("the first got %q, the caller after the last invalidation %q", a, b)
		}
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
