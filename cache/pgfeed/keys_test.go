package pgfeed

import (
	"fmt"
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// What the feed tells of a key column of each type, and another text by which the database finds the same row:
// the table in docs/change-feeds.md. Where the column is of text, the log names it.
func TestTheTextsOfAKey(t *testing.T) {
	for _, test := range []struct {
		kind, stored string
		told         string // as %T and %v
		other        string // finds the row too; "": none is known
		named        bool
	}{
		{"integer", "7", "int64 7", "' 7 '", false},
		{"bigint", "7", "int64 7", "'+7'", false},
		{"numeric(10,2)", "1.5", "string 1.50", "'1.500'", false},
		{"double precision", "1.5", "float64 1.5", "'15e-1'", false},
		{"boolean", "true", "bool true", "'yes'", false},
		{"text", "'a'", "string a", "", false},
		{"varchar(9)", "'a'", "string a", "", false},
		{"name", "'a'", "string a", "", false},
		{"char(3)", "'a'", "string a  ", "'a'", true},
		{"citext", "'a'", "string a", "'A'", true},
		{"text COLLATE nocase", "'a'", "string a", "'A'", true},
		{"email", "'a'", "string a", "'A'", true},
		{"mood", "'sad'", "string sad", "", false},
		{"uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "string a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "'{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'", false},
		{"bytea", `'\x0a'`, "[]uint8 [10]", `'\012'`, false},
		{"date", "'2026-11-27'", "time.Time 2026-11-27 00:00:00 +0000 UTC", "'Nov 27 2026'", false},
		{"timestamptz", "'2026-11-27 10:00+02'", "time.Time 2026-11-27 08:00:00 +0000 UTC", "'2026-11-27 08:00Z'", false},
		{"time", "'10:00'", "string 10:00:00", "'10:00'", false},
		{"inet", "'FE80:0::a'", "string fe80::a", "'FE80::A'", false},
		{"macaddr", "'08-00-2B-01-02-03'", "string 08:00:2b:01:02:03", "'08002b010203'", false},
		{"interval", "'90 min'", "string 01:30:00", "'1h30m'", false},
		{"jsonb", `'{"b":1, "a":2}'`, `string {"a": 2, "b": 1}`, `'{"a":2,"b":1}'`, false},
	} {
		t.Run(test.kind, func(t *testing.T) {
			r := newRig(t, "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)", "CREATE TYPE mood AS ENUM ('sad')")
			if strings.Contains(test.kind, "citext") || test.kind == "email" {
				if n := r.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'"); n == int64(0) {
					t.Skip("the server has no citext")
				}
				r.exec("CREATE EXTENSION citext", "CREATE DOMAIN email AS citext")
			}
			r.exec("CREATE TABLE product (k " + test.kind + " PRIMARY KEY)")
			var log redistest.Log
			w := r.open(r.feed(func(o *Options) { o.Logger = log.Logger() }, Table{Name: "product"}), feed.Position{})
			r.exec("INSERT INTO product VALUES (" + test.stored + ")")
			key := w.Changes(1)[0].New["k"]
			w.End()
			if got := fmt.Sprintf("%T %v", key, key); got != test.told {
				t.Errorf("the feed tells %q, want %q", got, test.told)
			}
			if test.other != "" {
				if n := r.value("SELECT count(*) FROM product WHERE k = " + test.other); n != int64(1) {
					t.Errorf("%s finds %v rows", test.other, n)
				}
			}
			if test.named {
				log.Await(t, "product.k (")
			} else if log.Count("product.k (") > 0 {
				t.Errorf("the log names the column: %s", &log)
			}
		})
	}
}
