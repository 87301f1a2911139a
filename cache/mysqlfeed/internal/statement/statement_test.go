package statement

import (
	"strings"
	"testing"
)

func TestStatementsNameTheTablesTheyTouch(t *testing.T) {
	all := []Table{{"shop", "product"}, {"shop", "order"}, {"crm", "product"}}
	for statement, want := range map[string]int{
		"TRUNCATE product":                               1,
		"truncate table `crm`.`product`":                 2, // of shop too: one too many
		"ALTER TABLE /* of orders */ shop.product ADD x": 1,
		"ALTER TABLE x COMMENT 'of products'":            0,
		"DROP TABLE IF EXISTS `order`,`product`":         2,
		"DROP DATABASE crm":                              1,
		"DROP /*!40005 TEMPORARY */ TABLE product":       1,
		"CREATE INDEX a ON product (b)":                  0,
		"CREATE OR REPLACE TABLE product (a int)":        1,
		"CREATE VIEW v AS SELECT * FROM product":         0,
		"GRANT SELECT ON product TO x":                   0,
		"# product\nUPDATE `order` SET a = 1":            3,
		"SELECT shop.sweep()":                            3,
		"XA COMMIT 'a'":                                  3,
		"XA ROLLBACK 'a'":                                0,
		"":                                               0,
		"CREATE USER product":                            0,
		"CREATE DEFINER=a@b TRIGGER t AFTER INSERT ON product FOR EACH ROW DELETE FROM `order`": 0,
		"ALTER IGNORE TABLE product ADD UNIQUE (b)":                                             1,
		"CREATE OR REPLACE DATABASE crm":                                                        1,
		"CREATE TABLE a SELECT sweep()":                                                         3,
		"OPTIMIZE LOCAL TABLE product":                                                          0,
		"REPAIR TABLE product":                                                                  3,
		"ANALYZE UPDATE seen SET a = 1":                                                         3,
		"SET PASSWORD FOR product = 'x'":                                                        0,
		"SET STATEMENT a='it\\'s FOR GRANT' FOR TRUNCATE product":                               1,
		"TRUNCATE event.product":                                                                1,
		"SOMETHING NEW":                                                                         3,
		"/* unended":                                                                            0,
		"`":                                                                                     0,
	} {
		if got, _ := Touched("shop", statement, all); len(got) != want {
			t.Errorf("%s touches %d tables, want %d", statement, len(got), want)
		}
	}
}

// Whatever stands in comments before a statement, what removes rows is not passed over.
func FuzzStatement(f *testing.F) {
	for _, seed := range []string{"", "x", "GRANT", "'", "`\"'", "*", "/*", "SET STATEMENT a=1 FOR", "\\'"} {
		f.Add(seed, seed, 0)
	}
	f.Fuzz(func(t *testing.T, first, second string, which int) {
		line := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\n", ""), "\r", "") }
		block := strings.ReplaceAll(first, "/", "")
		if strings.HasPrefix(block, "!") || strings.HasPrefix(block, "M!") {
			return // is run
		}
		comments := []string{"/*" + block + "*/", "-- " + line(first) + "\n", "--\t" + line(first) + "\n", "#" + line(second) + "\n", "  \t\n"}
		statements := []string{"TRUNCATE product", "DROP TABLE IF EXISTS `product`", "alter table shop.product drop x", "CREATE OR REPLACE TABLE product (a int)",
			"RENAME TABLE product TO b", "DROP DATABASE shop", "INSERT INTO v SELECT 1", "/*!40000 ALTER TABLE `product` DISABLE KEYS */"}
		which = max(which, 0)
		statement := comments[which%5] + comments[which/5%5] + statements[which/25%8]
		all := []Table{{"shop", "product"}}
		if touched, _ := Touched("shop", statement, all); len(touched) == 0 {
			t.Errorf("%q touches nothing", statement)
		}
		Touched(first, second, all) // whatever it is
	})
}
