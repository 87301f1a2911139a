package mutexrebuild_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/internal/redistest"
)

// Without the message, or without the note in the lease that somebody waits, the
// waiter is left to its polling.
func TestAWaiterIsWokenByAMessage(t *testing.T) {
	everywhere(t, func(r *rig) {
		builder, waiter := r.group(opts{}), r.group(opts{})
		db, at := newSource(), newGate()
		db.write("x", "v")
		built := r.do(builder, "x", db.gated("x", at), nil)
		<-at.reached
		found := r.do(waiter, "x", fails(errors.New("a second load")), nil)
		r.waits(waiter)
		began := time.Now()
		close(at.open)
		found.mustBe(r, nil)
		r.took(began, 0, "to be woken")
		built.mustBe(r, nil)
		r.checkStats(waiter, "it was not woken", func(s stats) bool {
			polls := s.Polls == 0 || r.server != nil // a loaded machine may be slower than the first poll
			return s.Wakes >= 1 && polls && s.Waits == s.Wakes+s.Polls
		})
	})
}

// Messages are lost with a link that fails. Without the safety net the waiter
// would stay until its WaitBudget.
func TestAWaiterPollsWhenMessagesAreLost(t *testing.T) {
	behaviour := func(r *rig, builder, waiter *group) {
		db, at := newSource(), newGate()
		db.write("x", "v")
		built := r.do(builder, "x", db.gated("x", at), nil)
		<-at.reached
		found := r.do(waiter, "x", fails(errors.New("a second load")), nil)
		r.eventually("it polls", func() bool { return waiter.Stats().Polls >= 5 })
		began := time.Now()
		close(at.open)
		found.mustBe(r, nil)
		r.took(began, 320*time.Millisecond, "to find the value")
		built.mustBe(r, nil)
		r.checkStats(waiter, "it was woken after all", func(s stats) bool { return s.Wakes == 0 })
	}
	t.Run("mini", func(t *testing.T) {
		inBubble(t, func(r *rig) {
			builder := r.group(opts{})
			silent := make(chan struct{})
			r.mini.Before(func(command string, _ []string) {
				if command == "SUBSCRIBE" {
					<-silent
				}
			})
			waiter := r.with(r.client(), opts{})
			behaviour(r, builder, waiter)
			if waiter.Live() {
				t.Error("it takes itself for live")
			}
			// go-redis writes to a subscription with a mutex held. If the server did not
			// read now, Close would wait for that, and with it the bubble's time.
			close(silent)
			synctest.Wait()
		})
	})
	t.Run("real", func(t *testing.T) {
		r := onServer(t)
		p := redistest.Proxy(t, r.server.Addr())
		waiter := r.with(p.Client(t), opts{})
		r.eventually("messages arrive", waiter.Live)
		p.DropMessages(true)
		behaviour(r, r.group(opts{}), waiter)
	})
}

func TestACallerWhoseContextHasEndedAsksNobody(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{})
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		_, err := rebuild(ctx, g, "x", func(context.Context) (string, error) { r.Error("it was loaded"); return "v", nil })
		if !errors.Is(err, context.Canceled) {
			r.Errorf("got %v", err)
		}
	})
}

type valueKeyOfContext struct{}

func TestALoadSeesItsCallersValuesAndADeadlineOfItsOwn(t *testing.T) {
	everywhere(t, func(r *rig) {
		g := r.group(opts{LoadTimeout: 7 * time.Second})
		ctx, cancel := context.WithTimeout(context.WithValue(r.ctx, valueKeyOfContext{}, "trace"), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := rebuild(ctx, g, "x", func(ctx context.Context) (string, error) {
			if got := ctx.Value(valueKeyOfContext{}); got != "trace" {
				r.Errorf("got the value %v", got)
			}
			deadline, ok := ctx.Deadline()
			if left := deadline.Sub(began); !ok || left < 7*time.Second || left > 10*time.Second {
				r.Errorf("the deadline is after %v", left)
			}
			return "v", nil
		})
		r.must(err)
	})
}
