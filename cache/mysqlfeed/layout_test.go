package mysqlfeed

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

// A row of the log has values without names. Read by the columns that a table has later, it
// tells values of the wrong ones, or none at all, for ever. Each case changes a row, alters
// its table and changes another row, beside a table that stays as it is.
func TestARowOfAnotherLayoutIsAChangeOfTheTable(t *testing.T) {
	collation := "utf8mb4_0900_ai_ci"
	if newRig(t).mariaDB() {
		collation = "utf8mb4_uca1400_ai_ci" // which the server tells no id of where MySQL does
	}
	create := "CREATE TABLE product (made year NULL, id int PRIMARY KEY, note varchar(50) NULL, slug varchar(50) NOT NULL, name varchar(50) NULL) COLLATE " + collation
	// The change of the row that follows the ALTER, by the columns of then. It is told where the log names
	// them, and where the feed has read the table between the two.
	truth := map[string]string{
		"two change names":          "2 map[id:1 slug:new] map[id:1 slug:a]; ",
		"two change names and back": "2 map[id:1 slug:new] map[id:1 slug:b]; ",
	}
	cases := map[string]struct {
		alter []string
		after string // the change of the row after it
	}{
		"a column is moved":          {[]string{"ALTER TABLE product MODIFY note varchar(50) NULL AFTER slug"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"a column may not be NULL":   {[]string{"UPDATE product SET note = ''", "ALTER TABLE product MODIFY note varchar(50) NOT NULL AFTER slug"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"one goes and another comes": {[]string{"ALTER TABLE product DROP note, ADD hint varchar(50) NULL FIRST"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"two change names":           {[]string{"ALTER TABLE product CHANGE slug name varchar(50) NOT NULL, CHANGE name slug varchar(50) NULL", "UPDATE product SET slug = 'a'"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"two change names and back": {[]string{"ALTER TABLE product CHANGE slug name varchar(50) NOT NULL, CHANGE name slug varchar(50) NULL", "UPDATE product SET slug = 'b'",
			"ALTER TABLE product CHANGE slug name varchar(50) NULL, CHANGE name slug varchar(50) NOT NULL"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"a type":                 {[]string{"ALTER TABLE product MODIFY slug char(40) NOT NULL"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"the key":                {[]string{"ALTER TABLE product MODIFY id varchar(20) NOT NULL"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"a table takes a name":   {[]string{"CREATE TABLE anew (slug varchar(50) NOT NULL, name varchar(50) NULL, id int PRIMARY KEY)", "INSERT INTO anew VALUES ('a', NULL, 1)", "RENAME TABLE product TO old, anew TO product"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"a table is made anew":   {[]string{"DROP TABLE product", "CREATE TABLE product (slug varchar(50) NOT NULL, name varchar(50) NULL, id int PRIMARY KEY)", "INSERT INTO product VALUES ('a', NULL, 1)"}, "2 map[id:1 slug:a] map[id:1 slug:z]"},
		"a column is not there":  {[]string{"ALTER TABLE product CHANGE slug path varchar(50) NOT NULL", "ALTER TABLE product ADD slug2 int"}, "4 <nil> <nil>"},
		"the table is not there": {[]string{"DROP TABLE product"}, ""},
	}
	metadata := newRig(t).value("SELECT @@global.binlog_row_metadata")
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("names in the log %v", full), func(t *testing.T) {
			if set := newRig(t); full { // for all streams of the server
				set.exec("SET GLOBAL binlog_row_metadata = 'FULL'")
				t.Cleanup(func() { set.exec("SET GLOBAL binlog_row_metadata = '" + metadata + "'") })
			}
			for name, c := range cases {
				for _, away := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, away %v", name, away), func(t *testing.T) {
						t.Parallel()
						r := newRig(t, create, "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO product VALUES (2026, 1, NULL, 'a', NULL)")
						f := r.feed(nil, Table{"product", []string{"id", "slug"}}, Table{Name: "other"})
						w := r.open(f, feed.Position{})
						w.Changes(0)
						if away {
							w.End()
						}
						r.exec("UPDATE product SET name = 'new'")
						r.exec(c.alter...)
						r.exec("INSERT INTO other VALUES (1)")
						if away {
							w = r.open(f, w.At)
						}
						cleared, told := false, ""
						for !strings.Contains(told, "1 <nil> map[id:1]; ") {
							for _, change := range w.Changes(1) {
								one := feedtest.Summary([]feed.Change{change})
								told += one
								cleared = cleared || change.Table == r.name+".product" && change.Kind == feed.Truncated
								for _, row := range []feed.Row{change.Old, change.New} {
									if slug, ok := row["slug"]; ok && slug != "a" && one != truth[name] && change.Table == r.name+".product" {
										t.Errorf("told %s", one)
									}
								}
							}
						}
						if !cleared {
							t.Errorf("told %s, and not that the table has changed", told)
						}
						if c.after == "" {
							w.End()
							r.open(f, w.At)
							return
						}
						for _, again := range []bool{false, true} { // and when it is opened anew, from a position behind it all
							if again {
								w.End()
								w = r.open(f, w.At)
							}
							column := "slug"
							if c.after[0] == '4' {
								column = "path"
							}
							r.exec("UPDATE product SET "+column+" = 'z'", "UPDATE product SET "+column+" = 'a'")
							if got := feedtest.Summary(w.Changes(2)); !strings.HasPrefix(got, c.after) {
								t.Errorf("opened anew %v: got %s, want %s", again, got, c.after)
							}
						}
					})
				}
			}
		})
	}
}

// A table that cannot be told is no reason to tell nothing of others; it is told as a whole,
// until it is what it should be.
func TestATableThatIsUnfitDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "CREATE TABLE other (id int PRIMARY KEY)", "CREATE TABLE wrong (id int PRIMARY KEY, path varchar(9))")
	w := r.open(r.feed(nil, Table{Name: "product"}, Table{"wrong", []string{"slug"}}, Table{Name: "nowhere"}), feed.Position{})
	r.exec("INSERT INTO wrong VALUES (1, 'a'), (2, 'b')", "INSERT INTO product VALUES (1, '', '')", "CREATE TABLE nowhere (id int PRIMARY KEY)")
	if got, want := feedtest.Summary(w.Changes(3)), "4 <nil> <nil>; 1 <nil> map[id:1]; 4 <nil> <nil>; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.exec("INSERT INTO nowhere VALUES (7)", "ALTER TABLE wrong CHANGE path slug varchar(9)")
	if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:7]; 4 <nil> <nil>; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.exec("INSERT INTO wrong VALUES (3, 'c')")
	if got, want := feedtest.Summary(w.Changes(1)), "1 <nil> map[slug:c]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_, err := r.feed(nil, Table{"wrong", []string{"sulg"}}, Table{Name: "never"}).Open(feedtest.Soon(t), feed.Position{})
	feedtest.WantError(t, err, `no column "sulg"`, ".never")
	if errors.Is(err, feed.ErrPositionLost) {
		t.Error(err)
	}
}

// Rows that are unread when the feed goes on are told one by one, if the table was not altered.
func TestAPositionProvesTheLayoutOfWhatFollows(t *testing.T) {
	t.Parallel()
	r := newRig(t, product)
	f := r.feed(nil, Table{Name: "product"})
	w := r.open(f, feed.Position{})
	w.Changes(0)
	w.End()
	r.exec("INSERT INTO product VALUES (1, '', '')", "ANALYZE TABLE product", "GRANT SELECT ON product TO root@'127.0.0.1'", "INSERT INTO product VALUES (2, '', '')")
	w = r.open(f, w.At)
	if got, want := feedtest.Summary(w.Changes(2)), "1 <nil> map[id:1]; 1 <nil> map[id:2]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	w.End()
	r.exec("INSERT INTO product VALUES (3, '', '')")
	old := w.At
	old.Text = strings.Join(strings.Split(old.Text, " ")[:2], " ") // as an earlier release has it
	w = r.open(f, old)
	if got, want := feedtest.Summary(w.Changes(1)), "4 <nil> <nil>; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.exec("INSERT INTO product VALUES (4, '', '')")
	if got, want := feedtest.Summary(w.Changes(1)), "1 <nil> map[id:4]; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
