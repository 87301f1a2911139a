package mutexrebuild_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
)

// Whatever of our types others have left at our keys costs one load and is then replaced.
// A script that fails on it would have every caller load from then on.
func TestWhatIsNotOursIsReplaced(t *testing.T) {
	long := strings.Repeat("long ", 40)
	for name, spoil := range map[string]func(p redis.Pipeliner, value, lease string){
		"a value of nothing":        func(p redis.Pipeliner, value, _ string) { p.Set(t.Context(), value, "", 0) },
		"a value that is too long":  func(p redis.Pipeliner, value, _ string) { p.Set(t.Context(), value, long+"!", 0) },
		"foreign fields":            func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "foo", "bar", "", "") },
		"foreign numbers":           func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "foo", "99999999999999") },
		"a token without an end":    func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "t", "for ever", "w", "1") },
		"a hold without an end":     func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "h:a", "99999999999999") },
		"a hold until nobody knows": func(p redis.Pipeliner, _, lease string) { p.HSet(t.Context(), lease, "h:a", "when") },
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

// A key of another type is somebody else's. Its id is loaded and not cached, writes are
// confirmed, other processes hear of them, and nothing touches the key. To SET or DEL
// without asking for the type fails here.
func TestAKeyOfAnotherTypeIsLeftAlone(t *testing.T) {
	list := func(p redis.Pipeliner, key string) { p.RPush(t.Context(), key, "theirs") }
	text := func(p redis.Pipeliner, key string) { p.Set(t.Context(), key, "theirs", 0) }
	for name, test := range map[string]struct {
		key string
		put func(redis.Pipeliner, string)
	}{
		"a list for a value":       {valueKey("x"), list},
		"a hash for a value":       {valueKey("x"), func(p redis.Pipeliner, key string) { p.HSet(t.Context(), key, "t", "theirs") }},
		"a list for a lease":       {leaseKey("x"), list},
		"a string for a lease":     {leaseKey("x"), text},
		"a list for a next schema": {keys.OfCache("p").Value(1, "x"), list},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) {
				g, other := r.group(opts{}), r.group(opts{})
				p := r.rdb.Pipeline()
				test.put(p, test.key)
				_, err := p.Exec(r.ctx)
				r.must(err)
				theirs := r.contents(test.key)
				cached := test.key == keys.OfCache("p").Value(1, "x")
				r.want(g, "x", "v", gives("v"))
				if uses := r.uses(other, "x"); uses != cached {
					r.Errorf("it is cached: %v", uses)
				}
				for writing, write := range writes {
					if err := write(r.ctx, g); err != nil {
						r.Errorf("%s: %v", writing, err)
					}
					r.want(other, "x", "v", gives("v"))
				}
				if now := r.contents(test.key); now != theirs {
					r.Errorf("it has become %q", now)
				}
				r.checkStats(g, "it is counted", func(s stats) bool { return s.Foreign > 0 && s.Unconfirmed == 0 })
				r.must(r.rdb.Del(r.ctx, test.key).Err()) // it has no TTL
			})
		})
	}
}

func (r *rig) contents(key string) string {
	return fmt.Sprint(r.rdb.Type(r.ctx, key).Val(), r.rdb.LRange(r.ctx, key, 0, -1).Val(), r.rdb.HGetAll(r.ctx, key).Val(), r.rdb.Get(r.ctx, key).Val())
}

// So it is when it comes in the middle of a load.
func TestAKeyOfAnotherTypeThatComesLateIsLeftAlone(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, at := r.group(opts{}), newGate()
		db := newSource()
		db.write("x", "v")
		loading := r.do(g, "x", db.gated("x", at), nil)
		<-at.reached
		r.must(r.rdb.RPush(r.ctx, valueKey("x"), "theirs").Err())
		close(at.open)
		loading.mustBe(r, nil)
		if n := r.rdb.LLen(r.ctx, valueKey("x")).Val(); n != 1 || r.rdb.Exists(r.ctx, leaseKey("x")).Val() != 0 {
			r.Errorf("a list of %d, and the lease is still there", n)
		}
		r.checkStats(g, "it is counted", func(s stats) bool { return s.Foreign == 1 })
		r.must(r.rdb.Del(r.ctx, valueKey("x")).Err())
	})
}

// What others put there in the middle of a rebuild is replaced, too.
func TestWhatIsSpoiledDuringALoadIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(r *rig) error{
		"the value": func(r *rig) error { return r.rdb.Set(r.ctx, valueKey("x"), "foreign", 0).Err() },
		"the lease": func(r *rig) error {
			return errors.Join(r.rdb.Del(r.ctx, leaseKey("x")).Err(), r.rdb.HSet(r.ctx, leaseKey("x"), "foreign", 0).Err())
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
