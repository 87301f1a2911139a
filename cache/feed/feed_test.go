package feed_test

import (
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
)

// A route that reads a row by the wrong column must fail, and not invalidate key 0 or "".
func TestARowSaysWhichColumnDoesNotFit(t *testing.T) {
	row := feed.Row{"id": int64(7), "big": uint64(1 << 63), "small": uint64(7), "slug": "a", "raw": []byte("b"), "gone": nil, "price": 1.5}
	integer := func(column string) (any, error) { return row.Int(column) }
	text := func(column string) (any, error) { return row.Text(column) }
	for _, test := range []struct {
		of     func(string) (any, error)
		column string
		want   any
		says   string // of the error
	}{
		{of: integer, column: "id", want: int64(7)},
		{of: integer, column: "small", want: int64(7)},
		{of: integer, column: "big", says: `"big" is a uint64, not an integer`},
		{of: integer, column: "slug", says: `"slug" is a string, not an integer`},
		{of: integer, column: "gone", says: `"gone" is NULL, not an integer`},
		{of: integer, column: "Id", says: `no column "Id", but ["big" "gone" "id" "price" "raw" "slug" "small"]: the Columns of its table`},
		{of: text, column: "slug", want: "a"},
		{of: text, column: "raw", want: "b"},
		{of: text, column: "id", want: "7"},
		{of: text, column: "big", want: "9223372036854775808"},
		{of: text, column: "price", says: `"price" is a float64, not text`},
		{of: text, column: "gone", says: `"gone" is NULL, not text: a route may return no keys`},
		{of: text, column: "Slug", says: `no column "Slug"`},
	} {
		got, err := test.of(test.column)
		switch {
		case test.says == "" && (err != nil || got != test.want):
			t.Errorf("column %q: %v, %v, want %v", test.column, got, err, test.want)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("column %q: %v, want an error that says %s", test.column, err, test.says)
		}
	}
}
