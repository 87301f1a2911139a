package main

import (
	"os"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

// The tables of docs/internals/scaling.md are what the program prints. After a change, print them
// anew and put them in between the page's two marks.
func TestThePageShowsWhatTheProgramPrints(t *testing.T) {
	redistest.Long(t) // fleets of 10,000 take a while
	page, err := os.ReadFile("../../docs/internals/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "<!-- from here on: go run ./internal/scale -->\n")
	shown, _, ok := strings.Cut(shown, "<!-- up to here -->\n")
	if !ok {
		t.Fatal("the page has no marks")
	}
	var printed strings.Builder
	tables(&printed)
	if strings.TrimSpace(shown) != strings.TrimSpace(printed.String()) {
		t.Errorf("the page is out of date; go run ./internal/scale prints:\n%s", printed.String())
	}
}

// A fleet of one's own has all lines, and none that is no number.
func TestTheCardOfAFleet(t *testing.T) {
	f := service
	f.Processes, f.Keys, f.Writes = 3, 5, 0
	for _, change := range []func(*Fleet){
		func(*Fleet) {},
		func(f *Fleet) { f.LocalKeys, f.Reads = 0, 1e5 }, // more than a Redis does
	} {
		change(&f)
		var out strings.Builder
		card(&out, f)
		if text := out.String(); strings.Count(text, "\n") != 18 || strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Error(text)
		}
	}
}
