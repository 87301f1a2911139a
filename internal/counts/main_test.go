package main

import (
	"go/parser"
	"go/token"
	"testing"
)

const counted = `// Package p.
package p

/* two
lines */
type T[K any] struct {
	A, B int // code with a comment
	c    int
	error
	Embedded
}

type (
	I interface{ Do(); undo() }
	t struct{ Hidden int }
)

const X, y = 1, 2

func (T[K]) M()  {}
func (t) M()     {}
func F() string { return ` + "`\n\n`" + ` }
`

func TestWhatCountsAsCodeAndAsPublic(t *testing.T) {
	if code, comments := lines([]byte(counted)); code != 17 || comments != 3 {
		t.Errorf("%d lines of code and %d of comments, want 17 and 3", code, comments)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", counted, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if n := public(file); n != 9 { // T, A, B, Embedded, I, Do, X, T's M, F
		t.Errorf("%d public identifiers, want 9", n)
	}
	if n := rows("\n## Words\ntext\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n| other |\n|---|\n| 5 |\n", "## Words"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
