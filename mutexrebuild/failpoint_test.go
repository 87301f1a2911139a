//go:build levee_failpoint

package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/mutexrebuild"
)

// A race is a rebuild that is stopped at one of its steps, while somebody else
// writes the key to its end and a reader comes after that.
type race struct {
	at     string // the step
	cached bool   // there is a value in Redis, so the rebuild is only a read
	by     string // who writes: "itself", "another process"
	write  func(ctx context.Context, g *group, db *source) error
}

func (c race) String() string { return fmt.Sprintf("%s, cached %v, by %s", c.at, c.cached, c.by) }

// races are all of them with one way to write.
func races(write func(ctx context.Context, g *group, db *source) error) (all []race) {
	for _, by := range []string{"itself", "another process"} {
		all = append(all, race{"landing", true, by, write})
		for _, at := range []string{"missed", "granted", "loaded", "commit", "committed", "landing"} {
			all = append(all, race{at, false, by, write})
		}
	}
	return all
}

func invalidates(ctx context.Context, g *group, db *source) error {
	db.write("x", "new")
	return g.Invalidate(ctx, "x")
}

func sets(ctx context.Context, g *group, db *source) error {
	db.write("x", "new")
	_, err := g.Set(ctx, "x", "new")
	return err
}

func holds(ctx context.Context, g *group, db *source) error {
	end, err := g.Hold(ctx, "x")
	db.write("x", "new")
	return errors.Join(err, end(ctx))
}

// run reports what the reader who came after the write got, and what readers find
// from then on.
func (c race) run(t *testing.T, alone bool) (after, later string) {
	inBubble(t, func(r *rig) {
		db := newSource()
		db.write("x", "old")
		var g, other *group
		if alone {
			g, _ = mutexrebuild.New(nil, "p", framed, events{}, opts{})
			r.Cleanup(g.Close)
			other = g
		} else {
			g, other = r.group(opts{}), r.group(opts{})
		}
		if c.cached {
			r.want(other, "x", "old", db.load("x", 0))
		}
		writer := map[string]*group{"itself": g, "another process": other}[c.by]
		var late answer
		var got result
		var reached atomic.Bool
		failpoint.Set(func(at string) {
			if at != c.at || !reached.CompareAndSwap(false, true) {
				return
			}
			r.must(c.write(r.ctx, writer, db))
			late = r.do(g, "x", db.load("x", 0), &got)
			time.Sleep(time.Millisecond) // in a bubble: until everybody has come as far as he can
		})
		defer failpoint.Set(nil)
		_, err := g.Do(r.ctx, "x", db.load("x", 0))
		r.must(err)
		if !reached.Load() {
			r.Fatalf("it does not come to %q", c.at)
		}
		late.mustBe(r, nil)
		failpoint.Set(nil)
		last, err := other.Do(r.ctx, "x", db.load("x", 0))
		r.must(err)
		after, later = got.Value, last.Value
	})
	return after, later
}

// A read that begins after a write has returned never gives what was there before:
// not by a flight that was decided before, nor by a value stored after.
func TestNoReadAfterAWriteGivesTheOldValue(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, g *group, db *source) error{
		"Invalidate": invalidates, "Set": sets, "Hold": holds,
	} {
		for _, c := range races(write) {
			t.Run(fmt.Sprint(name, ", ", c), func(t *testing.T) {
				if after, later := c.run(t, false); after != "new" || later != "new" {
					t.Errorf("the reader after the write got %q, later ones %q", after, later)
				}
			})
		}
		for _, at := range []string{"loaded", "landing"} {
			t.Run(fmt.Sprint(name, ", ", at, ", without Redis"), func(t *testing.T) {
				c := race{at: at, by: "itself", write: write}
				if after, later := c.run(t, true); after != "new" || later != "new" {
					t.Errorf("the reader after the write got %q, later ones %q", after, later)
				}
			})
		}
	}
}

// The test above has to see the difference: with one safeguard out after the other
// it finds the old value, at the steps that the safeguard is for.
func TestEachSafeguardIsNeeded(t *testing.T) {
	defer func() {
		failpoint.PlainCommit, failpoint.KeepRefused, failpoint.JoinAny, failpoint.SealEarly = false, false, false, false
	}()
	for _, test := range []struct {
		name                 string
		plain, kept, early   bool
		after, later, nobody []string // steps at which the reader, later readers, nobody got the old value
	}{
		{name: "publish without asking", plain: true,
			later: []string{"loaded", "commit"}, nobody: []string{"missed", "granted"}},
		{name: "keep what was refused", kept: true,
			after: []string{"loaded", "commit"}, nobody: []string{"missed", "granted"}},
		{name: "take any joiner",
			after: []string{"committed", "landing", "landing, cached"}, nobody: []string{"missed", "granted", "loaded", "commit"}},
		{name: "take any joiner before the publication", early: true,
			after: []string{"landing, cached"}, nobody: []string{"missed", "granted", "committed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			failpoint.PlainCommit, failpoint.KeepRefused, failpoint.JoinAny, failpoint.SealEarly = test.plain, test.kept, true, test.early
			for _, c := range races(invalidates) {
				at := c.at
				if c.cached {
					at += ", cached"
				}
				after, later := c.run(t, false)
				for _, check := range []struct {
					steps []string
					bad   bool
					who   string
				}{
					{test.after, after == "new", "the reader after the write"},
					{test.later, later == "new", "later readers"},
					{test.nobody, after+later != "newnew", "somebody"},
				} {
					if slices.Contains(check.steps, at) && check.bad {
						t.Errorf("at %v: %s got %q, %q", c, check.who, after, later)
					}
				}
			}
		})
	}
}
