package mutexrebuild_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/mutexrebuild"
)

// put stores a value as another process would have left it.
func (r *rig) put(id, value string) {
	r.Helper()
	r.must(r.rdb.Set(r.ctx, valueKey(id), frame(id, value), time.Minute).Err())
}

// A rebuild by somebody who waits, or one by each process, fails this.
func TestWhatIsAgingIsRefreshedOnceWhileItAnswers(t *testing.T) {
	everywhere(t, func(r *rig) {
		r.put("x", "aging 1")
		var loads atomic.Int64
		release := make(chan struct{})
		slow := func(context.Context, bool) (string, error) {
			loads.Add(1)
			<-release
			return "new", nil
		}
		groups := []*group{r.group(opts{}), r.group(opts{})}
		refreshed := make(chan result, 2)
		begun := 0
		for range 3 {
			for _, g := range groups {
				got := r.want(g, "x", "aging 1", fails(errSource))
				if got.Origin != mutexrebuild.Found || got.Condition != mutexrebuild.Aging {
					r.Fatalf("got %+v", got)
				}
				if g.Refresh(r.ctx, "x", got, slow, func(new result) { refreshed <- new }) {
					begun++
				}
				r.eventually("the load runs", func() bool { return loads.Load() > 0 })
			}
		}
		if begun != 2 {
			r.Errorf("%d refreshes begun, want one in each process", begun)
		}
		close(release)
		if got := <-refreshed; got.Value != "new" || got.Origin != mutexrebuild.Built || got.Condition != mutexrebuild.Fresh {
			r.Errorf("done got %+v", got)
		}
		if loads.Load() != 1 {
			r.Errorf("%d loads, want 1", loads.Load())
		}
		for _, g := range groups {
			r.want(g, "x", "new", fails(errSource))
		}
		r.checkStats(groups[0], "of the refresh", func(s stats) bool { return s.Refreshes == 1 && s.Refreshed == 1 && s.Loads == 1 })
	})
}

// Without the lease, the refresh would bring back what was there before.
func TestAnInvalidationBeatsARefreshUnderWay(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		r.put("x", "aging 1")
		loading, release := make(chan struct{}), make(chan struct{})
		got := r.want(g, "x", "aging 1", fails(errSource))
		ended := make(chan struct{})
		g.Refresh(r.ctx, "x", got, func(context.Context, bool) (string, error) {
			defer close(ended)
			close(loading)
			<-release
			return "old", nil
		}, func(result) { r.Error("done was called") })
		<-loading
		r.must(other.Invalidate(r.ctx, "x"))
		close(release)
		<-ended
		r.want(g, "x", "new", gives("new"))
		r.eventually("the refresh is over", func() bool { return g.Stats().Refreshes == 1 && g.Running() == 0 })
		r.want(g, "x", "new", fails(errSource))
		if r.stored("x") != "new" {
			r.Errorf("Redis has %q", r.stored("x"))
		}
	})
}

// Without the pause every reader would set out again for a source that is down.
func TestAFailedRefreshRestsForAMoment(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{ErrorHold: time.Second})
		r.put("x", "aging 1")
		var loads atomic.Int64
		broken := func(context.Context, bool) (string, error) { loads.Add(1); panic("ouch") }
		for range 40 {
			got := r.want(g, "x", "aging 1", fails(errSource))
			g.Refresh(r.ctx, "x", got, broken, func(result) { r.Error("done was called") })
			time.Sleep(100 * time.Millisecond)
		}
		if n := loads.Load(); n < 3 || n > 6 {
			r.Errorf("%d loads in 4 s, want about one a second", n)
		}
		r.checkStats(g, "of failed refreshes", func(s stats) bool { return s.Refreshes == uint64(loads.Load()) && s.Refreshed == 0 })
	})
}

// Without the bound, an expiry of everything at once would be a stampede of refreshes.
func TestRefreshesAreBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		g := r.group(opts{Refreshes: 2})
		release := make(chan struct{})
		hang := func(context.Context, bool) (string, error) { <-release; return "new", nil }
		var begun []bool
		for _, id := range []string{"x", "y", "z"} {
			begun = append(begun, g.Refresh(r.ctx, id, result{}, hang, nil))
		}
		if !begun[0] || !begun[1] || begun[2] {
			r.Errorf("begun: %v", begun)
		}
		close(release)
		r.eventually("they end", func() bool { return g.Running() == 0 })
		if !g.Refresh(r.ctx, "z", result{}, hang, nil) {
			r.Error("refused when the others had ended")
		}
		r.eventually("it ends", func() bool { return g.Running() == 0 })
		g.Close()
		if g.Refresh(r.ctx, "a", result{}, hang, nil) {
			r.Error("begun after Close")
		}
		if none := r.group(opts{Refreshes: -1}); none.Refresh(r.ctx, "a", result{}, hang, nil) {
			r.Error("begun though there are to be none")
		}
	})
}

// A refresh of one key that starts inside the load of another is nobody's inner
// call: nothing waits for it, so it may ask for that other key.
func TestARefreshStartedByALoadMayAskForItsKey(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		r.put("y", "aging 1")
		asked := make(chan error, 1)
		r.want(g, "x", "x1", func(ctx context.Context, _ bool) (string, error) {
			got, err := g.Do(ctx, "y", fails(errSource))
			g.Refresh(ctx, "y", got, func(ctx context.Context, _ bool) (string, error) {
				_, err := g.Do(ctx, "x", gives("x2"))
				asked <- err
				return "y2", nil
			}, nil)
			return "x1", err
		})
		if err := <-asked; err != nil {
			r.Error(err)
		}
		r.eventually("it ends", func() bool { return g.Running() == 0 })
	})
}

func TestASpareAnswersWhenTheLoadFails(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{ErrorHold: time.Minute})
		r.put("x", "spare 1")
		var loads atomic.Int64
		broken := func(context.Context, bool) (string, error) { loads.Add(1); return "", errSource }
		for range 5 {
			if got := r.want(g, "x", "spare 1", broken); got.Condition != mutexrebuild.Spare || got.Origin != mutexrebuild.Found {
				r.Errorf("got %+v", got)
			}
		}
		if loads.Load() != 1 {
			r.Errorf("%d loads while the error is held, want 1", loads.Load())
		}
		r.checkStats(g, "of spares", func(s stats) bool { return s.Spared == 5 && s.LoadErrors == 1 })

		// What is invalidated does not answer any more, however the load ends.
		other := r.group(opts{})
		r.must(other.Invalidate(r.ctx, "x"))
		r.want(g, "x", "new", gives("new"))

		// And a source that answers again beats the spare.
		r.put("y", "spare 1")
		r.want(other, "y", "new", gives("new"))
		if r.stored("y") != "new" {
			r.Errorf("Redis has %q", r.stored("y"))
		}
	})
}

// A caller who came after an invalidation must not get the spare that was read
// before it, though it joined the same flight. Without the cut this fails.
func TestASpareIsOnlyForThoseWhoCameBeforeItWasRead(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{ErrorHold: time.Minute}), r.group(opts{})
		r.put("x", "spare 1")
		loading, release := make(chan struct{}), make(chan struct{})
		var second result
		early := r.do(g, "x", func(context.Context, bool) (string, error) {
			close(loading)
			<-release
			return "", errSource
		}, nil)
		<-loading
		r.must(other.Invalidate(r.ctx, "x"))
		r.put("x", "new")
		late := r.do(g, "x", fails(errSource), &second)
		r.joined(g, "x", 2)
		close(release)
		early.mustBe(r, nil)
		late.mustBe(r, nil)
		if second.Value != "new" {
			r.Errorf("got %q", second.Value)
		}
	})
}

// A value that cannot be stored has overtaken the old one all the same. Left where
// it stands, that would go on to answer.
func TestWhatCannotBeStoredEndsWhatStandsThere(t *testing.T) {
	everywhere(t, func(r *rig) {
		unstored := framed
		unstored.Encode = func(id, value string) ([]byte, time.Duration, error) { return []byte(frame(id, value)), 0, nil }
		g, err := mutexrebuild.New(r.client(), "p", unstored, events{}, opts{RedisTimeout: 5 * time.Second})
		r.must(err)
		r.Cleanup(g.Close)
		for _, old := range []string{"aging 1", "spare 1"} {
			r.put("x", old)
			if old == "spare 1" {
				r.want(g, "x", "new", gives("new"))
			} else {
				g.Refresh(r.ctx, "x", r.want(g, "x", old, fails(errSource)), gives("new"), nil)
				r.eventually("the refresh is over", func() bool { return g.Running() == 0 })
			}
			if got := r.stored("x"); got != "" {
				r.Errorf("Redis still has %q", got)
			}
		}
	})
}

// A source that hangs must not make a caller come away with nothing.
func TestACallerWhoCanWaitNoLongerTakesTheSpare(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		r.put("x", "spare 1")
		loading, release := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(r.ctx)
		var got result
		waiting := r.doWith(ctx, g, "x", func(context.Context, bool) (string, error) {
			close(loading)
			<-release
			return "new", nil
		}, &got)
		<-loading
		cancel()
		waiting.mustBe(r, nil)
		if got.Value != "spare 1" || got.Condition != mutexrebuild.Spare {
			r.Errorf("got %+v", got)
		}
		close(release)
		r.eventually("the load is published", func() bool { return r.stored("x") == "new" })
		r.want(g, "x", "new", fails(errSource))
	})
}

// Those who join while the source hangs came after the spare was read. Without a
// second look they would get nothing, however many seconds the load goes on; and
// with the spare as it was read they would miss an invalidation.
func TestThoseWhoJoinLaterTakeTheSpareAsItIsThen(t *testing.T) {
	everywhere(t, func(r *rig) {
		g, other := r.group(opts{}), r.group(opts{})
		r.put("x", "spare 1")
		hang := make(chan struct{})
		loading := make(chan struct{})
		early := r.do(g, "x", func(context.Context, bool) (string, error) {
			close(loading)
			<-hang
			return "", errSource
		}, nil)
		<-loading
		takes := func(g *group, joined int, want string) {
			r.Helper()
			ctx, cancel := context.WithCancel(r.ctx)
			var got result
			late := r.doWith(ctx, g, "x", fails(errSource), &got)
			r.joined(g, "x", joined)
			r.eventually("it has looked", func() bool { return g.SpareFor("x") >= joined })
			cancel()
			late.mustBe(r, nil)
			if got.Value != want {
				r.Errorf("got %q, want %q", got.Value, want)
			}
		}
		takes(g, 2, "spare 1")
		takes(other, 1, "spare 1") // waits for the lease, as does the next
		r.put("x", "spare 2")
		takes(g, 3, "spare 2")
		takes(other, 2, "spare 2")
		close(hang)
		early.mustBe(r, nil)
	})
}
