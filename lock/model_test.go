package lock

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

// The scripts once more, in Go and for a mutex, with time reduced to two events: a
// lease or grant ends, a process counts as dead. All that can happen between three
// processes is tried, and the real scripts go the same ways at random.

const processes = 3

// flaws take one mechanism of the model out each, so that the search is known to
// see the difference.
type flaws struct{ noOwnerCheck, noRepeat, noHandOff, noLiveness, noClaim bool }

type model struct {
	flaws
	owner    string
	ended    bool // the owner's lease
	fence    int
	queue    []string
	turns    [processes]int // of the entries in the queue
	maybe    bool           // the q field
	alive    [processes]bool
	released string
}

func entryOf(p int) string { return fmt.Sprintf("m:p%d:1", p) }
func processOf(entry string) int {
	return int(strings.TrimPrefix(strings.TrimPrefix(entry, "g:"), "m:p")[0] - '0')
}

func (m *model) clone() *model {
	c := *m
	c.queue = slices.Clone(m.queue)
	return &c
}

func (m *model) suspect() {
	if m.owner != "" && m.ended {
		if strings.HasPrefix(m.owner, "g:") && !m.noClaim {
			m.alive[processOf(m.owner)] = false
		}
		m.owner = ""
	}
}

func (m *model) head(mine string) string {
	for m.maybe {
		if len(m.queue) == 0 {
			m.maybe = false
			break
		}
		if first := m.queue[0]; first == mine || m.alive[processOf(first)] || m.noLiveness {
			return first
		}
		m.queue = m.queue[1:]
	}
	return ""
}

func (m *model) advance(mine string) string {
	for {
		first := m.head(mine)
		if first == "" || first == mine || m.owner != "" {
			return first
		}
		m.queue = m.queue[1:]
		m.owner, m.ended = "g:"+first, false
	}
}

func (m *model) enqueue(p, turn int) int {
	if turn == 0 {
		for _, e := range m.queue {
			turn = max(turn, m.turns[processOf(e)])
		}
		turn = max(turn, m.fence*10) + 1 // later than those that were and are not
		for _, old := range m.turns {
			turn = max(turn, old+1)
		}
	}
	m.alive[p], m.maybe, m.turns[p] = true, true, turn
	m.queue = slices.DeleteFunc(m.queue, func(e string) bool { return e == entryOf(p) })
	m.queue = append(m.queue, entryOf(p))
	slices.SortStableFunc(m.queue, func(a, b string) int { return m.turns[processOf(a)] - m.turns[processOf(b)] })
	return turn
}

func (m *model) acquire(p int, me string, wait bool, turn int, more bool) (what string, fence, newTurn int) {
	entry := ""
	if wait {
		entry = entryOf(p)
	}
	queuedTurn := func() int {
		if wait && slices.Contains(m.queue, entry) {
			return m.turns[p]
		}
		return 0
	}
	if m.owner == me && !m.ended && !m.noRepeat {
		return "granted", m.fence, queuedTurn()
	}
	if m.released == me {
		return "gone", 0, 0
	}
	m.suspect()
	free := false
	if wait && m.owner == "g:"+entry {
		m.owner, free = "", true
	} else {
		if wait && turn > 0 && !slices.Contains(m.queue, entry) {
			m.enqueue(p, turn)
		}
		first := m.advance(entry)
		free = (first == "" || first == entry) && m.owner == ""
	}
	if free {
		m.queue = slices.DeleteFunc(m.queue, func(e string) bool { return wait && e == entry })
		m.fence++
		m.owner, m.ended = me, false
		if more {
			newTurn = m.enqueue(p, 0)
		}
		m.advance("")
		return "granted", m.fence, newTurn
	}
	if wait {
		if t := queuedTurn(); t > 0 {
			turn = t
		}
		turn = m.enqueue(p, turn)
	}
	return "busy", 0, turn
}

func (m *model) release(me string) string {
	if m.owner != me && !m.noOwnerCheck {
		if m.released == me && m.owner == "" {
			return "again"
		}
		return "not mine"
	}
	what := "ok"
	if m.ended {
		what = "expired"
	}
	m.owner, m.ended, m.released = "", false, me
	if !m.noHandOff {
		m.advance("")
	}
	return what
}

func (m *model) leave(p int) {
	m.queue = slices.DeleteFunc(m.queue, func(e string) bool { return e == entryOf(p) })
	if m.owner == "g:"+entryOf(p) {
		m.owner = ""
	}
	was := m.owner
	m.suspect()
	m.advance("")
	if m.owner == "" {
		m.owner = was // it has ended, and stands there until somebody takes its place
	}
}

// A client is what a process knows.
type client struct {
	owner   string // of its last bid
	bids    int
	holds   bool // and believes so
	late    bool // held, and knows that it has ended, but has not unlocked
	waits   bool
	turn    int
	granted int // its fence
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
		fmt.Fprint(&b, "|", c.owner, c.holds, c.late, c.waits, c.turn > 0, rank, i)
	}
	return b.String()
}

type step struct {
	name string
	p    int
}

var stepNames = []string{"lock", "lock more", "try", "poll", "leave", "unlock", "dead"}

func steps() (all []step) {
	for _, name := range stepNames {
		for p := range processes {
			all = append(all, step{name, p})
		}
	}
	return append(all, step{"end", 0})
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
			w.highest, c.granted = fence, fence
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
	depth := redistest.Pick(6, 9)
	wrong, worlds := search(flaws{}, depth)
	t.Logf("%d worlds to depth %d", worlds, depth)
	if wrong != "" {
		t.Error(wrong)
	}
}

func TestTheSearchFindsEachFlaw(t *testing.T) {
	for name, f := range map[string]flaws{
		"no owner check":           {noOwnerCheck: true},
		"a repeated bid is a new":  {noRepeat: true},
		"no hand-off":              {noHandOff: true},
		"the dead are granted":     {noLiveness: true},
		"who does not claim lives": {noClaim: true},
	} {
		if wrong, worlds := search(f, 7); wrong == "" {
			t.Errorf("%s: not found in %d worlds", name, worlds)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
