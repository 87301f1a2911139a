package feedtest

import (
	"context"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
)

// StatementsOfTheDoc returns the n statements that a pattern finds in the package doc, each as
// the first group of the pattern.
func StatementsOfTheDoc(t *testing.T, pattern string, n int) (statements []string) {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(doc), -1) {
		statements = append(statements, line[1])
	}
	if len(statements) != n {
		t.Fatalf("the doc has %d statements: %q", len(statements), statements)
	}
	return statements
}

// TheSetUpIsEnough checks that a feed reports each kind of change of the columns id and slug. The
// table product is empty; table is its name in the feed.
func TheSetUpIsEnough(t *testing.T, f feed.Feed, table string, exec func(sql ...string)) {
	t.Helper()
	w := Open(t, f, feed.Position{})
	exec("INSERT INTO product VALUES (1, 'a', 'A')", "UPDATE product SET slug = 'b'", "DELETE FROM product", "TRUNCATE TABLE product")
	got := w.Changes(4)
	key := []string{"id"}
	want := []feed.Change{
		{Table: table, Kind: feed.Inserted, New: feed.Row{"id": int64(1), "slug": "a"}, Key: key},
		{Table: table, Kind: feed.Updated, Old: feed.Row{"id": int64(1), "slug": "a"}, New: feed.Row{"id": int64(1), "slug": "b"}, Key: key},
		{Table: table, Kind: feed.Deleted, Old: feed.Row{"id": int64(1), "slug": "b"}, Key: key},
		{Table: table, Kind: feed.Truncated, Key: key},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	w.End()
}

// A Checked is a feed that can be checked before it is opened.
type Checked interface {
	feed.Feed
	Check(ctx context.Context) error
}

// Refused checks that the errors of Open and Check contain all texts of want.
func Refused(t *testing.T, f Checked, want ...string) {
	t.Helper()
	_, err := f.Open(Soon(t), feed.Position{})
	WantError(t, err, want...)
	WantError(t, f.Check(Soon(t)), want...)
}

// WrongOptions checks that open refuses each of the options with an error that contains its key
// in the map. No error may contain the password, which is "secret".
func WrongOptions[O, F any](t *testing.T, open func(O) (F, error), wrong map[string]O) {
	t.Helper()
	for want, o := range wrong {
		_, err := open(o)
		WantError(t, err, want)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%v tells the password", err)
		}
	}
}
