package feedtest

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A KeyText is a value of a key column, in one of the types that a database has for it.
type KeyText struct {
	Type, Stored string // as SQL has them
	Told         string // what the feed tells, as %T and %v
	Other        string // another text of SQL by which the database finds the row; "": none is known
	Named        bool   // the column is of text and Other is one of its values: the log names it
}

// TheTextsOfAKey checks the table of docs/change-feeds.md. open makes a table product with a column k of a
// type, and returns a feed that tells it, a function that runs a statement, and one that reads a number.
func TheTextsOfAKey(t *testing.T, texts []KeyText, open func(t *testing.T, kind string, log *slog.Logger) (f feed.Feed, exec func(sql string), number func(sql string) string)) {
	for _, text := range texts {
		t.Run(text.Type, func(t *testing.T) {
			var log redistest.Log
			f, exec, number := open(t, text.Type, log.Logger())
			w := Open(t, f, feed.Position{})
			exec("INSERT INTO product (k) VALUES (" + text.Stored + ")")
			key := w.Changes(1)[0].New["k"]
			w.End()
			if got := fmt.Sprintf("%T %v", key, key); got != text.Told {
				t.Errorf("the feed tells %q, want %q", got, text.Told)
			}
			if text.Other != "" {
				if n := number("SELECT count(*) FROM product WHERE k = " + text.Other); n != "1" {
					t.Errorf("%s finds %s rows", text.Other, n)
				}
			}
			if text.Named {
				log.Await(t, "product.k (")
			} else if log.Count("product.k (") > 0 {
				t.Errorf("the log names the column: %s", &log)
			}
		})
	}
}

// A Checked is a feed that can be checked before it is opened.
type Checked interface {
	feed.Feed
	Check(ctx context.Context) error
}

// Refused checks that Open and Check say what is wrong.
func Refused(t *testing.T, f Checked, want ...string) {
	t.Helper()
	_, err := f.Open(Soon(t), feed.Position{})
	WantError(t, err, want...)
	WantError(t, f.Check(Soon(t)), want...)
}
