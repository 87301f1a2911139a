package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/breaker"
)

// model says what a breaker may do, from its documentation alone. Where the
// documentation leaves room (the jitter, the tenth of the window that is leaving)
// so does the model: it then follows the breaker.
type model struct {
	o      breaker.Options
	state  breaker.State
	opened time.Time
	judged []judged // since it last closed
}

type judged struct {
	at     time.Time
	failed bool
}

// admits reports whether a call must, or must not, pass now.
func (m *model) admits(now time.Time) (must, mustNot bool) {
	since := now.Sub(m.opened)
	return m.state != breaker.Open || since > m.o.Cooldown*12/10, m.state == breaker.Open && since < m.o.Cooldown*8/10
}

// passed notes a call that passed and how it ended. It returns the states the
// breaker may now be in.
func (m *model) passed(now time.Time, failed, excluded bool) []breaker.State {
	if m.state == breaker.Open {
		m.state = breaker.HalfOpen
	}
	switch {
	case excluded:
		return []breaker.State{m.state}
	case m.state == breaker.HalfOpen && failed:
		return []breaker.State{breaker.Open}
	case m.state == breaker.HalfOpen:
		return []breaker.State{breaker.Closed}
	}
	m.judged = append(m.judged, judged{now, failed})
	if !failed {
		return []breaker.State{breaker.Closed}
	}
	var may []breaker.State
	// All that the window surely holds, and what it may hold beyond that: the
	// oldest first, so each number of those that have left is a possible window.
	for from := range m.judged {
		age := now.Sub(m.judged[from].at)
		if age > m.o.Window+m.o.Window/10 {
			continue
		}
		may = append(may, m.verdict(from))
		if age < m.o.Window*9/10 {
			break
		}
	}
	return may
}

func (m *model) verdict(from int) breaker.State {
	failures := 0
	for _, j := range m.judged[from:] {
		if j.failed {
			failures++
		}
	}
	n := len(m.judged) - from
	if n >= m.o.MinRequests && float64(failures) >= m.o.FailureRatio*float64(n) {
		return breaker.Open
	}
	return breaker.Closed
}

func (m *model) follow(now time.Time, s breaker.State) {
	if s != m.state {
		m.judged = nil
	}
	if s == breaker.Open {
		m.opened = now
	}
	m.state = s
}

// step is a pause and then a call.
type step struct {
	pause        time.Duration
	failed, left bool
}

func TestTheBreakerDoesWhatItsModelDoes(t *testing.T) {
	steps := rapid.SliceOf(rapid.Custom(func(t *rapid.T) step {
		return step{
			pause:  time.Duration(rapid.SampledFrom([]int{0, 0, 1, 300, 2000, 4500, 7000}).Draw(t, "ms")) * time.Millisecond,
			failed: rapid.Bool().Draw(t, "failed"),
			left:   rapid.IntRange(0, 4).Draw(t, "left") == 0,
		}
	}))
	rapid.Check(t, func(rt *rapid.T) {
		o := breaker.Options{
			FailureRatio: rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(rt, "ratio"),
			MinRequests:  rapid.IntRange(1, 8).Draw(rt, "min"),
			Window:       10 * time.Second,
			Cooldown:     5 * time.Second,
		}
		schedule := steps.Draw(rt, "steps")
		var err error
		synctest.Test(t, func(t *testing.T) { // which rapid's own T cannot enter
			b, m := newBreaker(t, o), &model{o: o}
			for i, s := range schedule {
				time.Sleep(s.pause)
				if err = m.compare(b, s); err != nil {
					err = fmt.Errorf("step %d: %w", i, err)
					return
				}
			}
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func (m *model) compare(b *breaker.Breaker, s step) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	must, mustNot := m.admits(time.Now())
	err := b.Do(ctx, func(ctx context.Context) error {
		if s.left {
			cancel()
			return ctx.Err()
		}
		if s.failed {
			return errSource
		}
		return nil
	})
	refused := errors.Is(err, breaker.ErrOpen)
	if refused && must || !refused && mustNot {
		return fmt.Errorf("refused: %v in state %v, %v after it opened", refused, m.state, time.Since(m.opened))
	}
	if refused {
		return nil
	}
	may, got := m.passed(time.Now(), s.failed, s.left), b.State()
	if !slices.Contains(may, got) {
		return fmt.Errorf("the breaker is %v, the model allows %v", got, may)
	}
	m.follow(time.Now(), got)
	return nil
}
