//go:build levee_failpoint

package mutexrebuild_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/mutant"
)

// A race is a rebuild that is stopped at one of its steps, while a writer changes the
// key to the end and a reader comes after that.
type race struct {
	at     string // the step
	cached bool   // there is a value in Redis, so the rebuild is only a read
	alone  bool   // without Redis
	by     string // the writer: "itself", "another process"
	write  func(ctx context.Context, g *group, db *source) error
}

func (c race) String() string {
	switch {
	case c.cached:
		return c.at + ", cached, by " + c.by
	case c.alone:
		return c.at + ", without Redis"
	}
	return c.at + ", by " + c.by
}

// races are all of them with one way to write.
func races(write func(ctx context.Context, g *group, db *source) error) (all []race) {
	for _, by := range []string{"itself", "another process"} {
		all = append(all, race{at: "finish", cached: true, by: by, write: write})
		for _, at := range []string{"missed", "granted", "loaded", "commit", "committed", "finish"} {
			all = append(all, race{at: at, by: by, write: write})
		}
	}
	for _, at := range []string{"loaded", "finish"} {
		all = append(all, race{at: at, alone: true, by: "itself", write: write})
	}
	return all
}

func invalidates(ctx context.Context, g *group, db *source) error {
	db.write("x", "new")
	return g.Invalidate(ctx, "x")
}

func sets(ctx context.Context, g *group, db *source) error {
	db.write("x", "new")
	return set(ctx, g, "x", "new")
}

func holds(ctx context.Context, g *group, db *source) error {
	end, err := g.Hold(ctx, "x")
	db.write("x", "new")
	return errors.Join(err, end(ctx))
}

// run returns what the reader after the write got, and what a reader after that found.
func (c race) run(t *testing.T) (after, later string) {
	test := func(r *rig, g, other *group) {
		db := newSource()
		db.write("x", "old")
		if c.cached {
			r.want(other, "x", "old", db.load("x", 0))
		}
		writer := map[string]*group{"itself": g, "another process": other}[c.by]
		var late answer
		var reached atomic.Bool
		failpoint.Set(func(at string) {
			if at != c.at || !reached.CompareAndSwap(false, true) {
				return
			}
			r.must(c.write(r.ctx, writer, db))
			late = r.do(g, "x", db.load("x", 0), &after)
			time.Sleep(time.Millisecond) // in a bubble: until all goroutines wait
		})
		defer failpoint.Set(nil)
		_, err := rebuild(r.ctx, g, "x", db.load("x", 0))
		r.must(err)
		if !reached.Load() {
			r.Fatalf("it does not come to %q", c.at)
		}
		late.mustBe(r, nil)
		failpoint.Set(nil)
		later, err = rebuild(r.ctx, other, "x", db.load("x", 0))
		r.must(err)
	}
	if c.alone {
		alone(t, opts{}, func(r *rig, g *group) { test(r, g, g) })
	} else {
		inBubble(t, func(r *rig) { test(r, r.group(opts{}), r.group(opts{})) })
	}
	return after, later
}

// A read that begins after a write has returned never gives the old value: neither from
// a flight that was decided before, nor from a value stored after.
func TestNoReadAfterAWriteGivesTheOldValue(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, g *group, db *source) error{
		"Invalidate": invalidates, "Set": sets, "Hold": holds,
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range races(write) {
				t.Run(c.String(), func(t *testing.T) {
					if after, later := c.run(t); after != "new" || later != "new" {
						t.Errorf("%v: the reader after the write gets %q, later ones %q", c, after, later)
					}
				})
			}
		})
	}
}

// The test above has to see the difference: with one safeguard out after the other
// it finds the old value, at the steps that the safeguard is for.
func TestEachSafeguardIsNeeded(t *testing.T) {
	type broken struct {
		edits                []mutant.Edit
		after, later, nobody []string // steps at which the reader, later readers, nobody gets the old value
	}
	mutant.Each(t, map[string]broken{
		"commit without asking for the lease": {edits: []mutant.Edit{
			{File: "internal/fleet/scripts/commit.lua", Old: "if redis.pcall('HGET', KEYS[2], 't') ~= ARGV[1] then", New: "if false then"},
		}, later: []string{"loaded", "commit"}, nobody: []string{"missed", "granted"}},
		"a refused value answers everybody": {edits: []mutant.Edit{
			{File: "internal/rebuild/run.go", Old: "return r.overtaken < maxOvertaken", New: "return false"},
			mutant.JoinAny,
		}, after: []string{"loaded", "commit"}, nobody: []string{"missed", "granted"}},
		"a flight's result for all who joined": {edits: []mutant.Edit{mutant.JoinAny},
			after: []string{"committed", "finish", "finish, cached"}, nobody: []string{"missed", "granted", "loaded", "commit"}},
		"nobody may join from just before the publication on": {edits: append([]mutant.Edit{mutant.JoinAny}, mutant.LeaveEarly...),
			after: []string{"finish, cached"}, nobody: []string{"missed", "granted", "committed"}},
	}, func(t testing.TB, test broken) {
		output, _ := mutant.Run(t, mutant.Of{
			Package: "./mutexrebuild", Tags: "levee_failpoint", Test: "^TestNoReadAfterAWriteGivesTheOldValue$/^Invalidate$", Edits: test.edits,
		})
		for _, c := range races(nil) {
			if c.alone {
				continue
			}
			at := c.at
			if c.cached {
				at += ", cached"
			}
			after, later := "new", "new"
			saw := regexp.MustCompile(regexp.QuoteMeta(fmt.Sprint(c)) + `: the reader after the write gets "(.*)", later ones "(.*)"`)
			if found := saw.FindStringSubmatch(output); found != nil {
				after, later = found[1], found[2]
			}
			for _, check := range []struct {
				steps []string
				bad   bool
				who   string
			}{
				{test.after, after != "old", "the reader after the write"},
				{test.later, later != "old", "later readers"},
				{test.nobody, after+later != "newnew", "somebody"},
			} {
				if slices.Contains(check.steps, at) && check.bad {
					t.Errorf("at %v: %s got %q, %q", c, check.who, after, later)
				}
			}
		}
		if t.Failed() {
			t.Log(output)
		}
	})
}
