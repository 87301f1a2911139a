package model

import (
	"fmt"
	"hash/maphash"
	"slices"
)

// An explorer goes through all states that a model can come to, those that are fewer steps away first.
type explorer struct {
	model
	visit func(*state)
	tells bool   // label is wanted
	label string // of the step that led to the state that is visited
	wrong string // what this step has broken, "" if nothing
}

// to visits the state to which a step leads.
func (x *explorer) to(t *state, format string, args ...any) {
	x.settle(t)
	x.probe(t)
	if x.tells {
		x.label = sprintf(format, args...)
	}
	x.visit(t)
	x.wrong = ""
}

func (x *explorer) fail(format string, args ...any) {
	if x.wrong == "" {
		x.wrong = sprintf(format, args...)
	}
}

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// A node says how a state was reached first: from which one, and by which of its steps.
type node struct{ from, step int32 }

// explore looks for a state that breaks a promise. It returns how many it has seen, whether these are
// all or only limit of them, and the story of the shortest way to one that does, nil if there is none.
func (m model) explore(limit int) (states int, all bool, story []string) {
	x := &explorer{model: m}
	seed, seen := maphash.MakeSeed(), hashes{}
	nodes, layer, next := []node{{-1, -1}}, []state{m.start()}, []state(nil)
	first, from, step, last := 0, 0, 0, -1
	x.visit = func(t *state) {
		step++
		if x.wrong != "" && last < 0 {
			nodes = append(nodes, node{int32(from), int32(step)})
			last = len(nodes) - 1
		}
		hash := maphash.Comparable(seed, *t)
		if last >= 0 || !seen.add(hash) {
			return
		}
		nodes, next = append(nodes, node{int32(from), int32(step)}), append(next, *t)
	}
	for len(layer) > 0 {
		for i := range layer {
			from, step = first+i, 0
			x.steps(&layer[i])
			if step == 0 && !layer[i].over() { // nobody can do anything, ever
				last = from
			}
			if last >= 0 {
				return seen.size, false, m.tell(nodes, last)
			}
		}
		if seen.size > limit {
			return seen.size, false, nil
		}
		first += len(layer)
		layer, next = next, layer[:0]
	}
	return seen.size, true, nil
}

// tell takes the steps that led to a node once more, and says what they were.
func (m model) tell(nodes []node, last int) (story []string) {
	var way []int32
	for n := last; nodes[n].from >= 0; n = int(nodes[n].from) {
		way = append(way, nodes[n].step)
	}
	slices.Reverse(way)
	x := &explorer{model: m, tells: true}
	s := m.start()
	for n, at := range way {
		var step int32
		var then state
		x.visit = func(t *state) {
			if step++; step == at {
				then = *t
				story = append(story, sprintf("%3d %s", n+1, x.label))
				if x.wrong != "" {
					story = append(story, "    "+x.wrong)
				}
			}
		}
		x.steps(&s)
		s = then
	}
	if story == nil || !s.over() && story[len(story)-1][:4] != "    " {
		story = append(story, "    nobody can go on, and a call has not returned")
	}
	return story
}

// hashes are a set of numbers, none of them 0.
type hashes struct {
	slots []uint64
	size  int
}

// add reports whether hash is new.
func (s *hashes) add(hash uint64) bool {
	if 2*s.size >= len(s.slots) {
		old := s.slots
		s.slots, s.size = make([]uint64, max(1<<12, 4*len(old))), 0
		for _, h := range old {
			if h != 0 {
				s.add(h)
			}
		}
	}
	mask := uint64(len(s.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		switch s.slots[i] {
		case hash:
			return false
		case 0:
			s.slots[i] = hash
			s.size++
			return true
		}
	}
}
