package lock

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// A client is what a process knows.
type client struct {
	owner   string // of its last bid
	bids    int
	holds   bool // and believes so
	late    bool // held, and knows that it has ended, but has not unlocked
	waits   bool
	turn    int
	granted int // its fence
	spare   int // the fences that it may pass on to others of its process
}

type world struct {
	m       *model
	clients [processes]client
	highest int // fence ever granted
}

func (w *world) clone() *world {
	c := *w
	c.m = w.m.clone()
	return &c
}

// key is the world without the numbers that only grow.
func (w *world) key() string {
	var b strings.Builder
	m := w.m
	fmt.Fprint(&b, m.owner, m.ended, m.queue, m.maybe, m.alive, m.released)
	for i, c := range w.clients {
		rank := 0
		for _, o := range w.clients {
			if o.turn < c.turn {
				rank++
			}
		}
		fmt.Fprint(&b, "|", c.owner, c.holds, c.late, c.waits, c.turn > 0, rank, i, c.spare, c.granted-m.fence, slices.Contains(m.forced, c.owner))
	}
	return b.String()
}

type step struct {
	name string
	p    int
}

var stepNames = []string{"lock", "lock more", "try", "poll", "leave", "unlock", "pass on", "dead"}

func steps() (all []step) {
	for _, name := range stepNames {
		for p := range processes {
			all = append(all, step{name, p})
		}
	}
	return append(all, step{"end", 0}, step{"force", 0})
}

// do takes a step if it can be taken, and returns what is wrong afterwards.
func (w *world) do(s step) (taken bool, wrong string) {
	m, c := w.m, &w.clients[s.p]
	idle := !c.holds && !c.late
	switch s.name {
	case "lock", "lock more", "try", "poll":
		wait, more := s.name != "try", s.name == "lock more"
		if !idle || (s.name == "poll") != c.waits {
			return false, ""
		}
		c.bids++
		c.owner = fmt.Sprintf("p%d:%d", s.p, c.bids%3)
		what, fence, turn := m.acquire(s.p, c.owner, wait, c.turn, more)
		twice := m.clone()
		if again, f, _ := twice.acquire(s.p, c.owner, wait, c.turn, more); again != what || f != fence ||
			twice.owner != m.owner || !slices.Equal(twice.queue, m.queue) {
			return true, fmt.Sprintf("asked again: %s %d, then %s %d", what, fence, again, f)
		}
		switch what {
		case "granted":
			if fence <= w.highest {
				return true, fmt.Sprintf("fence %d after %d", fence, w.highest)
			}
			w.highest, c.granted, c.spare = fence, fence, spare
			c.holds, c.waits, c.turn = true, turn > 0, turn
		case "busy":
			if wait {
				c.waits, c.turn = true, turn
			}
		}
	case "leave":
		if !c.waits {
			return false, ""
		}
		m.leave(s.p)
		c.waits, c.turn = false, 0
	case "unlock":
		if idle {
			return false, ""
		}
		before := m.owner
		what := m.release(c.owner)
		if c.holds && what != "ok" {
			return true, "a holder's unlock: " + what
		}
		if c.late && before != c.owner && m.owner != before {
			return true, "a late unlock changed the owner"
		}
		if again := m.clone(); c.holds && again.release(c.owner) == "ok" {
			return true, "released twice"
		}
		c.holds, c.late = false, false
	case "pass on": // to somebody in its process who waits, or comes in this moment
		if !c.holds && !(c.late && m.lostIsPassedOn) || c.spare == 0 {
			return false, ""
		}
		c.granted++
		if !m.passedWithoutEnd {
			c.spare--
		}
		if c.granted <= w.highest {
			return true, fmt.Sprintf("fence %d is passed on after %d", c.granted, w.highest)
		}
		w.highest = c.granted
		c.holds, c.late = true, false
	case "end": // a lease or a grant
		if m.owner == "" || m.ended {
			return false, ""
		}
		m.ended = true
		for i := range w.clients {
			if o := &w.clients[i]; o.holds && o.owner == m.owner {
				o.holds, o.late = false, true // its own deadline came before
			}
		}
	case "force":
		if taken, wrong := w.force(); !taken || wrong != "" {
			return taken, wrong
		}
	case "dead":
		if !m.alive[s.p] {
			return false, ""
		}
		m.alive[s.p] = false
	}
	return true, w.wrong(s)
}

func (w *world) wrong(s step) string {
	holders := 0
	for i, c := range w.clients {
		if c.holds {
			holders++
			if w.m.owner != c.owner {
				return fmt.Sprintf("p%d believes to hold what %q has", i, w.m.owner)
			}
		}
		if here := slices.Contains(w.m.queue, entryOf(i)) || w.m.owner == "g:"+entryOf(i); c.waits && w.m.alive[i] && !here {
			return fmt.Sprintf("p%d waits, lives, and is not in the queue", i)
		}
	}
	if holders > 1 {
		return "two holders"
	}
	if w.m.owner == "" && s.name != "dead" { // one that has ended is found by a poll
		for i := range w.clients {
			if w.m.alive[i] && slices.Contains(w.m.queue, entryOf(i)) {
				return fmt.Sprintf("the lock is free and p%d, who lives, waits", i)
			}
		}
	}
	return ""
}

// moved returns what is wrong with the change from before.
func (w *world) moved(before *world, s step) string {
	was, now := before.m, w.m
	if was.owner == now.owner {
		return ""
	}
	if strings.HasPrefix(now.owner, "g:") && !was.alive[processOf(now.owner)] {
		return now.owner + " is dead and has been granted the lock"
	}
	if strings.HasPrefix(was.owner, "g:") && was.ended && processOf(was.owner) != s.p && now.alive[processOf(was.owner)] {
		return was.owner + " lapsed and its process counts as alive"
	}
	return ""
}

// search tries everything to a depth, and returns the first wrong it finds.
func search(f flaws, depth int) (wrong string, worlds int) {
	start := &world{m: &model{flaws: f}}
	seen := map[string]bool{start.key(): true}
	level := []*world{start}
	all := steps()
	for range depth {
		var next []*world
		for _, w := range level {
			for _, s := range all {
				n := w.clone()
				taken, wrong := n.do(s)
				if wrong == "" && taken {
					wrong = n.moved(w, s)
				}
				if wrong != "" {
					return fmt.Sprintf("%v: %s", s, wrong), len(seen)
				}
				if key := n.key(); taken && !seen[key] {
					seen[key] = true
					next = append(next, n)
				}
			}
		}
		level = next
	}
	return "", len(seen)
}

func TestNothingGoesWrongInTheModel(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	depth := redistest.Pick(6, 9)
	wrong, worlds := search(flaws{}, depth)
	t.Logf("%d worlds to depth %d", worlds, depth)
	if wrong != "" {
		t.Error(wrong)
	}
}

func TestTheSearchFindsEachFlaw(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for name, f := range map[string]flaws{
		"no owner check":           {noOwnerCheck: true},
		"a repeated bid is a new":  {noRepeat: true},
		"no hand-off":              {noHandOff: true},
		"the dead are granted":     {noLiveness: true},
		"who does not claim lives": {noClaim: true},
		"a grant owns one fence":   {oneFence: true},
		"a dead range is reused":   {rangeReused: true},
		"passed on without end":    {passedWithoutEnd: true},
		"a lost lease passed on":   {lostIsPassedOn: true},
		"a forced fence as it was": {noRaise: true},
	} {
		if wrong, worlds := search(f, 7); wrong == "" {
			t.Errorf("%s: not found in %d worlds", name, worlds)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
