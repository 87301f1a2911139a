package lock

import (
	"fmt"
	"slices"
	"strings"
)

// The scripts once more, in Go and for a mutex, with time reduced to two events: a
// lease or grant ends, a process counts as dead. All that can happen between three
// processes is tried, and the real scripts go the same ways at random.

const processes = 3

// flaws take one mechanism of the model out each, so that the search is known to
// see the difference.
type flaws struct {
	noOwnerCheck, noRepeat, noHandOff, noLiveness, noClaim bool
	oneFence, passedWithoutEnd, lostIsPassedOn             bool // of a cohort
	rangeReused                                            bool // after a takeover
	noRaise                                                bool // by ForceUnlock
}

// spare is how many fences a grant owns beside the first: so often its holder may pass the
// lock on within its process.
const spare = 2

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
	forced   []string // owners that it was taken from
	born     int      // the first fence since
}

func entryOf(p int) string { return fmt.Sprintf("m:p%d:1", p) }
func processOf(entry string) int {
	return int(strings.TrimPrefix(strings.TrimPrefix(entry, "g:"), "m:p")[0] - '0')
}

func (m *model) clone() *model {
	c := *m
	c.queue, c.forced = slices.Clone(m.queue), slices.Clone(m.forced)
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
	if m.owner != "" {
		return ""
	}
	first := m.head(mine)
	if first != "" && first != mine {
		m.queue = m.queue[1:]
		m.owner, m.ended = "g:"+first, false
	}
	return first
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
	lapsed := m.owner != "" && m.ended
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
		m.fence += spare + 1
		if m.oneFence || m.rangeReused && lapsed {
			m.fence -= spare
		}
		m.owner, m.ended = me, false
		m.granted(me)
		if more {
			newTurn = m.enqueue(p, 0)
		}
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
		if m.released == me && m.owner == "" && !slices.Contains(m.forced, me) {
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
	if m.owner == "" && !strings.HasPrefix(was, "g:") {
		m.owner = was // it has ended, and stands there until somebody takes its place
	}
}
