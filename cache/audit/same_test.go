package audit

import (
	"testing"
	"time"
)

type part struct {
	Name string
	cost int
	At   time.Time
	Tags []string
	Next *part
	Any  any
	Rest map[string]int
}

func TestWhatMeansTheSameIsEqual(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	whole := func(change func(*part)) part {
		p := part{Name: "a", cost: 7, At: at, Tags: []string{"x"}, Next: &part{Name: "b"}, Any: 1, Rest: map[string]int{"k": 1}}
		change(&p)
		return p
	}
	plain := whole(func(*part) {})
	for name, other := range map[string]part{
		"as it is":             plain,
		"another location":     whole(func(p *part) { p.At = at.In(time.FixedZone("", 3600)) }),
		"an empty slice below": whole(func(p *part) { p.Next.Tags = []string{} }),
		"an empty map below":   whole(func(p *part) { p.Next.Rest = map[string]int{} }),
	} {
		if !same(plain, other) {
			t.Errorf("%s: differs", name)
		}
	}
	for name, other := range map[string]part{
		"a text":               whole(func(p *part) { p.Name = "b" }),
		"a field not exported": whole(func(p *part) { p.cost = 8 }),
		"a time":               whole(func(p *part) { p.At = at.Add(1) }),
		"an element":           whole(func(p *part) { p.Tags = []string{"y"} }),
		"a length":             whole(func(p *part) { p.Tags = nil }),
		"something below":      whole(func(p *part) { p.Next.Name = "c" }),
		"nothing below":        whole(func(p *part) { p.Next = nil }),
		"the type of an any":   whole(func(p *part) { p.Any = "1" }),
		"no any":               whole(func(p *part) { p.Any = nil }),
		"the value of a map":   whole(func(p *part) { p.Rest = map[string]int{"k": 2} }),
		"the key of a map":     whole(func(p *part) { p.Rest = map[string]int{"l": 1} }),
	} {
		if same(plain, other) || same(other, plain) {
			t.Errorf("%s: equal", name)
		}
	}
	if none := (*time.Time)(nil); same(none, &at) || !same(none, none) {
		t.Error("a nil with a method Equal")
	}
}

// A value may lead back to itself in several ways, and share its parts. Catches a comparison that follows each way anew,
// 2^1000 of them here.
func TestValuesWithCyclesAreCompared(t *testing.T) {
	type node struct {
		Next, Prev, Up *node
		Below          []*node
		Named          map[string]*node
		Name           string
	}
	ring := func(last string) *node {
		first := &node{Named: map[string]*node{}}
		at := first
		for range 900 {
			at.Next = &node{Prev: at, Up: first}
			at.Next.Below = []*node{first, at, at}
			first.Named[""], at = at, at.Next
		}
		at.Next, at.Name = first, last
		return first
	}
	if !same(ring("a"), ring("a")) || same(ring("a"), ring("b")) {
		t.Error("only the last name decides")
	}
	two := []*node{{Name: "a"}, {Name: "b"}}
	one := two[:1]
	if pair := [2][]*node{one, one}; same(pair, [2][]*node{one, two}) || same([2][]*node{one, two}, pair) {
		t.Error("a slice is equal to one that begins like it")
	}
}
