package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	importing = regexp.MustCompile(`(?s)\nimport \(\n.*?\n\)\n`)
	added     = regexp.MustCompile(`\| \[[^]]*\]\(\.\./(examples/orm/\w+)/main\.go\) \|.*\| (\d+) \|`)
)

// docs/orm.md shows what programs have that they had not before: as many lines as it says, and those that it says.
func TestWhatIsAddedToAService(t *testing.T) {
	page := text(t, "docs/orm.md")
	programs := added.FindAllStringSubmatch(page, -1)
	if len(programs) != 4 {
		t.Fatalf("%d programs", len(programs))
	}
	var changes [][]string
	for _, p := range programs {
		change := difference(program(t, filepath.Join(p[1], "before")), program(t, p[1]))
		lines := 0
		for _, line := range change {
			if strings.HasPrefix(line, "+") && strings.TrimSpace(line) != "+" {
				lines++
			}
		}
		if fmt.Sprint(lines) != p[2] || lines > 28 {
			t.Errorf("%s has %d more lines than before, besides comments and imports, and the page says %s; at most 28", p[1], lines, p[2])
		}
		changes = append(changes, change)
	}
	whole, blocks := false, 0
	for _, block := range fence.FindAllStringSubmatch(page, -1) {
		if block[1] != "diff" {
			continue
		}
		blocks++
		shown := strings.Split(strings.TrimRight(block[2], "\n"), "\n")
		shown = slices.DeleteFunc(shown, func(line string) bool { return line == "@@" })
		if !slices.ContainsFunc(changes, func(change []string) bool {
			missing := without(change, shown)
			whole = whole || !slices.ContainsFunc(missing, func(line string) bool { return line[0] != ' ' })
			return len(missing)+len(shown) == len(change)
		}) {
			t.Errorf("no program differs from what it was in these lines, in this order:\n%s", block[2])
		}
	}
	if blocks == 0 || !whole {
		t.Errorf("of %d pieces none shows all that is added to a program", blocks)
	}
}

// program returns a main.go without what is before its types, and without comments of their own lines.
func program(t *testing.T, dir string) []string {
	t.Helper()
	source := strings.TrimRight(text(t, filepath.Join(dir, "main.go")), "\n")
	lines := strings.Split(source[importing.FindStringIndex(source)[1]:], "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "//") })
}

// without returns the lines of change that shown, a part of it in the same order, does not have; it leaves the
// rest of shown out of account if that is no such part.
func without(change, shown []string) (missing []string) {
	for _, line := range change {
		if len(shown) > 0 && line == shown[0] {
			shown = shown[1:]
		} else {
			missing = append(missing, line)
		}
	}
	return missing
}

// difference returns the lines of two texts as diff -u marks them: "-" in from alone, "+" in to alone, " " in both.
func difference(from, to []string) (lines []string) {
	common := make([][]int, len(from)+1) // of the lines from i and j on
	for i := range common {
		common[i] = make([]int, len(to)+1)
	}
	for i := len(from) - 1; i >= 0; i-- {
		for j := len(to) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); from[i] == to[j] {
				common[i][j] = 1 + common[i+1][j+1]
			}
		}
	}
	for i, j := 0, 0; i < len(from) || j < len(to); {
		switch {
		case i < len(from) && j < len(to) && from[i] == to[j]:
			lines, i, j = append(lines, " "+from[i]), i+1, j+1
		case j < len(to) && (i == len(from) || common[i][j+1] > common[i+1][j]):
			lines, j = append(lines, "+"+to[j]), j+1
		case i < len(from):
			lines, i = append(lines, "-"+from[i]), i+1
		default:
			lines, j = append(lines, "+"+to[j]), j+1
		}
	}
	return lines
}
