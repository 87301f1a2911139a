package docs

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cacheadmin"
	"github.com/levee-go/levee/cache/cachedebug"
)

var (
	testName = regexp.MustCompile("`((?:[a-z]+/)*[a-z]+)\\.(Test[A-Za-z0-9]+)`")
	verbName = regexp.MustCompile(`\bdo=(\w+)`)
	quoted   = regexp.MustCompile("`([^`]+)`")
	// verdicts begin like this.
	verdict = regexp.MustCompile(`^(?:served|absent:|not cached|not read|past its TTL|Redis did not) ?`)
)

// At three in the morning nobody has time for a row that is not so. Each one names a test that plays it, each verdict is one
// that levee gives, and each verb is one that cacheadmin has.
func TestEachRowOfDebuggingIsPlayed(t *testing.T) {
	page, given := text(t, "docs/debugging.md"), text(t, "cache/internal/look/verdict_test.go")
	looked := 0
	for line := range strings.Lines(page) {
		row := strings.Split(line, "|")
		if len(row) != 6 || strings.Contains(row[1], "---") || strings.Contains(row[4], "played by") {
			continue
		}
		looked++
		tests := testName.FindAllStringSubmatch(row[4], -1)
		if len(tests) == 0 {
			t.Errorf("no test plays the row %s", row[1])
		}
		for _, test := range tests {
			if !declares(t, test[1], test[2]) {
				t.Errorf("there is no %s.%s", test[1], test[2])
			}
		}
		for _, code := range quoted.FindAllStringSubmatch(row[1], -1) {
			if verdict.MatchString(code[1]) && !strings.Contains(given, `"`+code[1]) {
				t.Errorf("no verdict begins with %q", code[1])
			}
		}
	}
	if looked < 30 {
		t.Errorf("%d rows", looked)
	}
}

func text(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "\nfunc "+name+"(t *testing.T) {") {
			return true
		}
	}
	return false
}

// So of every page: what it tells operators to do is there.
func TestEachVerbOfThePagesIsOneOfCacheadmin(t *testing.T) {
	c, err := cache.New(nil, func(_ context.Context, _ int) (int, error) { return 0, nil }, cache.Options{Name: "product"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	admin, err := cacheadmin.New(cacheadmin.Options{
		Caches: []cacheadmin.Cache{c}, Logger: slog.New(slog.DiscardHandler),
		Allow: func(*http.Request, string, string) (string, error) { return "", errors.New("no") }, // comes after the look at the verb
	})
	if err != nil {
		t.Fatal(err)
	}
	is := func(verb string) bool {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("do="+verb))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, r)
		return w.Code == http.StatusForbidden
	}
	if is("drop") {
		t.Fatal("the look at a verb does not tell which are there")
	}
	verbs := 0
	for name, page := range pages(t) {
		for _, verb := range verbName.FindAllStringSubmatch(page, -1) {
			if verbs++; !is(verb[1]) {
				t.Errorf("%s: cacheadmin has no %s", name, verb[1])
			}
		}
	}
	if verbs < 20 {
		t.Errorf("%d verbs", verbs)
	}
	// The verdict is where the page looks for it.
	w := httptest.NewRecorder()
	cachedebug.New(cachedebug.Options{Caches: []cachedebug.Cache{c}}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?cache=product&key=42&format=json", nil))
	if !regexp.MustCompile(`(?s)"lookup": \{.*"found": \{\s*"verdict": "not cached: `).MatchString(w.Body.String()) {
		t.Errorf("the look-up is %s", w.Body)
	}
}

var (
	wanted  = regexp.MustCompile(`"((?:served|absent:|not cached|not read|past its TTL|Redis did not)[^"]*)"\}`)
	instant = regexp.MustCompile(`(?:until )?(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?: at most)?`)
)

// An operator finds each verdict on the page, with all its clauses, and the list there has none that levee does not give.
func TestEveryVerdictIsOnThePage(t *testing.T) {
	page := text(t, "docs/debugging.md")
	var verdicts []string
	for _, want := range wanted.FindAllStringSubmatch(text(t, "cache/internal/look/verdict_test.go"), -1) {
		said := instant.ReplaceAllString(want[1], "")
		verdicts = append(verdicts, strings.ReplaceAll(said, "the database is down", "")) // the loader's words
	}
	if len(verdicts) < 30 {
		t.Fatalf("%d verdicts", len(verdicts))
	}
	var phrases []string
	for line := range strings.Lines(page) {
		for _, code := range quoted.FindAllStringSubmatch(line, -1) {
			phrases = append(phrases, code[1])
		}
	}
	// cut cuts the longest phrase of the page from the beginning of s.
	cut := func(s string, may func(phrase string) bool) (rest string, ok bool) {
		longest := 0
		for _, phrase := range phrases {
			if may(phrase) && strings.HasPrefix(s, phrase) {
				longest = max(longest, len(phrase))
			}
		}
		return strings.Trim(s[longest:], " ,;:"), longest > 0
	}
	for _, v := range verdicts {
		rest, ok := cut(v, verdict.MatchString)
		for ok && rest != "" {
			rest, ok = cut(rest, func(phrase string) bool { return !verdict.MatchString(phrase) })
		}
		if !ok {
			t.Errorf("of the verdict %q the page does not have %q", v, rest)
		}
	}
	_, every, _ := strings.Cut(page, "\n## Every verdict\n")
	listed := 0
	for line := range strings.Lines(every) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, code := range quoted.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
			listed++
			if !slices.ContainsFunc(verdicts, func(v string) bool { return strings.Contains(v, code[1]) }) {
				t.Errorf("no verdict has %q", code[1])
			}
		}
	}
	if listed < 25 {
		t.Errorf("%d phrases in the list", listed)
	}
}
