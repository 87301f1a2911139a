package flight_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/flight"
)

// The model
//
// These tests take a Group through every interleaving of a few callers, writers and
// runners over a tiny world: a source with one row, and a Redis with its value and its
// lease. A step is what nobody can come in between: a command of Redis, a statement of
// the source, or a call of the Group. The row's versions are 1, 2, 3 …
//
//	caller   begins a Get and joins
//	writer   writes the row | Invalidate drops value and lease, and returns
//	runner   Decide | reads; a value: Finish
//	         Decide | begin; a value: Finish; no lease: waits until it is free
//	         Decide | loads | Decide | commits if it still has the lease | Finish
//	         a refused commit: TakeBack, then from begin again, or Finish
//	other    is another process: begin | loads | commits if it still has the lease
//
// After each interleaving every caller has an answer, of the flight it joined or of the
// next one; a published value answers all who had joined when its load ended; and no
// caller gets a version older than the newest whose Invalidate had returned before its
// Get began.

// A model says who takes part, and what the runner does wrong.
type model struct {
	callers, writers, others int
	cached                   bool // Redis has version 1 at the beginning

	decideAfterRead    bool
	decideAfterCommit  bool
	undecidedCommit    bool // no Decide at the commit
	keepRefused        bool // no TakeBack after a refused commit
	lateJoinersToo     bool // forAll
	commitWithoutLease bool
}

const maxRefusals = 1 // refused commits after which the runner loads again

// A brought is the result of a flight: a version, and the flight's number.
type brought struct{ version, flight int }

// A world is one interleaving.
type world struct {
	model
	group   *flight.Group[brought]
	history strings.Builder // the calls of the group so far, which decide its state
	actors  []actor
	flights int // begun so far
	gets    []get

	row, value  int   // versions; value 0: there is none
	lease       actor // nil: nobody has it
	invalidated int   // the newest version whose Invalidate has returned
}

// A get is what a caller did and may expect.
type get struct {
	caller flight.Caller[brought]
	joined int // the flight that it joined
	oldest int // the version that may answer it
	due    int // the flight that has to answer it, if not 0
}

// An actor takes one step at a time. What its next steps do depends on its state and
// on that of the world.
type actor interface {
	enabled() bool
	step()
	state() string
}

func (m model) world() *world {
	w := &world{model: m, group: flight.NewGroup[brought](-1), row: 1}
	if m.cached {
		w.value = 1
	}
	w.actors = append(w.actors, &callers{world: w})
	var before *writer
	for range m.writers {
		before = &writer{world: w, before: before}
		w.actors = append(w.actors, before)
	}
	for range m.others {
		w.actors = append(w.actors, &other{world: w})
	}
	return w
}

func (w *world) enabled() (ready []actor) {
	for _, a := range w.actors {
		if a.enabled() {
			ready = append(ready, a)
		}
	}
	return ready
}

// state is all that the rest of an interleaving depends on.
func (w *world) state() string {
	var b strings.Builder
	fmt.Fprint(&b, w.row, w.value, w.invalidated, w.history.String())
	for _, a := range w.actors {
		fmt.Fprint(&b, "|", a.state(), a == w.lease)
	}
	return b.String()
}

func (w *world) did(format string, args ...any) { fmt.Fprintf(&w.history, format+" ", args...) }

// begin returns the value, or gives a the lease.
func (w *world) begin(a actor) (value int) {
	if w.value == 0 {
		w.lease = a
	}
	return w.value
}

// commit stores version if a still has the lease.
func (w *world) commit(a actor, version int) (published bool) {
	if w.lease != a && !w.commitWithoutLease {
		return false
	}
	w.value, w.lease = version, nil
	return true
}

// wrong says what is wrong with the answers, "" if nothing is. It is for the end: Wait
// does not block any more.
func (w *world) wrong() string {
	ended, end := context.WithCancel(context.Background())
	end()
	for i, g := range w.gets {
		got, _, err := g.caller.Wait(ended, flight.Patience[brought]{})
		switch {
		case err != nil:
			return fmt.Sprintf("caller %d has no answer: %v", i+1, err)
		case got.version < g.oldest:
			return fmt.Sprintf("caller %d got version %d after Invalidate of %d had returned", i+1, got.version, g.oldest)
		case got.flight > g.joined+1:
			return fmt.Sprintf("caller %d joined flight %d and was answered by flight %d", i+1, g.joined, got.flight)
		case g.due != 0 && got.flight != g.due:
			return fmt.Sprintf("caller %d had to wait for flight %d although %d published a value", i+1, got.flight, g.due)
		}
	}
	return ""
}

// callers come one after another: which is which makes no difference.
type callers struct{ *world }

func (c *callers) enabled() bool { return len(c.gets) < c.model.callers }
func (c *callers) state() string { return fmt.Sprint(len(c.gets)) }

func (c *callers) step() {
	place, role, err := c.group.Join(context.Background(), "id")
	if err != nil {
		panic(err)
	}
	c.did("join%d", c.invalidated)
	if role == flight.Opened {
		c.run(place.Flight)
	}
	c.gets = append(c.gets, get{caller: place, joined: c.flights, oldest: c.invalidated})
}

// A writer begins after the writer before it: which is which makes no difference.
type writer struct {
	*world
	before  *writer
	version int // that it wrote, 0 before that
	over    bool
}

func (a *writer) enabled() bool { return !a.over && (a.before == nil || a.before.version > 0) }
func (a *writer) state() string { return fmt.Sprint("w", a.version, a.over) }

func (a *writer) step() {
	if a.version == 0 {
		a.row++
		a.version = a.row
		return
	}
	a.value, a.lease, a.over = 0, nil, true
	a.invalidated = max(a.invalidated, a.version)
}

type other struct {
	*world
	at      int
	version int
}

func (a *other) enabled() bool {
	return a.at > 0 && a.at < 3 || a.at == 0 && a.lease == nil && a.value == 0
}
func (a *other) state() string { return fmt.Sprint("o", a.at, a.version) }

func (a *other) step() {
	switch a.at++; a.at {
	case 1:
		a.begin(a)
	case 2:
		a.version = a.row
	case 3:
		a.commit(a, a.version)
	}
}

// A runner runs one flight. next is its next step, nil at the end.
type runner struct {
	*world
	flight   *flight.Flight[brought]
	number   int // of the flight
	name     string
	next     func()
	version  int // read or loaded
	began    int // the last who had joined when the load began
	loaded   int // how many had when it ended
	refusals int
}

// run starts the runner of a flight.
func (w *world) run(f *flight.Flight[brought]) {
	w.flights++
	r := &runner{world: w, flight: f, number: w.flights}
	w.actors = append(w.actors, r)
	if w.decideAfterRead {
		r.then("read", r.read)
	} else {
		r.then("look", func() { r.decide(); r.then("read", r.read) })
	}
}

func (r *runner) then(name string, next func()) { r.name, r.next = name, next }

func (r *runner) enabled() bool {
	return r.next != nil && (r.name != "begin" || r.lease == nil || r.value != 0)
}

func (r *runner) state() string {
	return fmt.Sprint("r", r.number, r.name, r.version, r.began, r.loaded, r.refusals)
}

func (r *runner) step() { r.next() }

func (r *runner) decide() int { r.did("decide"); return r.flight.Decide() }

func (r *runner) read() {
	switch r.version = r.value; {
	case r.version == 0:
		r.then("ask", r.ask)
	case r.decideAfterRead:
		r.then("decide", func() { r.decide(); r.then("finish", r.finish) })
	default:
		r.then("finish", r.finish)
	}
}

func (r *runner) ask() {
	r.decide()
	r.then("begin", func() {
		if r.version = r.begin(r); r.version != 0 {
			r.then("finish", r.finish)
			return
		}
		r.then("granted", func() { r.began = r.decide(); r.then("load", r.load) })
	})
}

func (r *runner) load() {
	r.version, r.loaded = r.row, len(r.gets)
	if r.undecidedCommit || r.decideAfterCommit {
		r.then("commit", r.publish)
		return
	}
	r.then("loaded", func() { r.decide(); r.then("commit", r.publish) })
}

func (r *runner) publish() {
	switch {
	case r.commit(r, r.version):
		for i := range r.gets[:r.loaded] {
			if r.gets[i].joined == r.number {
				r.gets[i].due = r.number
			}
		}
		r.then("finish", r.finish)
		if r.decideAfterCommit {
			r.then("decide", func() { r.decide(); r.then("finish", r.finish) })
		}
	default:
		if !r.keepRefused {
			r.did("decidedAt%d", r.began)
			r.flight.TakeBack(r.began)
		}
		r.then("finish", r.finish)
		if r.refusals++; r.refusals <= maxRefusals {
			r.then("ask", r.ask)
		}
	}
}

func (r *runner) finish() {
	r.did("finish%d", r.version)
	r.then("", nil)
	if late := r.flight.Finish(brought{r.version, r.number}, nil, func() bool { return r.lateJoinersToo }); late != nil {
		r.run(late)
	}
}

// explore takes m through every interleaving and returns what is wrong after the first
// that ends badly, "" if all end well.
//
// A Group cannot be copied. So each interleaving starts from the beginning with the
// choices of the last one, except for the last choice that can still be changed. One
// that comes to a state that was seen before is given up.
func (m model) explore() (states int, wrong string) {
	type choice struct{ taken, of int }
	var choices []choice
	seen := map[string]bool{}
	for {
		w := m.world()
		for depth := 0; ; depth++ {
			ready := w.enabled()
			if len(ready) == 0 {
				if wrong := w.wrong(); wrong != "" {
					return len(seen), wrong + ", after: " + w.history.String()
				}
				break
			}
			if depth == len(choices) {
				state := w.state()
				if seen[state] {
					break
				}
				seen[state] = true
				choices = append(choices, choice{0, len(ready)})
			}
			ready[choices[depth].taken].step()
		}
		for len(choices) > 0 && choices[len(choices)-1].taken == choices[len(choices)-1].of-1 {
			choices = choices[:len(choices)-1]
		}
		if len(choices) == 0 {
			return len(seen), ""
		}
		choices[len(choices)-1].taken++
	}
}

func TestNoInterleavingGivesACallerAnInvalidatedValue(t *testing.T) {
	for _, m := range []model{
		{callers: 3, writers: 2},
		{callers: 3, writers: 2, cached: true},
		{callers: 2, writers: 1, others: 1},
		{callers: 2, writers: 2, others: 1},
	} {
		t.Run(fmt.Sprintf("%d callers, %d writers, %d others, cached %v", m.callers, m.writers, m.others, m.cached), func(t *testing.T) {
			t.Parallel()
			states, wrong := m.explore()
			if wrong != "" {
				t.Error(wrong)
			}
			t.Logf("%d states", states)
		})
	}
}

// Each of these leaves a step of the join sequence out, or takes it at the wrong time.
// An explorer that finds nothing wrong with them would prove nothing above.
func TestTheExplorerFindsWhatAWrongRunnerDoes(t *testing.T) {
	for name, test := range map[string]struct {
		model
		wrong string // a part of what is found
	}{
		"decides after the read":          {model{cached: true, decideAfterRead: true}, "after Invalidate"},
		"decides after the commit":        {model{decideAfterCommit: true}, "after Invalidate"},
		"does not decide at the commit":   {model{undecidedCommit: true}, "had to wait"},
		"keeps the decision of a refusal": {model{keepRefused: true}, "after Invalidate"},
		"answers late joiners":            {model{cached: true, lateJoinersToo: true}, "after Invalidate"},
		"publishes without the lease":     {model{commitWithoutLease: true}, "after Invalidate"},
	} {
		t.Run(name, func(t *testing.T) {
			test.callers, test.writers = 2, 2
			_, wrong := test.explore()
			if !strings.Contains(wrong, test.wrong) {
				t.Errorf("got %q, want what says %q", wrong, test.wrong)
			}
			t.Log(wrong)
		})
	}
}
