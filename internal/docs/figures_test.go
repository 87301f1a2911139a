package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	figure   = regexp.MustCompile(`(\d[\d,.]*\d|\d)(?: (ns|ms|MiB)\b)?`)
	measured = regexp.MustCompile(`(?m)^\| .*\]\((docs/[a-z-]+\.md)[^)]*\)\) \|(.*)\|$`)
	loses    = regexp.MustCompile(`(?m)\*\*Loses\*\*: (.*)$`)
	costs    = regexp.MustCompile(`(?m)\*\*Costs\*\*: three round trips to Redis for a miss \(a plain cache: two\); by default up to (.*?) of memory .*; (\w+) direct dependencies, and (\w+) for tests\.$`)
	ended    = regexp.MustCompile(`([\d,]+) → 0 errors of ([\d,]+)`)
	direct   = regexp.MustCompile(`(?m)^\t\S+ v\S+$`)
)

// README sells by figures, and each of them is in a table that says how it was measured. A reviewer found four that
// were in none: a table had been measured again, and README had not been told. The figures of a cell are in one row
// of the page, those with a unit with that: else "64 loads" would prove "64 ns".
func TestEachFigureOfREADMEIsOnThePageItNames(t *testing.T) {
	readme := text(t, "README.md")
	rows := measured.FindAllStringSubmatch(readme, -1)
	if len(rows) < 4 {
		t.Fatalf("%d rows of figures: the table of README looks otherwise than this test expects", len(rows))
	}
	for _, row := range rows {
		for cell := range strings.SplitSeq(row[2], "|") {
			inOneRow(t, row[1], cell)
		}
	}
	lost := loses.FindStringSubmatch(readme)
	if lost == nil {
		t.Fatal("README does not say where levee loses")
	}
	for part := range strings.SplitSeq(lost[1], " and in the ") { // of two rows
		inOneRow(t, "docs/results.md", part)
	}
}

// The summary of results.md has the figures of its tables: it said 601 when the table had been measured again.
func TestTheSummaryOfOutagesIsOfTheirTable(t *testing.T) {
	page := text(t, "docs/results.md")
	summary := ended.FindAllStringSubmatch(page, -1)
	for _, said := range summary {
		if row := "| " + said[2] + " | " + said[1] + " |"; !strings.Contains(page, row) {
			t.Errorf("%s: no row of a table has %q", said[0], row)
		}
	}
	if len(summary) < 2 {
		t.Errorf("%d figures: the summary looks otherwise than this test expects", len(summary))
	}
}

func TestWhatREADMESaysOfCosts(t *testing.T) {
	said := costs.FindStringSubmatch(text(t, "README.md"))
	if said == nil {
		t.Fatal("the line of costs in README looks otherwise than this test expects")
	}
	if !strings.Contains(text(t, "docs/performance.md"), "| three round trips (a lease) against two.") {
		t.Error("docs/performance.md says something else of the round trips of a miss")
	}
	inOneRow(t, "docs/kubernetes.md", said[1])
	words := []string{"none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}
	n := slices.Index(words, said[2]) + slices.Index(words, said[3])
	if required := len(direct.FindAllString(text(t, "go.mod"), -1)); required != n {
		t.Errorf("go.mod requires %d modules directly, and README says %s and %s", required, said[2], said[3])
	}
}

// inOneRow fails if no row of a table of the page has all figures, and their units.
func inOneRow(t *testing.T, page, figures string) {
	t.Helper()
	var wanted []*regexp.Regexp
	for _, f := range figure.FindAllStringSubmatch(figures, -1) {
		if f[1] == "0" {
			continue
		}
		wanted = append(wanted, regexp.MustCompile(`(^|[^\d.,])`+regexp.QuoteMeta(f[1])+`($|[^\d.,]|[.,]\D)`))
		if f[2] != "" {
			wanted = append(wanted, regexp.MustCompile(`\b`+f[2]+`\b`))
		}
	}
	for line := range strings.Lines(text(t, page)) {
		if strings.HasPrefix(line, "|") && !slices.ContainsFunc(wanted, func(w *regexp.Regexp) bool { return !w.MatchString(line) }) {
			return
		}
	}
	t.Errorf("no row of %s has these figures of README: %s", page, figures)
}

// What is first read of levee fits on a few screens.
func TestREADMEIsShort(t *testing.T) {
	const most = 110
	if n := strings.Count(text(t, "README.md"), "\n"); n > most {
		t.Errorf("README has %d lines, more than %d", n, most)
	}
}

// The page of the examples names each of them.
func TestEachExampleIsListed(t *testing.T) {
	page := text(t, "examples/README.md")
	dirs, err := filepath.Glob(filepath.Join(root, "examples", "*", ""))
	if err != nil || len(dirs) < 10 {
		t.Fatalf("%d examples, %v", len(dirs), err)
	}
	for _, dir := range dirs {
		name := filepath.Base(dir)
		if info, err := os.Stat(dir); err == nil && info.IsDir() && name != "internal" && !strings.Contains(page, "- ["+name+"]("+name+"): ") {
			t.Errorf("examples/README.md does not list %s", name)
		}
	}
}
