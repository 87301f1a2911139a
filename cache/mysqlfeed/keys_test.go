package mysqlfeed

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

func TestTheTextsOfAKey(t *testing.T) {
	t.Parallel()
	texts := []feedtest.KeyText{
		{Type: "int", Stored: "7", Told: "int64 7", Other: "' 7'"},
		{Type: "bigint unsigned", Stored: "18446744073709551615", Told: "uint64 18446744073709551615", Other: "'18446744073709551615.0'"},
		{Type: "decimal(10,2)", Stored: "1.5", Told: "string 1.50", Other: "'1.500'"},
		{Type: "double", Stored: "1.5", Told: "float64 1.5", Other: "'15e-1'"},
		{Type: "year", Stored: "2026", Told: "int64 2026", Other: "'2026.0'"},
		{Type: "bit(4)", Stored: "b'101'", Told: "uint64 5"},
		{Type: "varchar(9) COLLATE utf8mb4_general_ci", Stored: "'é'", Told: "string é", Other: "'E'", Named: true},
		{Type: "varchar(9) COLLATE utf8mb4_unicode_ci", Stored: "'é'", Told: "string é", Other: "'E '", Named: true},
		{Type: "varchar(9) COLLATE utf8mb4_bin", Stored: "'a'", Told: "string a", Other: "'a '", Named: true},
		{Type: "varchar(9) COLLATE utf8mb4_nopad_bin", Stored: "'a'", Told: "string a"},
		{Type: "varchar(9) COLLATE utf8mb4_unicode_nopad_ci", Stored: "'a'", Told: "string a", Other: "'A'", Named: true},
		{Type: "varchar(9) CHARACTER SET latin1", Stored: "'é'", Told: "string é", Other: "'E'", Named: true},
		{Type: "varchar(9) CHARACTER SET ascii COLLATE ascii_bin", Stored: "'a'", Told: "string a", Other: "'a '", Named: true},
		{Type: "char(3) COLLATE utf8mb4_general_ci", Stored: "'a'", Told: "string a", Other: "'A '", Named: true},
		{Type: "enum('a', 'b') COLLATE utf8mb4_general_ci", Stored: "'a'", Told: "string a", Other: "'A'", Named: true},
		{Type: "binary(3)", Stored: "'a'", Told: "[]uint8 [97 0 0]", Other: `'a\0\0'`},
		{Type: "varbinary(3)", Stored: "'a'", Told: "[]uint8 [97]"},
		{Type: "uuid", Stored: "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", Told: "string a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", Other: "'A0EEBC999C0B4EF8BB6D6BB9BD380A11'"},
		{Type: "date", Stored: "'2026-11-27'", Told: "string 2026-11-27", Other: "'2026.11.27'"},
		{Type: "datetime(3)", Stored: "'2026-11-27 10:00:00'", Told: "time.Time 2026-11-27 10:00:00 +0000 UTC", Other: "'2026-11-27 10:00'"},
		{Type: "time", Stored: "'10:00'", Told: "string 10:00:00", Other: "'10:00'"},
	}
	r := newRig(t)
	if !r.mariaDB() {
		texts = slices.DeleteFunc(texts, func(k feedtest.KeyText) bool { return k.Type == "uuid" || strings.Contains(k.Type, "nopad") })
	}
	feedtest.TheTextsOfAKey(t, texts, func(tables []string, log *slog.Logger) (feed.Feed, func(...string), func(string) string) {
		var told []Table
		for i, table := range tables {
			r.exec("CREATE TABLE " + table + " (k " + texts[i].Type + ", n INT AUTO_INCREMENT PRIMARY KEY, KEY (k))")
			told = append(told, Table{table, []string{"k"}})
		}
		return r.feed(func(o *Options) { o.Logger = log }, told...),
			func(sql ...string) { r.exec(append([]string{"SET NAMES utf8mb4"}, sql...)...) },
			r.value
	})
}
