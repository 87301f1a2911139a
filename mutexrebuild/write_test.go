package mutexrebuild_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/mutexrebuild"
)

// writes are all that end a value of "x". Set stores "v".
var writes = map[string]func(ctx context.Context, g *group) error{
	"Invalidate":         func(ctx context.Context, g *group) error { return g.Invalidate(ctx, "x") },
	"Invalidate of many": func(ctx context.Context, g *group) error { return g.Invalidate(ctx, "x", "z") },
	"Set":                func(ctx context.Context, g *group) error { return set(ctx, g, "x", "v") },
	"Hold": func(ctx context.Context, g *group) error {
		end, err := g.Hold(ctx, "x")
		return errors.Join(err, end(ctx))
	},
}

// Set is for a value that the source holds already. A rebuild from before it must
// not overwrite it; to leave the lease standing fails here.
func TestSetVoidsARebuildUnderWay(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		db, at := newSource(), newGate()
		db.write("x", "old")
		var before, waited string
		loading := r.do(g, "x", db.gated("x", at), &before)
		<-at.reached
		waiting := r.do(other, "x", fails(errSource), &waited)
		r.waits(other)
		db.write("x", "new")
		began := time.Now()
		r.must(set(r.ctx, other, "x", "new"))
		waiting.mustBe(r, nil) // Set has woken it
		r.took(began, 0, "to be woken")
		close(at.open)
		loading.mustBe(r, nil)
		if before != "new" || waited != "new" || r.stored("x") != "new" {
			r.Errorf("got %q and %q, Redis has %q", before, waited, r.stored("x"))
		}
		r.checkStats(g, "it was refused", func(s stats) bool { return s.Refused == 1 })
	})
}

func TestSetOfWhatCannotBeStoredDropsTheOldValue(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		for data, ttl := range map[string]time.Duration{"w": 0, "": time.Minute} {
			r.must(set(r.ctx, g, "x", "v"))
			if r.stored("x") != "v" {
				r.Errorf("Redis has %q", r.stored("x"))
			}
			r.must(g.Set(r.ctx, "x", []byte(data), ttl))
			if r.stored("x") != "" {
				r.Errorf("Redis has %q, want nothing: the value is old", r.stored("x"))
			}
		}
	})
}

// While a write is under way its keys are closed: what is read from the source may
// be from before or after it, and must not be kept.
func TestUnderAHoldReadersLoadAndDoNotPublish(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		db, at := newSource(), newGate()
		db.write("x", "old")
		r.want(g, "x", "old", db.load("x", 0))
		begun := r.do(g, "y", db.gated("y", at), nil) // its lease does not survive the hold
		<-at.reached

		end, err := other.Hold(r.ctx, "x", "y")
		r.must(err)
		for range 2 {
			for _, g := range []*group{g, other} {
				r.want(g, "x", "old", db.load("x", 0))
			}
		}
		close(at.open)
		begun.mustBe(r, nil)
		if r.stored("x")+r.stored("y") != "" {
			r.Errorf("Redis has %q and %q", r.stored("x"), r.stored("y"))
		}
		db.write("x", "new")
		r.must(end(r.ctx))
		if n := db.loaded("x"); n != 1+4 {
			r.Errorf("%d loads, want one before the hold and one for each reader during it", n)
		}
		r.loads(g, "x", "new")
		r.finds(other, "x", "new")
		r.checkStats(other, "loads beside the hold", func(s stats) bool { return s.Unknown == 0 && s.Waits == 0 && s.Refused == 0 })
	})
}

// A load beside a writer answers the callers who had joined before it began. Later ones
// may know of another write that it did not see. Without TakeBack after the load, the
// late caller gets the old value here.
func TestALoadBesideAWriterIsForThoseWhoWereThere(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		end, err := other.Hold(r.ctx, "x")
		r.must(err)
		db, at := newSource(), newGate()
		db.write("x", "old")
		var early, late string
		first := r.do(g, "x", db.gated("x", at), &early)
		<-at.reached
		db.write("x", "new") // by another writer than the one who holds the key
		r.must(other.Invalidate(r.ctx, "x"))
		second := r.do(g, "x", db.load("x", 0), &late)
		r.joined(g, "x", 2)
		close(at.open)
		first.mustBe(r, nil)
		second.mustBe(r, nil)
		if early != "old" || late != "new" {
			r.Errorf("the first caller got %q, the one after the invalidation %q", early, late)
		}
		r.must(end(r.ctx))
	})
}

// The end of one writer's hold, or somebody's invalidation, must not open a key
// that another writer still holds. One hold per key, or holds that count, fail here.
func TestHoldsOfSeveralWritersStandSideBySide(t *testing.T) {
	everywhere(t, func(r *rig) {
		a, b := r.group(opts{}), r.group(opts{})
		held := func(want bool, when string) {
			r.Helper()
			if got := !r.keeps(a, "x"); got != want {
				r.Errorf("%s: held %v, want %v", when, got, want)
			}
		}
		endA, errA := a.Hold(r.ctx, "x")
		endB, errB := b.Hold(r.ctx, "x")
		r.must(errors.Join(errA, errB))
		held(true, "both hold")
		r.must(b.Invalidate(r.ctx, "x"))
		held(true, "after an invalidation")
		r.must(endA(r.ctx))
		r.must(endA(r.ctx)) // its end again is nothing to the other
		held(true, "one holds")
		r.must(set(r.ctx, b, "x", "set"))
		r.must(endB(r.ctx))
		held(false, "none holds")
		if r.stored("x") != "v" {
			r.Errorf("Redis has %q", r.stored("x"))
		}
	})
}

func TestAHoldOfADeadWriterEndsByItself(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{Hold: 2 * time.Second})
		_, err := g.Hold(r.ctx, "x")
		r.must(err)
		time.Sleep(1500 * time.Millisecond)
		end, err := g.Hold(r.ctx, "x") // a second one neither prolongs nor shortens it
		r.must(err)
		r.must(end(r.ctx))
		time.Sleep(499 * time.Millisecond)
		if r.keeps(g, "x") {
			r.Error("it ended early")
		}
		time.Sleep(2 * time.Millisecond)
		if !r.keeps(g, "x") {
			r.Error("it stands for longer than Options.Hold")
		}
	})
}

// A Set whose process dies after the first of its two steps must not end the hold of
// another writer early: the claim would replace what is left of the hold, 30 s here, by
// the life of a lease.
func TestAClaimDoesNotShortenAHold(t *testing.T) {
	inBubble(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		_, err := other.Hold(r.ctx, "x")
		r.must(err)
		r.must(set(r.ctx, g, "y", "v")) // the server knows the scripts
		allow := r.refuse(func(args []string) bool { return publishes(args, "i") || args[0] == scriptName("invalidate") })
		if err := set(r.ctx, g, "x", "v"); !errors.Is(err, mutexrebuild.ErrUnavailable) {
			r.Errorf("got %v, want ErrUnavailable", err)
		}
		time.Sleep(29 * time.Second)
		allow()
		if r.keeps(other, "x") {
			r.Error("the hold ended early")
		}
		g.Close()
	})
}

// A replica that lags gives the old value for a while after the write.
func TestReplicaLagKeepsAKeyClosedAfterAWrite(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{ReplicaLag: time.Second})
		for name, write := range map[string]func() error{
			"Invalidate": func() error { return g.Invalidate(r.ctx, "x") },
			"Hold": func() error {
				end, err := g.Hold(r.ctx, "x")
				return errors.Join(err, end(r.ctx))
			},
		} {
			r.must(write())
			time.Sleep(999 * time.Millisecond)
			if r.keeps(g, "x") {
				r.Errorf("%s: the key is open at once", name)
			}
			time.Sleep(2 * time.Millisecond)
			if !r.keeps(g, "x") {
				r.Errorf("%s: the key is still closed", name)
			}
		}
	})
}

// Only what was confirmed counts.
func TestAWriteThatRedisDoesNotConfirmIsUnavailable(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		if r.server != nil {
			r.server.Kill()
			defer r.server.Restart()
		} else {
			r.mini.SetError("ERR out of order")
			defer r.mini.SetError("")
		}
		ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
		defer cancel()
		setErr := set(ctx, g, "x", "v")
		end, holdErr := g.Hold(ctx, "x")
		for name, err := range map[string]error{
			"Invalidate": g.Invalidate(ctx, "x"), "of many": g.Invalidate(ctx, "x", "y"),
			"Set": setErr, "Hold": holdErr, "its end": end(ctx),
		} {
			if !errors.Is(err, mutexrebuild.ErrUnavailable) || !strings.HasPrefix(err.Error(), "mutexrebuild: ") {
				r.Errorf("%s: %v", name, err)
			}
			var fromRedis redis.Error
			var fromNetwork *net.OpError
			if errors.As(err, &fromRedis) || errors.As(err, &fromNetwork) {
				r.Errorf("%s: the error is somebody else's: %#v", name, err)
			}
		}
	})
}

// Why a write was not confirmed, if its caller's context is the reason.
func TestAWriteWhoseCallerLeavesSaysSo(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		ctx, cancel := context.WithCancelCause(r.ctx)
		cancel(errSource)
		for name, err := range map[string]error{"Invalidate": g.Invalidate(ctx, "x"), "of many": g.Invalidate(ctx, "x", "y")} {
			if !errors.Is(err, mutexrebuild.ErrUnavailable) || !errors.Is(err, context.Canceled) || !errors.Is(err, errSource) {
				r.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A Set that the network holds back has failed, and its writer knows. When it
// reaches the server after all, somebody may have invalidated the key meanwhile, and
// its value is an old one. Published without a look at its claim, it would answer
// until its TTL ends.
func TestASetThatComesLateDoesNotPublish(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.with(r.client(func(o *redis.Options) { o.MaxRetries = -1 }), opts{RedisTimeout: 100 * time.Millisecond})
		r.want(g, "x", "v0", gives("v0")) // the server knows the scripts
		r.must(set(r.ctx, g, "x", "v1"))
		for late := 1; late <= 2; late++ { // the claim, and what publishes
			var scripts atomic.Int64
			r.mini.Before(func(command string, _ []string) {
				if command != "EVALSHA" {
					return
				}
				if scripts.Add(1) == int64(late) {
					time.Sleep(time.Second)
				}
			})
			if err := set(r.ctx, g, "x", "old"); !errors.Is(err, mutexrebuild.ErrUnavailable) {
				r.Errorf("got %v, want ErrUnavailable", err)
			}
			r.must(g.Invalidate(r.ctx, "x"))
			r.want(g, "x", "new", gives("new"))
			time.Sleep(time.Minute / 2)
			r.want(g, "x", "new", gives("new"))
			if got := r.stored("x"); got == "old" {
				r.Errorf("late by step %d, Redis has %q", late, got)
			}
			r.mini.Before(nil)
		}
	})
}
