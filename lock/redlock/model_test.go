package redlock_test

import (
	"fmt"
	"math/bits"
	"testing"

	"github.com/levee-go/levee/internal/redistest"

	"github.com/levee-go/levee/internal/race"
)

// The two phases of a quorum's lock in Go, for three servers and three clients (two
// in the short run) that each want it once. Everything that can happen in any order
// is tried, so messages may be as late as they like. What is relied on is that a
// server does not free a lock while its holder believes to have it, and keeps its fence;
// and that a server which forgets both does so while somebody holds the lock on a majority
// without it, who hears of it before another server forgets.

const members = 3

type qServer struct{ owner, fence int8 } // owner -1: nobody

type qClient struct {
	phase                      qPhase
	asked, got, raised, raises uint8 // sets of servers; a holder counts those that it has raised
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
	ends    int8 // of leases on one server that may still come
}

// A quorumFlaw takes one part of the two phases out, or of the way in which a server that
// forgot is taken again.
type quorumFlaw struct{ oneAsked, noRaise, oneRaised, countedAtOnce, comesBack bool }

// next returns all worlds that may follow, and what is wrong with one of them.
func (w qWorld) next(f quorumFlaw) (all []qWorld, wrong string) {
	if wrong := w.wrong(); wrong != "" {
		return nil, wrong
	}
	for c := range w.clients {
		for n := range w.servers {
			all = w.arrive(all, c, n, f)
			all = w.end(all, c, n, f)
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
func (w qWorld) arrive(all []qWorld, c, n int, f quorumFlaw) []qWorld {
	bit := uint8(1) << n
	if me := w.clients[c]; me.asked&bit == 0 { // a bid, perhaps one that comes too late to count
		after := w
		after.clients[c].asked |= bit
		if s := &after.servers[n]; s.owner == -1 {
			s.owner = int8(c)
			s.fence++
			switch me.phase {
			case asking:
				after.clients[c].got |= bit
				after.clients[c].top = max(me.top, s.fence)
			case holding:
				after.clients[c].got |= bit
				if f.countedAtOnce {
					after.clients[c].raised |= bit
				}
			}
			all = append(all, after)
		} else if me.phase != holding { // who asks again until it is free
			all = append(all, after)
		}
	}
	if me := w.clients[c]; me.phase == holding && me.got&^me.raised&bit != 0 {
		after := w
		if s := &after.servers[n]; s.owner == int8(c) {
			s.fence = max(s.fence, me.top)
			after.clients[c].raised |= bit
		} else {
			after.clients[c].miss(bit)
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

// end adds what may follow when server n forgets, or when the lease of client c there ends.
// The holder hears of it and asks for the lock there again; one who has lost the majority
// has lost the lock.
func (w qWorld) end(all []qWorld, c, n int, f quorumFlaw) []qWorld {
	bit := uint8(1) << n
	me := w.clients[c]
	if me.phase != holding || w.ends == 0 {
		return all
	}
	w.ends--
	if bits.OnesCount8(me.raised&^bit) >= 2 {
		after := w
		after.servers[n] = qServer{owner: -1}
		after.clients[c].miss(bit)
		all = append(all, after)
	}
	if me.raised&bit != 0 {
		after := w
		after.servers[n].owner = -1
		after.clients[c].miss(bit)
		if !after.clients[c].has() && !f.comesBack {
			after.clients[c].forget(over)
		}
		all = append(all, after)
	}
	return all
}

// has reports whether the client believes to have the lock.
func (c qClient) has() bool { return c.phase == holding && bits.OnesCount8(c.raised) >= 2 }

// miss notes that the client has lost a server, which it asks again.
func (c *qClient) miss(bit uint8) {
	c.asked, c.got, c.raised = c.asked&^bit, c.got&^bit, c.raised&^bit
}

// wrong tells what is wrong with a world.
func (w *qWorld) wrong() string {
	for i, one := range w.clients {
		for j, other := range w.clients[:i] {
			if one.has() && other.has() {
				return fmt.Sprintf("%d and %d hold the lock", j, i)
			}
		}
		if one.has() && one.top < w.highest {
			return fmt.Sprintf("%d holds it with fence %d after %d", i, one.top, w.highest)
		}
	}
	return ""
}

// grant gives the lock to client c, and tells what is wrong with that. Servers that it has
// not got it asks again.
func (w *qWorld) grant(c int) string {
	me := &w.clients[c]
	if me.top <= w.highest {
		return fmt.Sprintf("fence %d after %d", me.top, w.highest)
	}
	w.highest = me.top
	*me = qClient{phase: holding, asked: me.got, got: me.got, raised: me.raised, top: me.top}
	return w.wrong()
}

// forget leaves what cannot matter any more, so that worlds are the same sooner.
func (c *qClient) forget(now qPhase) { *c = qClient{phase: now, asked: c.asked} }

// searchQuorum tries everything, and returns the first wrong it finds.
func searchQuorum(f quorumFlaw, clients int, ends int8) (wrong string, worlds int) {
	start := qWorld{ends: ends}
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
	if race.Detector {
		t.Skip("it computes")
	}
	type size struct {
		clients int
		ends    int8
	}
	for _, size := range redistest.Pick([]size{{2, 2}}, []size{{2, 4}, {3, 1}}) {
		wrong, worlds := searchQuorum(quorumFlaw{}, size.clients, size.ends)
		t.Logf("%d worlds", worlds)
		if wrong != "" {
			t.Error(wrong)
		}
	}
}

func TestTheSearchFindsEachFlawOfAQuorum(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for name, f := range map[string]quorumFlaw{
		"no majority":           {oneAsked: true, oneRaised: true},
		"no second phase":       {noRaise: true},
		"a fence on one server": {oneRaised: true},
		"a server that forgot counts before it knows the fence": {countedAtOnce: true},
		"a lease that was lost comes back":                      {comesBack: true},
	} {
		if wrong, worlds := searchQuorum(f, 2, 2); wrong == "" {
			t.Errorf("%s: not found in %d worlds", name, worlds)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
