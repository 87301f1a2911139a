package mutexrebuild_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Whatever others have left at our keys costs one load and is then replaced. A script
// that fails on it would have every caller load from then on.
func TestWhatIsNotOursIsReplaced(t *testing.T) {
	long := strings.Repeat("long ", 40)
	for name, spoil := range map[string]func(p redis.Pipeliner, value, lease string){
		"a value of nothing":        func(p redis.Pipeliner, value, _ string) { p.Set(t.Context(), value, "", 0) },
		"a value that is too long":  func(p redis.Pipeliner, value, _ string) { p.Set(t.Context(), value, long+"!", 0) },
		"a list for a value":        func(p redis.Pipeliner, value, _ string) { p.RPush(t.Context(), value, "a") },
		"a hash for a value":        func(p redis.Pipeliner, value, _ string) { p.HSet(t.Context(), value, "a", "b") },
		"a string for a lease":      func(p redis.Pipeliner, _, lease string) { p.Set(t.Context(), lease, "held", 0) },
		"a list for a lease":        func(p redis.Pipeliner, _, lease string) { p.RPush(t.Context(), lease, "a") },
		"foreign fields":            func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "foo", "bar", "", "") },
		"foreign numbers":           func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "foo", "99999999999999") },
		"a token without an end":    func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "t", "for ever", "w", "1") },
		"a hold without an end":     func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "h:a", "99999999999999") },
		"a hold until nobody knows": func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "h:a", "when") },
		"both": func(p redis.Pipeliner, value, lease string) {
			p.RPush(t.Context(), value, "a")
			p.RPush(t.Context(), lease, "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				p := r.rdb.Pipeline()
				spoil(p, valueKey("x"), leaseKey("x"))
				_, err := p.Exec(r.ctx)
				r.must(err)
				g, other := r.group(opts{MaxBytes: len(long)}), r.group(opts{})
				began := time.Now()
				r.loads(g, "x", long)
				r.took(began, 0, "the load")
				r.finds(other, "x", long)
				r.checkStats(g, "of the load", func(s stats) bool { return s.Unknown == 0 && s.Waits == 0 })
			})
		})
		t.Run(name+", and writes", func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g := r.group(opts{MaxBytes: len(long)})
				for writing, write := range writes {
					p := r.rdb.Pipeline()
					p.Del(r.ctx, valueKey("x"), leaseKey("x"))
					spoil(p, valueKey("x"), leaseKey("x"))
					_, err := p.Exec(r.ctx)
					r.must(err)
					if err := write(r.ctx, g); err != nil {
						r.Errorf("%s: %v", writing, err)
					}
					r.want(g, "x", "v", gives("v"))
					if r.stored("x") != "v" {
						r.Errorf("after %s Redis has %q", writing, r.stored("x"))
					}
				}
			})
		})
	}
}

// So is what others put there in the middle of a rebuild.
func TestWhatIsSpoiledDuringALoadIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(r *rig) error{
		"the value": func(r *rig) error { return r.rdb.Set(r.ctx, valueKey("x"), "foreign", 0).Err() },
		"the lease": func(r *rig) error {
			return errors.Join(r.rdb.Del(r.ctx, leaseKey("x")).Err(), r.rdb.Set(r.ctx, leaseKey("x"), "foreign", 0).Err())
		},
		"the lease's end": func(r *rig) error { return r.rdb.Persist(r.ctx, leaseKey("x")).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g, other := r.group(opts{}), r.group(opts{})
				db, at := newSource(), newGate()
				db.write("x", "v")
				loading := r.do(g, "x", db.gated("x", at), nil)
				<-at.reached
				r.must(spoil(r))
				close(at.open)
				loading.mustBe(r, nil)
				r.finds(other, "x", "v")
				if db.loaded("x") > 2 {
					r.Errorf("%d loads", db.loaded("x"))
				}
			})
		})
	}
}

// A server that is restarted or told to flush its scripts knows none of ours.
func TestScriptsThatTheServerLostAreSentAgain(t *testing.T) {
	everywhere(t, func(r *rig) {
		lease := 300 * time.Millisecond
		if r.server != nil {
			lease *= 4 // a machine may be too busy to renew a shorter one in time
		}
		g := r.group(opts{Lease: lease})
		flushed := func(what string, err error) {
			r.Helper()
			if err != nil {
				r.Errorf("%s: %v", what, err)
			}
			r.must(r.rdb.ScriptFlush(r.ctx).Err())
		}
		flushed("nothing", nil)
		db, at := newSource(), newGate()
		db.write("x", "v")
		loading := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		flushed("begin", nil)
		time.Sleep(lease + lease/6) // renewed meanwhile
		flushed("renew", nil)
		close(at.open)
		flushed("commit", <-loading)
		if r.stored("x") != "v" || db.loaded("x") != 1 {
			r.Errorf("Redis has %q after %d loads", r.stored("x"), db.loaded("x"))
		}
		_, err := rebuild(r.ctx, g, "y", fails(errSource))
		if !errors.Is(err, errSource) || r.rdb.Exists(r.ctx, leaseKey("y")).Val() > 0 {
			r.Errorf("abort: %v, and a lease", err)
		}
		flushed("abort", nil)
		flushed("Invalidate", g.Invalidate(r.ctx, "x"))
		if r.stored("x") != "" {
			r.Error("Invalidate did nothing")
		}
		flushed("Set", set(r.ctx, g, "x", "v"))
		if r.server != nil { // a connection in memory does not take a batch of whole scripts
			flushed("Invalidate of many", g.Invalidate(r.ctx, "x", "y", "z"))
			if r.stored("x") != "" {
				r.Error("Invalidate of many did nothing")
			}
		}
		r.checkStats(g, "of all this", func(s stats) bool { return s.Unknown == 0 && s.Waits == 0 })
	})
}

// All keys that we write have a TTL, at whatever moment a process dies. The
// shortest times are the ones that a server rounds to none.
func TestEveryKeyHasATTLAtEveryMoment(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{Hold: time.Millisecond})
		lagging := r.group(opts{ReplicaLag: time.Millisecond})
		db, at := newSource(), newGate()
		db.write("x", "v")
		loading := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		everyKeyEnds(r.T, r.rdb) // a lease
		waiting := r.do(other, "x", db.gated("x", at), nil)
		r.waits(other)
		everyKeyEnds(r.T, r.rdb) // with somebody waiting
		endA, err := g.Hold(r.ctx, "x")
		r.must(err)
		everyKeyEnds(r.T, r.rdb) // a hold
		_, err = other.Hold(r.ctx, "x", "y")
		r.must(err)
		everyKeyEnds(r.T, r.rdb) // two
		r.must(endA(r.ctx))
		everyKeyEnds(r.T, r.rdb) // the shorter one
		r.must(lagging.Invalidate(r.ctx, "x", "y", "z"))
		everyKeyEnds(r.T, r.rdb)
		close(at.open)
		loading.mustBe(r, nil)
		waiting.mustBe(r, nil)
		r.must(set(r.ctx, g, "z", "v"))
		everyKeyEnds(r.T, r.rdb) // values
		r.must(set(r.ctx, g, "x", "v"))
		time.Sleep(5 * time.Millisecond)
		for _, id := range []string{"y", "z"} {
			if ttl := r.rdb.PTTL(r.ctx, leaseKey(id)).Val(); ttl != -2 {
				r.Errorf("the lease of %q stands for another %v", id, ttl)
			}
		}
	})
}
