package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testCommand = regexp.MustCompile("`(?:LEVEE_LONG=\\w+ )?go test (?:-C (\\S+) )?-run '\\^(\\w+)\\$' (?:-v )?(\\S+)`")
	makeCommand = regexp.MustCompile("`make (\\w+)[^`]*`")
)

// A page that says what is proved is worth as much as its commands: each names a test or a target that exists.
func TestWhatIsProvedCanBeRun(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, targets := read("docs/trust.md"), read("Makefile")
	rows := strings.Count(page, "\n| ") - strings.Count(page[strings.Index(page, "## By nobody"):], "\n| ") - 1 // the heading
	tests, makes := testCommand.FindAllStringSubmatch(page, -1), makeCommand.FindAllStringSubmatch(page, -1)
	if n := strings.Count(page, "`go run -C examples ./shadow`"); len(tests)+len(makes)+n != rows {
		t.Errorf("%d commands in %d rows", len(tests)+len(makes)+n, rows)
	}
	for _, found := range tests {
		files, _ := filepath.Glob(filepath.Join(root, found[1], found[3], "*_test.go"))
		there := false
		for _, name := range files {
			text, err := os.ReadFile(name)
			there = there || err == nil && strings.Contains(string(text), "\nfunc "+found[2]+"(t *testing.T)")
		}
		if !there {
			t.Errorf("there is no test for %s", found[0])
		}
	}
	for _, found := range makes {
		if !strings.Contains(targets, "\n"+found[1]+":") {
			t.Errorf("there is no target for %s", found[0])
		}
	}
}
