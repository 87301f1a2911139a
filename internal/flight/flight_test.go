package flight_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/levee-go/levee/internal/flight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	group    = flight.Group
	run      = flight.Flight
	caller   = flight.Caller
	patience = flight.Patience
)

func newGroup() *group { return flight.NewGroup(-1) }

func newFlight() *run { return &run{} }

// What a caller is told who joins.
const opened, waits = true, false

// join joins the flight of "id" and checks whether the caller has opened it.
func join(t *testing.T, g *group, want bool) caller {
	t.Helper()
	c, opened, err := g.Join(t.Context(), "id", flight.Callers{}, newFlight)
	if err != nil || opened != want {
		t.Fatalf("Join: opened %v, %v, want %v", opened, err, want)
	}
	return c
}

// An answer is what Wait returned.
type answer struct {
	result string
	first  bool
	err    error
}

// wait has c wait on a goroutine of its own.
func wait(ctx context.Context, c caller, p patience) *pending {
	w := &pending{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		var result any
		result, w.answer.first, w.answer.err = c.Wait(ctx, p)
		w.answer.result, _ = result.(string)
		w.at = time.Now()
	}()
	return w
}

// A pending is a caller who waits. To be used in a bubble.
type pending struct {
	done   chan struct{}
	answer answer
	at     time.Time // when Wait returned
}

func (w *pending) over() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *pending) want(t *testing.T, want answer) {
	t.Helper()
	if !w.over() {
		t.Errorf("the caller still waits, want %+v", want)
		return
	}
	if w.answer.result != want.result || w.answer.first != want.first || !errors.Is(w.answer.err, want.err) {
		t.Errorf("got %+v, want %+v", w.answer, want)
	}
}

func (w *pending) waits(t *testing.T) {
	t.Helper()
	if w.over() {
		t.Errorf("the caller does not wait any more: got %+v", w.answer)
	}
}

// now has c wait where no time may pass, since the answer is there.
func now(t *testing.T, c caller, want answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	brought, first, err := c.Wait(ctx, patience{})
	result, _ := brought.(string)
	if got := (answer{result, first, err}); result != want.result || first != want.first || !errors.Is(err, want.err) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// This is the schedule of the package's doc. It fails if a late joiner gets the result.
func TestAValueIsNotForWhoJoinedAfterItWasRead(t *testing.T) {
	g := newGroup()
	a := join(t, g, opened)
	a.Flight.Decide()
	read := "v1"           // from Redis
	b := join(t, g, waits) // after an invalidation of v1
	next := a.Flight.Finish(read, nil, nil)
	now(t, a, answer{"v1", true, nil})

	if next == nil {
		t.Fatal("nobody is to run a flight for the caller who came late")
	}
	next.Decide()
	if more := next.Finish("v2", nil, nil); more != nil {
		t.Error("the second flight left callers over, want none")
	}
	now(t, b, answer{"v2", true, nil})
}

func TestTheNextFlightCarriesAllWhoCameLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		early := []caller{join(t, g, opened), join(t, g, waits)}
		f := early[0].Flight
		if n := f.Decide(); n != 2 {
			t.Errorf("decided for %d callers, want 2", n)
		}
		var late []*pending
		for range 3 {
			late = append(late, wait(t.Context(), join(t, g, waits), patience{}))
		}
		next := f.Finish("v1", nil, nil)
		now(t, early[0], answer{"v1", true, nil})
		now(t, early[1], answer{"v1", false, nil})
		if n := g.Joined("id"); n != 3 {
			t.Errorf("the next flight has %d callers, want the 3 who came late", n)
		}
		// Who joins now is a caller of the next flight, behind those three.
		late = append(late, wait(t.Context(), join(t, g, waits), patience{}))
		next.Decide()
		last := join(t, g, waits)
		third := next.Finish("v2", nil, nil)
		for i, w := range late {
			w.want(t, answer{"v2", i == 0, nil})
		}
		third.Decide()
		if third.Finish("v3", nil, nil) != nil {
			t.Error("the third flight left callers over, want none")
		}
		now(t, last, answer{"v3", true, nil})
		if n := g.Joined("id"); n != 0 {
			t.Errorf("%d callers are left, want 0", n)
		}
	})
}

// The value of a refused commit proves nothing to callers who joined after its load
// began: an invalidation that they know of may be the reason for the refusal.
func TestTakeBackGoesBackToAnEarlierDecision(t *testing.T) {
	g := newGroup()
	a := join(t, g, opened)
	f := a.Flight
	began := f.Decide()
	b := join(t, g, waits)
	f.Decide() // before the commit
	f.TakeBack(began)
	next := f.Finish("v1", nil, nil)
	now(t, a, answer{"v1", true, nil})
	if next == nil {
		t.Fatal("b got a value that was not published")
	}
	next.Decide()
	next.Finish("v2", nil, nil)
	now(t, b, answer{"v2", true, nil})
}

func TestAFlightThatNeverDecidedAnswersNobody(t *testing.T) {
	g := newGroup()
	a := join(t, g, opened)
	next := a.Flight.Finish("v1", nil, nil)
	if next == nil {
		t.Fatal("a value that was not decided has answered")
	}
	next.Decide()
	next.Finish("v2", nil, nil)
	now(t, a, answer{"v2", true, nil})
}

// An error carries no value that could be old. If late joiners had to run the load
// again, a source that is down would be asked twice.
func TestAnErrorGoesToAll(t *testing.T) {
	g := newGroup()
	a := join(t, g, opened)
	a.Flight.Decide()
	b := join(t, g, waits)
	if next := a.Flight.Finish("half a value", io.EOF, nil); next != nil {
		t.Error("the error left callers over, want none")
	}
	for i, c := range []caller{a, b} {
		now(t, c, answer{"half a value", i == 0, io.EOF})
	}
}

func TestForAllGivesTheResultToLateJoinersToo(t *testing.T) {
	for name, test := range map[string]struct {
		late   bool // somebody joins after Decide
		forAll bool
		asked  bool
	}{
		"for all":        {late: true, forAll: true, asked: true},
		"not for all":    {late: true, forAll: false, asked: true},
		"nobody is late": {late: false, forAll: true, asked: false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup()
			a := join(t, g, opened)
			a.Flight.Decide()
			var b caller
			if test.late {
				b = join(t, g, waits)
			}
			asked, joining := false, make(chan struct{})
			var others sync.WaitGroup
			next := a.Flight.Finish("v1", nil, func() bool {
				asked = true
				// Nobody can join now: this caller gets into the next flight, or opens one.
				others.Go(func() { close(joining); _, _, _ = g.Join(t.Context(), "id", flight.Callers{}, newFlight) })
				<-joining
				return test.forAll
			})
			others.Wait()
			if asked != test.asked {
				t.Errorf("forAll was asked: %v, want %v", asked, test.asked)
			}
			now(t, a, answer{"v1", true, nil})
			switch {
			case !test.late:
			case test.forAll:
				now(t, b, answer{"v1", false, nil})
				if next != nil {
					t.Error("callers are left over, want none")
				}
			case next == nil:
				t.Error("the late joiner got the result")
			default:
				next.Decide()
				next.Finish("v2", nil, nil)
				now(t, b, answer{"v2", true, nil})
			}
		})
	}
}

// One caller's cancellation is that caller's alone.
func TestACallerLeavesWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		a := join(t, g, opened)
		cause := errors.New("the user has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		stays := wait(t.Context(), a, patience{})
		leaves := wait(ctx, join(t, g, waits), patience{})
		leaves.waits(t)
		cancel(cause)
		leaves.want(t, answer{"", false, context.Canceled})
		leaves.want(t, answer{"", false, cause})
		stays.waits(t)
		a.Flight.Decide()
		if next := a.Flight.Finish("v1", nil, nil); next != nil {
			t.Error("a flight is left over, want none")
		}
		stays.want(t, answer{"v1", true, nil})
	})
}

// A result that is there answers even a caller whose context has ended.
func TestAResultThatIsThereAnswersACallerWhoComesLateForIt(t *testing.T) {
	g := newGroup()
	a := join(t, g, opened)
	a.Flight.Decide()
	a.Flight.Finish("v1", nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if result, _, err := a.Wait(ctx, patience{}); result != "v1" || err != nil {
			t.Fatalf("got %q, %v, want v1", result, err)
		}
	}
}

func TestIdsHaveFlightsOfTheirOwn(t *testing.T) {
	g := newGroup()
	for _, id := range []string{"a", "b"} {
		if _, opened, err := g.Join(t.Context(), id, flight.Callers{}, newFlight); !opened || err != nil {
			t.Errorf("%s: got %v, %v, want a flight that was opened", id, opened, err)
		}
	}
	if g.Joined("a") != 1 || g.Joined("b") != 1 || g.Joined("c") != 0 {
		t.Errorf("got %d, %d, %d callers of a, b, c; want 1, 1, 0", g.Joined("a"), g.Joined("b"), g.Joined("c"))
	}
}

// The schedule of nested callers in the package's doc. Catches a load that joins the flight of
// a caller who waits for what that load has.
func TestNestedCallersHaveFlightsOfTheirOwn(t *testing.T) {
	type key struct{}
	g := newGroup()
	g.Nested = func(ctx context.Context) bool { return ctx.Value(key{}) != nil }
	nested := context.WithValue(t.Context(), key{}, true)
	outside := join(t, g, opened)
	if c, _, err := g.Join(nested, "id", flight.Callers{}, nil); c.Flight != nil || err != nil {
		t.Errorf("a nested caller has joined the flight of others: %v", err)
	}
	inside, opens, err := g.Join(nested, "id", flight.Callers{}, newFlight)
	if err != nil || !opens {
		t.Fatalf("opened %v, %v", opens, err)
	}
	other, _, err := g.Join(nested, "id", flight.Callers{}, nil)
	if err != nil || other.Flight != inside.Flight {
		t.Errorf("the second nested caller: joined %v, %v", other.Flight != nil, err)
	}
	inside.Flight.Decide()
	inside.Flight.Finish("inside", nil, nil)
	now(t, inside, answer{"inside", true, nil})
	now(t, other, answer{"inside", false, nil})
	late := join(t, g, waits)
	outside.Flight.Decide()
	outside.Flight.Finish("outside", nil, nil)
	now(t, outside, answer{"outside", true, nil})
	now(t, late, answer{"outside", false, nil})
	if running, _ := g.Peek("id"); running {
		t.Error("a flight is left")
	}
}

// Those who come too late for a nested flight are nested callers too. Catches a next flight
// that others can join.
func TestTheNextFlightOfNestedCallersIsTheirs(t *testing.T) {
	type key struct{}
	g := newGroup()
	g.Nested = func(ctx context.Context) bool { return ctx.Value(key{}) != nil }
	nested := context.WithValue(t.Context(), key{}, true)
	c, _, _ := g.Join(nested, "id", flight.Callers{}, newFlight)
	next := c.Flight.Finish("", nil, nil)
	outside := join(t, g, opened)
	if again, _, _ := g.Join(nested, "id", flight.Callers{}, nil); again.Flight != next {
		t.Error("a nested caller does not find the next flight")
	}
	next.Decide()
	next.Finish("v1", nil, nil)
	outside.Flight.Finish("", io.EOF, nil)
}

// A refresh must not be joined: nobody has decided anything for its callers.
func TestAloneIsOneFlightThatNobodyJoins(t *testing.T) {
	g := newGroup()
	refresh := g.Alone("id")
	if refresh == nil {
		t.Fatal("got no flight")
	}
	if g.Alone("id") != nil {
		t.Error("a second refresh of id runs, want one")
	}
	other := g.Alone("other")
	if other == nil {
		t.Error("there is no refresh of another id")
	}
	a := join(t, g, opened)
	if next := refresh.Finish("v1", nil, nil); next != nil {
		t.Error("the refresh left callers over, want none")
	}
	if n := g.Joined("id"); n != 1 {
		t.Errorf("%d callers of the flight beside the refresh are left, want 1", n)
	}
	again := g.Alone("id")
	if again == nil {
		t.Error("after its end there is no other refresh")
	}
	a.Flight.Decide()
	a.Flight.Finish("v2", nil, nil)
	now(t, a, answer{"v2", true, nil})
}

func TestCloseWaitsForTheFlightsThatRun(t *testing.T) {
	g := newGroup()
	a := join(t, g, opened)
	a.Flight.Decide()
	b := join(t, g, waits)
	refresh := g.Alone("id")

	idle := g.Close()
	isIdle := func() bool {
		select {
		case <-idle:
			return true
		default:
			return false
		}
	}
	if _, _, err := g.Join(t.Context(), "id", flight.Callers{}, newFlight); !errors.Is(err, flight.ErrClosed) {
		t.Errorf("Join after Close: got %v, want ErrClosed", err)
	}
	if g.Alone("other") != nil {
		t.Error("Alone after Close: got a flight")
	}
	next := a.Flight.Finish("v1", nil, nil)
	now(t, a, answer{"v1", true, nil})
	refresh.Finish("", io.EOF, nil)
	if isIdle() {
		t.Error("the group is idle while a flight runs")
	}
	next.Finish("", io.EOF, nil)
	now(t, b, answer{"", true, io.EOF})
	if !isIdle() {
		t.Error("the group is not idle")
	}
	g.Close() // again
}

func TestCloseOfAnIdleGroup(t *testing.T) {
	g := newGroup()
	select {
	case <-g.Close():
	default:
		t.Error("the group is not idle")
	}
}
