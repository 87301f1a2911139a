package redlock_test

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

// The two phases of a quorum's lock in Go, for three servers and three clients (two
// in the short run) that each want it once. Everything that can happen in any order
// is tried, so messages may be as late as they like. What is relied on is that a
// server does not free a lock while its holder believes to have it, and keeps its fence.

const members = 3

type qServer struct{ owner, fence int8 } // owner -1: nobody

type qClient struct {
	phase                      qPhase
	asked, got, raised, raises uint8 // sets of servers
	top                        int8  // the highest fence it was given
}

type qPhase int8

const (
	asking qPhase = iota
	raising
	holding
	over // gave back, gave up, or its time is over
)

type qWorld struct {
	servers [members]qServer
	clients [members]qClient
	highest int8 // fence ever granted
}

// A quorumFlaw takes one part of the two phases out.
type quorumFlaw struct{ oneAsked, noRaise, oneRaised bool }

// next returns all worlds that may follow, and what is wrong with one of them.
func (w qWorld) next(f quorumFlaw) (all []qWorld, wrong string) {
	for c := range w.clients {
		for n := range w.servers {
			all = w.arrive(all, c, n)
		}
		after := w
		me := &after.clients[c]
		switch majority := bits.OnesCount8(me.got) >= 2 || f.oneAsked && me.got != 0; {
		case me.phase == asking && majority && f.noRaise, me.phase == raising &&
			(bits.OnesCount8(me.raised) >= 2 || f.oneRaised && me.raised != 0):
			if wrong := after.grant(c); wrong != "" {
				return nil, wrong
			}
			all = append(all, after)
		case me.phase == asking && majority:
			me.phase = raising
			all = append(all, after)
		}
		if w.clients[c].phase != over {
			after := w
			after.clients[c].forget(over)
			all = append(all, after)
		}
	}
	return all, ""
}

// arrive adds what may follow when a message of client c comes to server n.
func (w qWorld) arrive(all []qWorld, c, n int) []qWorld {
	bit := uint8(1) << n
	if me := w.clients[c]; me.asked&bit == 0 { // a bid, perhaps one that comes too late to count
		after := w
		after.clients[c].asked |= bit
		if s := &after.servers[n]; s.owner == -1 {
			s.owner = int8(c)
			s.fence++
			if me.phase == asking {
				after.clients[c].got |= bit
				after.clients[c].top = max(me.top, s.fence)
			}
		}
		all = append(all, after)
	}
	if me := w.clients[c]; me.phase == raising && me.got&^me.raises&bit != 0 {
		after := w
		after.clients[c].raises |= bit
		if s := &after.servers[n]; s.owner == int8(c) {
			s.fence = max(s.fence, me.top)
			after.clients[c].raised |= bit
		}
		all = append(all, after)
	}
	if w.clients[c].phase == over && w.servers[n].owner == int8(c) {
		after := w
		after.servers[n].owner = -1
		all = append(all, after)
	}
	return all
}

// grant gives the lock to client c, and tells what is wrong with that.
func (w *qWorld) grant(c int) string {
	for i, other := range w.clients {
		if other.phase == holding {
			return fmt.Sprintf("%d and %d hold the lock", i, c)
		}
	}
	fence := w.clients[c].top
	if fence <= w.highest {
		return fmt.Sprintf("fence %d after %d", fence, w.highest)
	}
	w.clients[c].forget(holding)
	w.highest = fence
	return ""
}

// forget leaves what cannot matter any more, so that worlds are the same sooner.
func (c *qClient) forget(now qPhase) { *c = qClient{phase: now, asked: c.asked} }

// searchQuorum tries everything, and returns the first wrong it finds.
func searchQuorum(f quorumFlaw, clients int) (wrong string, worlds int) {
	start := qWorld{}
	for c := clients; c < members; c++ { // it takes no part
		start.clients[c] = qClient{phase: over, asked: 1<<members - 1}
	}
	for n := range start.servers { // one server is ahead, as one whose clock is
		start.servers[n] = qServer{owner: -1, fence: int8(3 * (n / 2))}
	}
	seen, todo := map[qWorld]bool{start: true}, []qWorld{start}
	for len(todo) > 0 {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		all, wrong := w.next(f)
		if wrong != "" {
			return wrong, len(seen)
		}
		for _, after := range all {
			if !seen[after] {
				seen[after] = true
				todo = append(todo, after)
			}
		}
	}
	return "", len(seen)
}

func TestNothingGoesWrongInTheModelOfAQuorum(t *testing.T) {
	wrong, worlds := searchQuorum(quorumFlaw{}, redistest.Pick(2, 3))
	t.Logf("%d worlds", worlds)
	if wrong != "" {
		t.Error(wrong)
	}
}

func TestTheSearchFindsEachFlawOfAQuorum(t *testing.T) {
	for name, f := range map[string]quorumFlaw{
		"no majority":           {oneAsked: true, oneRaised: true},
		"no second phase":       {noRaise: true},
		"a fence on one server": {oneRaised: true},
	} {
		if wrong, worlds := searchQuorum(f, 2); wrong == "" {
			t.Errorf("%s: not found in %d worlds", name, worlds)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
