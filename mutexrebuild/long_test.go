package mutexrebuild_test

import (
	"strings"
	"testing"
)

const longest = 200

// A read that takes the part of a long value for a value fails this, in each of the
// ways that lead to one; and one that stops a byte short.
func TestWhatIsTooLongIsNoValue(t *testing.T) {
	long := strings.Repeat("l", longest+1)
	for name, meet := range map[string]func(r *rig, g *group){
		"as long as may be": func(r *rig, g *group) {
			r.lay("x", long[1:])
			r.finds(g, "x", long[1:])
		},
		"found": func(r *rig, g *group) {
			r.lay("x", long)
			r.loads(g, "x", "new")
			r.finds(g, "x", "new")
		},
		"published meanwhile": func(r *rig, g *group) {
			db, at := newSource(), newGate()
			db.write("x", "new")
			loading := r.do(r.group(opts{MaxBytes: longest}), "x", db.gated("x", at), nil)
			<-at.reached
			var got string
			waiting := r.do(g, "x", fails(errSource), &got)
			r.waits(g)
			r.lay("x", long)
			before := g.Stats().Polls
			r.eventually("it has looked", func() bool { return g.Stats().Polls >= before+2 })
			close(at.open)
			loading.mustBe(r, nil)
			waiting.mustBe(r, nil)
			if got != "new" || r.stored("x") != "new" {
				r.Errorf("got %.20q, Redis has %.20q", got, r.stored("x"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) { meet(r, r.group(opts{MaxBytes: longest})) })
		})
	}
}

// A value that nobody would read must not be stored: every reader would load it
// again, and find that it stands there already.
func TestWhatIsTooLongIsNotStored(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{MaxBytes: longest})
		long := strings.Repeat("l", longest+1)
		r.loads(g, "x", long)
		if got := r.stored("x"); got != "" {
			r.Errorf("Redis has %.20q", got)
		}
		r.want(g, "x", "short", gives("short"))
		r.must(set(r.ctx, g, "x", long))
		if n := r.rdb.Exists(r.ctx, valueKey("x")).Val(); n != 0 {
			r.Error("what was there before a Set still stands")
		}
	})
}
