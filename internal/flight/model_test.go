package flight_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/race"
)

// The model
//
// These tests take a Group through every interleaving of a few callers, writers and
// runners over a tiny world: a source with one row, and a Redis with its value and its
// lease. A step is what nobody can come in between: a command of Redis, a statement of
// the source, or a call of the Group. The row's versions are 1, 2, 3 …
//
//	caller   begins a Get and joins the flight that runs, or reads for itself: a value is the
//	         answer, one past its TTL its fallback | joins or opens the flight
//	writer   writes the row | Invalidate drops value and lease, and returns
//	runner   of a next flight: Decide | reads; a value: Finish
//	         Decide | begin; a value: Finish; no lease: waits until it is free
//	         Decide | loads, or fails: Finish | Decide | commits if it still has the lease | Finish
//	         a refused commit: TakeBack, then from begin again, or Finish
//	other    is another process: begin | loads | commits if it still has the lease
//
// After each interleaving every caller has an answer, of the flight it joined or of the
// next one; a published value answers all who had joined when its load ended; where loads
// fail and nobody invalidates the old value, each caller has that; and no caller gets a
// version older than the newest whose Invalidate had returned before its Get began.

// A model says who takes part, and what the runner does wrong.
type model struct {
	callers, writers, others int
	cached                   bool // Redis has version 1 at the beginning
	expired                  bool // which is past its TTL then
	fails                    bool // loads do
	looks                    bool // callers do not read for themselves: the flight that they open begins with that

	decideAfterRead    bool
	decideAfterCommit  bool
	undecidedCommit    bool // no Decide at the commit
	keepRefused        bool // no TakeBack after a refused commit
	lateJoinersToo     bool // forAll
	commitWithoutLease bool
	shareFallback      bool // a failed load gives the opener's fallback to all
	countFallback      bool // it gives it to those who had joined at the first Decide
}

func (m model) String() string {
	name := fmt.Sprintf("%d callers, %d writers, %d others", m.callers, m.writers, m.others)
	for _, is := range []struct {
		word string
		so   bool
	}{{"cached", m.cached}, {"expired", m.expired}, {"fails", m.fails}, {"looks", m.looks}} {
		if is.so {
			name += ", " + is.word
		}
	}
	return name
}

const maxOvertaken = 1 // overtaken commits after which the runner loads again

// A brought is the result of a flight: a version, and the flight's number.
type brought struct{ version, flight int }

// A world is one interleaving.
type world struct {
	model
	group   *flight.Group
	history strings.Builder // the calls of the group so far, which decide its state
	actors  []actor
	flights int // begun so far
	running int // the number of the one that callers join
	gets    []get

	row, value  int   // versions; value 0: there is none
	old         bool  // value is past its TTL
	lease       actor // nil: nobody has it
	invalidated int   // the newest version whose Invalidate has returned
}

// A get is what a caller did and may expect.
type get struct {
	caller  flight.Caller
	joined  int  // the flight that it joined; 0: it has its answer without one
	oldest  int  // the version that may answer it
	due     int  // the flight that has to answer it, if not 0
	read    bool // it has read for itself
	version int  // what it found: its answer, or its fallback
	opened  bool // the flight
	early   bool // it had joined at its flight's first Decide
	loaded  bool // and when its load ended
}

// An actor takes one step at a time. What its next steps do depends on its state and
// on that of the world.
type actor interface {
	enabled() bool
	step()
	state() string
}

func (m model) world() *world {
	w := &world{model: m, group: flight.NewGroup(-1), row: 1}
	if m.cached {
		w.value, w.old = 1, m.expired
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
	fmt.Fprint(&b, w.row, w.value, w.old, w.invalidated, w.history.String())
	for _, a := range w.actors {
		fmt.Fprint(&b, "|", a.state(), a == w.lease)
	}
	for _, g := range w.gets {
		fmt.Fprint(&b, "|", g.joined, g.oldest, g.due, g.read, g.version, g.early, g.loaded)
	}
	return b.String()
}

func (w *world) did(format string, args ...any) { fmt.Fprintf(&w.history, format+" ", args...) }

// begin returns the value, or gives a the lease.
func (w *world) begin(a actor) (value int) {
	if w.value == 0 || w.old {
		w.lease = a
		return 0
	}
	return w.value
}

// commit stores version if a still has the lease.
func (w *world) commit(a actor, version int) (published bool) {
	if w.lease != a && !w.commitWithoutLease {
		return false
	}
	w.value, w.old, w.lease = version, false, nil
	return true
}

// wrong says what is wrong with the answers, "" if nothing is. It is for the end: Wait
// does not block any more.
func (w *world) wrong() string {
	ended, end := context.WithCancel(context.Background())
	end()
	for i, g := range w.gets {
		got := brought{version: g.version}
		var err error
		if g.joined != 0 {
			var result any
			result, _, err = g.caller.Wait(ended, flight.Patience{})
			got, _ = result.(brought)
		}
		if errors.Is(err, errBroken) {
			if got.version, got.flight = w.fallback(g), g.joined; got.version != 0 {
				err = nil
			} else if w.invalidated > 0 {
				continue // there is no old value any more
			}
		}
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

// fallback is the version that a caller takes whose load has failed.
func (w *world) fallback(g get) (version int) {
	switch {
	case w.shareFallback, w.countFallback && g.early:
		for _, other := range w.gets {
			if other.joined == g.joined && other.opened {
				return other.version
			}
		}
	case w.countFallback:
	case g.read:
		return g.version
	default:
		return w.value // it reads now
	}
	return 0
}

// errBroken is the error of a load.
var errBroken = errors.New("broken")

// callers come one after another: which is which makes no difference.
type callers struct{ *world }

func (c *callers) enabled() bool { return len(c.gets) < c.model.callers }
func (c *callers) state() string { return fmt.Sprint(len(c.gets)) }

func (c *callers) step() {
	g := get{oldest: c.invalidated}
	if !c.looks {
		place, _, err := c.group.Join(context.Background(), "id", flight.Callers{}, nil)
		switch {
		case err != nil:
			panic(err)
		case place.Flight != nil:
			c.did("join%d", c.invalidated)
			g.caller, g.joined = place, c.running
		default: // nobody can come between these two who would make a difference to the read
			g.read, g.version = true, c.value
			if g.version == 0 || c.old {
				c.actors = append(c.actors, &joiner{world: c.world, at: len(c.gets)})
			}
		}
	}
	c.gets = append(c.gets, g)
	if c.looks {
		c.join(len(c.gets) - 1)
	}
}

// join has a caller join or open the flight.
func (w *world) join(at int) {
	g := &w.gets[at]
	place, opened, err := w.group.Join(context.Background(), "id", flight.Callers{}, newFlight)
	if err != nil {
		panic(err)
	}
	w.did("join%d", g.oldest)
	if g.opened = opened; opened {
		w.run(place.Flight, false)
	}
	g.caller, g.joined = place, w.running
}

// A joiner is a caller who has read for itself and found no answer.
type joiner struct {
	*world
	at   int // in gets
	over bool
}

func (j *joiner) enabled() bool { return !j.over }
func (j *joiner) state() string { return fmt.Sprint("j", j.at, j.over) }

func (j *joiner) step() {
	j.over = true
	j.join(j.at)
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
	flight    *flight.Flight
	number    int // of the flight
	name      string
	next      func()
	version   int // read or loaded
	began     int // the last who had joined when the load began
	overtaken int
}

// run starts the runner of a flight.
func (w *world) run(f *flight.Flight, next bool) {
	w.flights++
	w.running = w.flights
	r := &runner{world: w, flight: f, number: w.flights}
	w.actors = append(w.actors, r)
	switch {
	case !w.looks && !next:
		r.ask()
	case w.decideAfterRead:
		r.then("read", r.read)
	default:
		r.then("look", func() { r.decide(); r.then("read", r.read) })
	}
}

func (r *runner) then(name string, next func()) { r.name, r.next = name, next }

func (r *runner) enabled() bool {
	return r.next != nil && (r.name != "begin" || r.lease == nil || r.value != 0)
}

func (r *runner) state() string {
	return fmt.Sprint("r", r.number, r.name, r.version, r.began, r.overtaken)
}

func (r *runner) step() { r.next() }

func (r *runner) decide() int { r.did("decide"); return r.flight.Decide() }

func (r *runner) read() {
	switch r.version = r.value; {
	case r.version == 0 || r.old:
		r.ask()
	case r.decideAfterRead:
		r.then("decide", func() { r.decide(); r.then("finish", r.finish) })
	default:
		r.then("finish", r.finish)
	}
}

func (r *runner) ask() { r.then("ask", r.decideAndBegin) }

func (r *runner) decideAndBegin() {
	r.decide()
	if r.began == 0 && r.overtaken == 0 {
		for i := range r.gets {
			r.gets[i].early = r.gets[i].early || r.gets[i].joined == r.number
		}
	}
	r.then("begin", func() {
		if r.version = r.begin(r); r.version != 0 {
			r.then("finish", r.finish)
			return
		}
		r.then("granted", func() { r.began = r.decide(); r.then("load", r.load) })
	})
}

func (r *runner) load() {
	if r.fails {
		r.then("fail", func() {
			r.did("fail")
			r.then("", nil)
			if r.lease == r {
				r.lease = nil
			}
			r.flight.Finish(brought{}, errBroken, nil)
		})
		return
	}
	r.version = r.row
	for i := range r.gets {
		r.gets[i].loaded = r.gets[i].joined == r.number
	}
	if r.undecidedCommit || r.decideAfterCommit {
		r.then("commit", r.publish)
		return
	}
	r.then("loaded", func() { r.decide(); r.then("commit", r.publish) })
}

func (r *runner) publish() {
	switch {
	case r.commit(r, r.version):
		for i := range r.gets {
			if r.gets[i].joined == r.number && r.gets[i].loaded {
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
		if r.overtaken++; r.overtaken <= maxOvertaken {
			r.ask()
		}
	}
}

func (r *runner) finish() {
	r.did("finish%d", r.version)
	r.then("", nil)
	if late := r.flight.Finish(brought{r.version, r.number}, nil, func() bool { return r.lateJoinersToo }); late != nil {
		r.run(late, true)
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
	if race.Detector {
		t.Skip("it computes")
	}
	for _, m := range []model{
		{callers: 3, writers: 2, looks: true},
		{callers: 3, writers: 2, looks: true, cached: true},
		{callers: 2, writers: 2},
		{callers: 3, writers: 1, cached: true},
		{callers: 2, writers: 2, cached: true, expired: true},
		{callers: 2, writers: 2, cached: true, expired: true, fails: true},
		{callers: 3, writers: 1, cached: true, expired: true, fails: true},
		{callers: 4, cached: true, expired: true, fails: true},
		{callers: 2, writers: 1, others: 1},
		{callers: 2, writers: 2, others: 1},
	} {
		t.Run(m.String(), func(t *testing.T) {
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
	if race.Detector {
		t.Skip("it computes")
	}
	for name, test := range map[string]struct {
		model
		wrong string // a part of what is found
	}{
		"decides after the read":           {model{looks: true, cached: true, decideAfterRead: true}, "after Invalidate"},
		"decides after the commit":         {model{decideAfterCommit: true}, "after Invalidate"},
		"does not decide at the commit":    {model{undecidedCommit: true}, "had to wait"},
		"keeps the decision of a refusal":  {model{keepRefused: true}, "after Invalidate"},
		"answers late joiners":             {model{looks: true, cached: true, lateJoinersToo: true}, "after Invalidate"},
		"publishes without the lease":      {model{commitWithoutLease: true}, "after Invalidate"},
		"gives a fallback to late joiners": {model{cached: true, expired: true, fails: true, shareFallback: true}, "after Invalidate"},
		"forgets who joins after a Decide": {model{cached: true, expired: true, fails: true, countFallback: true}, "has no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.callers, test.writers = 2, 2; test.countFallback {
				test.writers = 0
			}
			_, wrong := test.explore()
			if !strings.Contains(wrong, test.wrong) {
				t.Errorf("got %q, want what says %q", wrong, test.wrong)
			}
			t.Log(wrong)
		})
	}
}
