package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	figure   = regexp.MustCompile(`\d[\d,.]*\d|\d`)
	measured = regexp.MustCompile(`(?m)^\| .*\]\((docs/[a-z-]+\.md)[^)]*\)\) \|(.*)\|$`)
	loses    = regexp.MustCompile(`(?m)\*\*Loses\*\*: (.*)$`)
)

// README sells by figures, and each of them is in a table that says how it was measured. A reviewer found four that
// were in none: a table had been measured again, and README had not been told.
func TestEachFigureOfREADMEIsOnThePageItNames(t *testing.T) {
	page := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme := page("README.md")
	rows := measured.FindAllStringSubmatch(readme, -1)
	if len(rows) < 4 {
		t.Fatalf("%d rows of figures: the table of README looks otherwise than this test expects", len(rows))
	}
	check := func(figures, name string) {
		for _, number := range figure.FindAllString(figures, -1) {
			found := regexp.MustCompile(`(^|[^\d.,])` + regexp.QuoteMeta(strings.TrimRight(number, ".,")) + `($|[^\d]|[.,]\D)`)
			if number != "0" && !found.MatchString(page(name)) {
				t.Errorf("README says %s, and %s does not have it: %s", number, name, figures)
			}
		}
	}
	for _, row := range rows {
		check(row[2], row[1])
	}
	found := loses.FindStringSubmatch(readme)
	if found == nil {
		t.Fatal("README does not say where levee loses")
	}
	check(found[1], "docs/results.md")
}
