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
