package rebuild

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
)

// A chain is an Owner whose flights all have a caller who joins when the result is decided already: so
// there is always a next flight.
type chain struct {
	t       *testing.T
	flights *flight.Group
	length  int
	loaded  []weak.Pointer[[1 << 10]byte]
	kept    int           // answers of earlier flights, but the last one, that were alive at the last load
	done    chan struct{} // closed at the last load
}

func (c *chain) Mark(string) Mark                     { return 0 }
func (c *chain) Meanwhile(*Run) (any, bool)           { return nil, false }
func (c *chain) Accept(*Run, fleet.Value) (any, bool) { return nil, false }
func (c *chain) Load(_ context.Context, _ *guard.Place, runs []*Run) {
	if len(c.loaded) == c.length {
		for range 100 { // the goroutine of the first flight may not have ended yet, and leads to all others
			if c.kept = c.alive(); c.kept == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	answer := &[1 << 10]byte{}
	c.loaded = append(c.loaded, weak.Make(answer))
	runs[0].Loaded = Loaded{Answer: answer}
	if len(c.loaded) > c.length {
		close(c.done)
	}
}

// alive returns how many answers of earlier flights, but the last one, have not been collected.
func (c *chain) alive() (n int) {
	runtime.GC()
	for _, answer := range c.loaded[:c.length-1] {
		if answer.Value() != nil {
			n++
		}
	}
	return n
}

func (c *chain) Encode(*Run) (fleet.Publication, bool) {
	return fleet.Publication{Data: []byte("v"), TTL: time.Minute}, true
}
func (c *chain) Keep(r *Run, _ Until) bool {
	if len(c.loaded) <= c.length {
		if _, opened, err := c.flights.Join(c.t.Context(), r.ID, flight.Callers{}, nil); opened || err != nil {
			c.t.Errorf("it has not joined: %v", err)
		}
	}
	return true
}
func (c *chain) Current(*Run, any) bool               { return false }
func (c *chain) Forget(string)                        {}
func (c *chain) Drop(context.Context, []string) error { return nil }

// A key that is always read, by callers who come too late for the flight that runs, has one flight after
// the other. If each kept the one before it, the process would run out of memory.
func TestAChainOfFlightsKeepsNoAnswers(t *testing.T) {
	leases, err := fleet.New(nil, fleet.Keyspace{Name: "chain"}, fleet.Options{}, fleet.Messages{})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.Close()
	c := &chain{t: t, flights: flight.NewGroup(-1), length: 20, done: make(chan struct{})}
	e := New(Config{Owner: c, Fleet: leases, Flights: c.flights, Closing: t.Context(), Read: leases.GetOne, Batch: 1, Singles: true})
	func() {
		_, opened, err := e.Join(t.Context(), "id", flight.Callers{}, nil)
		if opened == nil || err != nil {
			t.Fatal(err)
		}
		e.Start(t.Context(), opened)
	}()
	<-c.done
	<-c.flights.Close()
	if len(c.loaded) != c.length+1 || c.kept > 0 {
		t.Errorf("%d loads, %d answers of earlier flights are kept", len(c.loaded), c.kept)
	}
}
