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
	ring := &part{}
	ring.Next = ring
	if !same(ring, ring) {
		t.Error("a ring differs from itself")
	}
	if none := (*time.Time)(nil); same(none, &at) || !same(none, none) {
		t.Error("a nil with a method Equal")
	}
}
