package clients

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/logonce"
)

const root = "../.."

// The pages that these tests hold to their word.
const (
	clientsPage = "docs/reference/clients.md"
	logPage     = "docs/reference/log-lines.md"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cells gives a column of the tables of a page under a heading: the texts between backquotes
// in each row.
func cells(t *testing.T, name, heading string, column int) (all []string) {
	t.Helper()
	_, section, ok := strings.Cut("\n"+page(t, name), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no %q", name, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if row := strings.Split(line, "|"); len(row) > column && strings.HasPrefix(line, "| ") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[column], -1) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// What this library may log stands in the page's table with its level, its event, what it means
// and what to do, and no line stands there that nobody logs.
func TestEachLogLineIsExplained(t *testing.T) {
	// The kinds of event are string literals, of calls of a slog.Logger or a logonce.Log.
	comment := regexp.MustCompile(`(?m)^\s*//.*$`) // has calls of users
	logged := regexp.MustCompile(`(?:\.(Debug|Info|Warn|Error|Last)\(|logRedisError\(.*, )"([^"]+)"`)
	var inCode []string
	for _, dir := range []string{"cache", "mutexrebuild", "lock", "bloom", "internal/fleet", "internal/guard", "internal/tier", "internal/redisconn", "internal/flight", "internal/contain"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range logged.FindAllStringSubmatch(comment.ReplaceAllString(string(text), ""), -1) {
				line, level := strings.TrimPrefix(m[2], "bloom: "), m[1]
				switch level {
				case "": // of logRedisError
					level = "Warn"
				case "Last":
					level = "Error"
				}
				inCode = append(inCode, line)
				event := logonce.EventOf(line)
				if event == "" {
					t.Errorf("internal/logonce has no event for %q", line)
				}
				row := regexp.MustCompile(`(?m)^\| ` + level + ` \| ` + regexp.QuoteMeta("`"+event+"` | `"+line+"`") + ` \| [^|]+ \| [^|]+ \|$`)
				if !row.MatchString(page(t, logPage)) {
					t.Errorf("%s has no whole row for %q, the event %q, at level %s", logPage, line, event, level)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	onPage := cells(t, logPage, "# Log lines", 3)
	if len(inCode) < 20 {
		t.Fatalf("%d lines were found in the code", len(inCode))
	}
	for _, line := range inCode {
		if !slices.Contains(onPage, line) {
			t.Errorf("%s does not explain %q", logPage, line)
		}
	}
	for _, line := range onPage {
		if !slices.Contains(inCode, line) {
			t.Errorf("%s explains %q, which nobody logs", logPage, line)
		}
	}
}

// Each row of the page's table of clients has its test, and each test its row.
func TestEachClientOfThePageIsTested(t *testing.T) {
	var tested string
	for _, file := range []string{"works_test.go", "never_test.go", "refused_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tested += string(text)
	}
	onPage := cells(t, clientsPage, "# Redis clients: which work, which are refused", 1)
	if len(onPage) < 30 {
		t.Fatalf("%d clients on the page", len(onPage))
	}
	for _, name := range onPage {
		if !strings.Contains(tested, `"`+name+`"`) {
			t.Errorf("no test is named %q", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)(?:clientRow\(|hooked\(|row\{|^\t\t\{)"([^"]+)"`).FindAllStringSubmatch(tested, -1) {
		if !slices.Contains(onPage, m[1]) {
			t.Errorf("the page has no row %q", m[1])
		}
	}
}
