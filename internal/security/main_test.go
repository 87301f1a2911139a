package security

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

// root is where the module begins.
const root = "../.."

// page is SECURITY.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block gives the lines of the page's fenced block of a language.
func block(t *testing.T, language string) []string {
	t.Helper()
	_, rest, _ := strings.Cut(page(t), "```"+language+"\n")
	text, _, ok := strings.Cut(rest, "\n```")
	if !ok {
		t.Fatalf("SECURITY.md has no block %q", language)
	}
	return strings.Split(text, "\n")
}

// A threat without a test is a claim. The names in the table are of tests that are
// there, and each row has one.
func TestEachThreatHasItsTests(t *testing.T) {
	_, table, _ := strings.Cut(page(t), "|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) < 10 {
		t.Fatalf("%d rows", len(rows))
	}
	named := regexp.MustCompile("`((?:[a-z]+/)*[a-z]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")
	for _, row := range rows {
		cells := strings.Split(row, "|")
		tests := named.FindAllStringSubmatch(cells[3], -1)
		if len(tests) == 0 {
			t.Errorf("%s has no test", cells[1])
		}
		for _, test := range tests {
			if !declared(t, test[1], test[2]) {
				t.Errorf("%s: there is no test %s in %s", cells[1], test[2], test[1])
			}
		}
	}
}

func declared(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}
