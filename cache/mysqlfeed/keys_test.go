package mysqlfeed

import (
	"fmt"
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
		maria        bool // MySQL has no such type or collation
	}{
		{"int", "7", "int64 7", "' 7'", false, false},
		{"bigint unsigned", "18446744073709551615", "uint64 18446744073709551615", "'18446744073709551615.0'", false, false},
		{"decimal(10,2)", "1.5", "string 1.50", "'1.500'", false, false},
		{"double", "1.5", "float64 1.5", "'15e-1'", false, false},
		{"year", "2026", "int64 2026", "'2026.0'", false, false},
		{"bit(4)", "b'101'", "uint64 5", "", false, false},
		{"varchar(9) COLLATE utf8mb4_general_ci", "'é'", "string é", "'E'", true, false},
		{"varchar(9) COLLATE utf8mb4_unicode_ci", "'é'", "string é", "'E '", true, false},
		{"varchar(9) COLLATE utf8mb4_bin", "'a'", "string a", "'a '", true, false},
		{"varchar(9) COLLATE utf8mb4_nopad_bin", "'a'", "string a", "", false, true},
		{"varchar(9) COLLATE utf8mb4_unicode_nopad_ci", "'a'", "string a", "'A'", true, true},
		{"varchar(9) CHARACTER SET latin1", "'é'", "string é", "'E'", true, false},
		{"varchar(9) CHARACTER SET ascii COLLATE ascii_bin", "'a'", "string a", "'a '", true, false},
		{"char(3) COLLATE utf8mb4_general_ci", "'a'", "string a", "'A '", true, false},
		{"enum('a', 'b') COLLATE utf8mb4_general_ci", "'a'", "string a", "'A'", true, false},
		{"binary(3)", "'a'", "[]uint8 [97 0 0]", `'a\0\0'`, false, false},
		{"varbinary(3)", "'a'", "[]uint8 [97]", "", false, false},
		{"uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "string a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", false, true},
		{"date", "'2026-11-27'", "string 2026-11-27", "'2026.11.27'", false, false},
		{"datetime(3)", "'2026-11-27 10:00:00'", "time.Time 2026-11-27 10:00:00 +0000 UTC", "'2026-11-27 10:00'", false, false},
		{"time", "'10:00'", "string 10:00:00", "'10:00'", false, false},
	} {
		t.Run(test.kind, func(t *testing.T) {
			r := newRig(t)
			if test.maria && !r.mariaDB() {
				t.Skip("MySQL has no such type")
			}
			r.exec("CREATE TABLE product (k " + test.kind + ", n INT AUTO_INCREMENT PRIMARY KEY, KEY (k))")
			var log redistest.Log
			w := r.open(r.feed(func(o *Options) { o.Logger = log.Logger() }, Table{"product", []string{"k"}}), feed.Position{})
			r.exec("SET NAMES utf8mb4", "INSERT INTO product (k) VALUES ("+test.stored+")")
			key := w.Changes(1)[0].New["k"]
			w.End()
			if got := fmt.Sprintf("%T %v", key, key); got != test.told {
				t.Errorf("the feed tells %q, want %q", got, test.told)
			}
			if test.other != "" {
				if n := r.value("SELECT count(*) FROM product WHERE k = " + test.other); n != "1" {
					t.Errorf("%s finds %v rows", test.other, n)
				}
			}
			if test.named {
				log.Await(t, ".product.k (")
			} else if log.Count(".product.k (") > 0 {
				t.Errorf("the log names the column: %s", &log)
			}
		})
	}
}
