package guard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/levee-go/levee/internal/guard"
)

// model says what a breaker may do, from its documentation alone. Where the
// documentation leaves room (the jitter, the tenth of the window that is leaving)
// so does the model: it then follows the breaker.
type model struct {
	o      guard.Options
	state  guard.State
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
	return m.state != guard.Open || since > m.o.Cooldown*12/10, m.state == guard.Open && since < m.o.Cooldown*8/10
}

// passed notes a call that passed and how it ended. It returns the states the
// breaker may now be in.
func (m *model) passed(now time.Time, failed, excluded bool) []guard.State {
	if m.state == guard.Open {
		m.state = guard.HalfOpen
	}
	switch {
	case excluded:
		return []guard.State{m.state}
	case m.state == guard.HalfOpen && failed:
		return []guard.State{guard.Open}
	case m.state == guard.HalfOpen:
		return []guard.State{guard.Closed}
	}
	m.judged = append(m.judged, judged{now, failed})
	if !failed {
		return []guard.State{guard.Closed}
	}
	var may []guard.State
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

func (m *model) verdict(from int) guard.State {
	failures := 0
	for _, j := range m.judged[from:] {
		if j.failed {
			failures++
		}
	}
	n := len(m.judged) - from
	if n >= m.o.MinRequests && float64(failures) >= m.o.FailureRatio*float64(n) {
		return guard.Open
	}
	return guard.Closed
}

func (m *model) follow(now time.Time, s guard.State) {
	if s != m.state {
		m.judged = nil
	}
	if s == guard.Open {
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
		o := guard.Options{
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

func (m *model) compare(b *guard.Breaker, s step) error {
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
	refused := errors.Is(err, guard.ErrOpen)
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
