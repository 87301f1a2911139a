package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An SVG with a coordinate that is no number, or that is not well-formed, is not drawn.
func TestAPageIsDrawn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.html")
	err := Page{Title: "Of <floods>", Intro: []string{"a & b"}, Charts: []Chart{
		{Title: "one", Unit: "queries", Says: "That is so.", Spans: []Span{{Name: "calm", To: 1}, {Name: "an outage", From: 1, To: 2, Trouble: true}},
			Lines: []Line{{Name: "plain", Points: []Point{{0, 0}, {1, 1200}}}, {Name: "levee", Points: []Point{{0, 0}, {1, 3}}}}},
		{Title: "nothing happened", Lines: []Line{{Name: "plain", Points: []Point{{0, 0}, {1, 0}}}}},
	}}.WriteFile(path)
	if err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Of &lt;floods&gt;", "a &amp; b", "plain: at most 1,200 queries", "an outage"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("no %q in the page", want)
		}
	}
	for _, svg := range bytes.SplitAfter(html, []byte("</svg>"))[:2] {
		_, svg, _ = bytes.Cut(svg, []byte("<svg"))
		text := "<svg" + string(svg)
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("not a number in %s", text)
		}
		d := xml.NewDecoder(strings.NewReader(text))
		for err = nil; err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%v in %s", err, text)
		}
	}
}

func TestStepsOfAnAxis(t *testing.T) {
	for highest, want := range map[float64]float64{0: 1, 1: 0.2, 6: 1, 7: 2, 34: 10, 300: 50, 1816: 500} {
		if got := step(highest); got != want {
			t.Errorf("up to %v: %v, want %v", highest, got, want)
		}
	}
}
