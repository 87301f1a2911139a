package mysqlfeed

import (
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
)

// These removed rows or altered the table, and were known by their first word alone: the
// removed rows were served for the TTL. Each is run by the server, with what it may have
// before it and within it.
func TestAStatementIsKnownWhateverStandsBeforeIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, product, "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2", "CREATE TABLE `odd``name \"é` (id int PRIMARY KEY)")
	w := r.open(r.feed(nil, Table{Name: "product"}, Table{Name: "parts"}, Table{Name: "odd`name \"é"}), feed.Position{})
	r.exec("CREATE TABLE one (id int PRIMARY KEY)", "CREATE TABLE part (id int PRIMARY KEY)")
	statements := []string{
		"--\tcomment\nTRUNCATE TABLE product",
		"--\nTRUNCATE TABLE product",
		"-- it's\nTRUNCATE product",
		"#\nTRUNCATE product",
		"/* GRANT */TRUNCATE/**/product",
		"/*!50003 TRUNCATE TABLE product */",
		"/*!99999 GRANT */TRUNCATE TABLE product",
		"TRUNCATE TABLE `PRODUCT`",
		"TRUNCATE TABLE\n" + r.name + " . `product`",
		"CREATE OR REPLACE TABLE product (id bigint PRIMARY KEY, slug varchar(100) NOT NULL, name text)",
		"SET STATEMENT lock_wait_timeout=5 FOR TRUNCATE TABLE product",
		"SET STATEMENT max_statement_time=1, lock_wait_timeout=(SELECT 5) FOR DROP TABLE one, product",
		"CREATE TABLE IF NOT EXISTS product (id bigint PRIMARY KEY, slug varchar(100) NOT NULL, name text)",
		"RENAME TABLE product TO gone, gone TO product",
		"ALTER TABLE parts TRUNCATE PARTITION p0",
		"ALTER TABLE parts EXCHANGE PARTITION p1 WITH TABLE part",
		"ALTER TABLE parts REMOVE PARTITIONING",
		"ALTER TABLE parts ORDER BY id",
		"TRUNCATE `odd``name \"é`",
		"DROP TABLE IF EXISTS `one`, `odd``name \"é`",
	}
	for _, statement := range statements {
		names := []string{"product"}
		switch {
		case strings.Contains(statement, "parts"):
			names = []string{"parts"}
		case strings.Contains(statement, "odd"):
			names = []string{"odd`name \"é"}
		}
		statement := statement
		if !r.mariaDB() && (strings.HasPrefix(statement, "SET STATEMENT") || strings.Contains(statement, "OR REPLACE") || strings.Contains(statement, "PRODUCT")) {
			continue
		}
		if strings.Contains(statement, "PRODUCT") && r.value("SELECT @@lower_case_table_names") == "0" {
			continue
		}
		r.exec(statement)
		told := map[string]bool{}
		for !told[r.name+"."+names[0]] {
			for _, c := range w.Changes(1) {
				if c.Kind != feed.Truncated {
					t.Errorf("%s: told %v", statement, c)
				}
				told[c.Table] = true
			}
		}
	}
}
