package mutexrebuild_test

import (
	"context"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// The holder is a lease that nobody renews. Others wait for the rest of it; a waiter
// that looked only now and then would be late.
func TestADeadHolderDelaysOthersByItsLeaseAtMost(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{})
		const left = 3 * time.Second
		r.must(r.rdb.HSet(r.ctx, leaseKey("x"), "t", "the token of a dead process").Err())
		r.must(r.rdb.PExpire(r.ctx, leaseKey("x"), left).Err())
		began := time.Now()
		r.loads(g, "x", "v")
		if took := time.Since(began); took < left || took > left+5*time.Millisecond {
			r.Errorf("it took %v with %v left", took, left)
		}
		r.finds(g, "x", "v")
	})
}

// A dead holder sends no message. Within three seconds a waiter looks 10 to 20 times.
func TestAWaiterLooksFarBetween(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{})
		r.must(r.rdb.HSet(r.ctx, leaseKey("x"), "t", "the token of a dead process").Err())
		r.must(r.rdb.PExpire(r.ctx, leaseKey("x"), 3*time.Second).Err())
		r.want(g, "x", "v", gives("v"))
		r.checkStats(g, "polls", func(s stats) bool { return s.Polls >= 10 && s.Polls <= 20 })
	})
}

// The holder's value may be old by now: it is not published, and the holder's own
// callers do not get it either. A commit that does not ask for the lease leaves the old
// value here.
func TestAHolderThatLostItsLeaseDoesNotPublish(t *testing.T) {
	for name, lose := range map[string]func(r *rig, other *group){
		"by the end of its time": func(r *rig, _ *group) { r.must(r.rdb.Del(r.ctx, leaseKey("x")).Err()) },
		"by an invalidation":     func(r *rig, other *group) { r.must(other.Invalidate(r.ctx, "x")) },
		"with all of Redis":      func(r *rig, _ *group) { r.must(r.rdb.FlushAll(r.ctx).Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g, other := r.group(opts{}), r.group(opts{})
				db, at := newSource(), newGate()
				db.write("x", "old")
				var got string
				paused := r.do(g, "x", db.gated("x", at), &got)
				<-at.reached
				db.write("x", "new")
				lose(r, other)
				r.want(other, "x", "new", db.load("x", 0))
				close(at.open)
				paused.mustBe(r, nil)
				if got != "new" || r.stored("x") != "new" {
					r.Errorf("the holder gives %q, Redis has %q", got, r.stored("x"))
				}
				r.checkStats(g, "of the holder", func(s stats) bool { return s.Refused == 1 })
				if n := db.loaded("x"); n != 2 {
					r.Errorf("%d loads, want one of each group", n)
				}
			})
		})
	}
}

// A holder that died or was taken for dead must not end a lease that is no longer
// its own. To delete without comparing fails here.
func TestAFailedLoadGivesNobodyElsesLeaseBack(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		db, at, atOther := newSource(), newGate(), newGate()
		db.write("x", "v")
		failing := r.do(g, "x", func(ctx context.Context) (string, error) {
			_, _ = db.gated("x", at)(ctx)
			return "", errSource
		}, nil)
		<-at.reached
		r.must(g.Invalidate(r.ctx, "x"))
		built := r.do(other, "x", db.gated("x", atOther), nil)
		<-atOther.reached
		close(at.open)
		failing.mustBe(r, errSource)
		if n := r.rdb.Exists(r.ctx, leaseKey("x")).Val(); n != 1 {
			r.Error("the other's lease is gone")
		}
		close(atOther.open)
		built.mustBe(r, nil)
		if r.stored("x") != "v" {
			r.Error("the other's value was refused")
		}
	})
}

// After WaitBudget a caller loads without the lease, and does not publish.
func TestAWaiterLoadsByItselfWhenItsBudgetIsSpent(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{WaitBudget: 400 * time.Millisecond})
		db, at := newSource(), newGate()
		db.write("x", "v")
		built := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		began := time.Now()
		r.loads(other, "x", "mine")
		r.took(began, 400*time.Millisecond, "the wait")
		if r.stored("x") != "" {
			r.Errorf("Redis has %q", r.stored("x"))
		}
		r.checkStats(other, "it gave up", func(s stats) bool { return s.GaveUp == 1 })
		close(at.open)
		built.mustBe(r, nil)
		if r.stored("x") != "v" {
			r.Errorf("Redis has %q", r.stored("x"))
		}
	})
}

// A value that cannot be stored is an answer all the same.
func TestAValueThatCannotBeStoredIsAnswered(t *testing.T) {
	for name, value := range map[string]struct {
		data string
		ttl  time.Duration
	}{
		"no bytes":         {"", time.Minute},
		"no TTL":           {"v", 0},
		"a negative TTL":   {"v", -1},
		"a TTL below 1 ms": {"v", 999 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g, loads := r.group(opts{}), 0
				for range 2 {
					got, err := g.Rebuild(r.ctx, "x", func(context.Context) ([]byte, time.Duration, error) {
						loads++
						return []byte(value.data), value.ttl, nil
					})
					if err != nil || string(got) != value.data {
						r.Errorf("got %q, %v", got, err)
					}
				}
				for _, key := range r.rdb.Keys(r.ctx, "*").Val() {
					if key != keys.OfCache("p").Clears() {
						r.Errorf("Redis has %q", key)
					}
				}
				r.checkStats(g, "of what was not stored", func(s stats) bool { return loads == 2 && s.Refused == 0 && s.Waits == 0 })
			})
		})
	}
}
