package mutexrebuild_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/mutexrebuild"
)

// trusting takes whatever stands in Redis for a value, as framed does not. So it is
// for the group to tell a value from the beginning of a longer one.
var trusting = format{
	Encode: func(_, value string) ([]byte, time.Duration, error) { return []byte(value), time.Minute, nil },
	Decode: func(_ string, data []byte) (string, mutexrebuild.Condition) {
		switch value := string(data); {
		case strings.HasPrefix(value, "aging"):
			return value, mutexrebuild.Aging
		case strings.HasPrefix(value, "spare"):
			return value, mutexrebuild.Spare
		default:
			return value, mutexrebuild.Fresh
		}
	},
}

const longest = 200

// trustingGroup makes a group of that format, which stores and reads up to longest.
func (r *rig) trustingGroup() *group {
	r.Helper()
	g, err := mutexrebuild.New(r.client(), "p", trusting, events{}, opts{RedisTimeout: 5 * time.Second, MaxBytes: longest})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(g.Close)
	r.eventually("messages arrive", g.Live)
	return g
}

// lay puts a value under a key as somebody else might.
func (r *rig) lay(id, value string) {
	r.Helper()
	r.must(r.rdb.Set(r.ctx, valueKey(id), value, time.Minute).Err())
}

// Catches a read that takes the part of a long value for a value, on each of the ways
// that lead to one; and one that stops a byte short.
func TestWhatIsTooLongIsNoValue(t *testing.T) {
	long := strings.Repeat("l", longest+1)
	unfit := func(r *rig, g *group) {
		r.Helper()
		r.checkStats(g, "it is counted once", func(s stats) bool { return s.Unfit == 1 })
		if got := r.rdb.Get(r.ctx, valueKey("x")).Val(); got != "new" {
			r.Errorf("in Redis stands %.20q", got)
		}
	}
	for name, meet := range map[string]func(r *rig, g *group){
		"as long as may be": func(r *rig, g *group) {
			r.lay("x", long[1:])
			r.want(g, "x", long[1:], fails(errSource))
		},
		"found": func(r *rig, g *group) {
			r.lay("x", long)
			r.want(g, "x", "new", gives("new"))
			unfit(r, g)
		},
		"published meanwhile": func(r *rig, g *group) {
			db, at := newSource(), newGate()
			db.write("x", "new")
			other := r.trustingGroup()
			loading := r.do(other, "x", db.gated("x", at), nil)
			<-at.reached
			var got result
			waiting := r.do(g, "x", fails(errSource), &got)
			r.waits(g)
			r.lay("x", long)
			r.eventually("it has looked", func() bool { return g.Stats().Unfit > 0 })
			close(at.open)
			loading.mustBe(r, nil)
			waiting.mustBe(r, nil)
			if got.Value != "new" {
				r.Errorf("got %.20q", got.Value)
			}
			unfit(r, g)
		},
		"refreshed": func(r *rig, g *group) {
			r.lay("x", "aging")
			got := r.want(g, "x", "aging", fails(errSource))
			r.lay("x", long)
			done := make(chan result, 1)
			g.Refresh(r.ctx, "x", got, gives("new"), func(new result) { done <- new })
			if got := <-done; got.Value != "new" {
				r.Errorf("done got %.20q", got.Value)
			}
			unfit(r, g)
		},
		"in place of a spare": func(r *rig, g *group) {
			r.lay("x", "spare")
			db, at := newSource(), newGate()
			db.write("x", "new")
			loading := r.do(g, "x", db.gated("x", at), nil)
			<-at.reached
			r.lay("x", "spare"+long)
			ctx, leave := context.WithCancel(r.ctx)
			late := r.doWith(ctx, g, "x", fails(errSource), nil)
			r.joined(g, "x", 2)
			r.eventually("it has looked again", func() bool { return g.Stats().Unfit > 0 })
			leave()
			late.mustBe(r, context.Canceled) // with the spare it would have been an answer
			close(at.open)
			loading.mustBe(r, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(r *rig) { meet(r, r.trustingGroup()) })
		})
	}
}

// A value that nobody would read must not be stored: every reader would load it
// again, and find that it stands there already.
func TestWhatIsTooLongIsNotStored(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.trustingGroup()
		long := strings.Repeat("l", longest+1)
		if got := r.want(g, "x", long, gives(long)); got.Origin != mutexrebuild.Unshared || got.Bytes != len(long) {
			r.Errorf("got %v, %d bytes", got.Origin, got.Bytes)
		}
		r.checkStats(g, "it is counted", func(s stats) bool { return s.Unpublished == 1 })
		r.want(g, "x", "short", gives("short"))
		_, err := g.Set(r.ctx, "x", long)
		r.must(err)
		if n := r.rdb.Exists(r.ctx, valueKey("x")).Val(); n != 0 {
			r.Error("what was there before a Set still stands")
		}
	})
}
