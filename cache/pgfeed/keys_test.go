package pgfeed

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

func TestTheTextsOfAKey(t *testing.T) {
	t.Parallel()
	texts := []feedtest.KeyText{
		{Type: "integer", Stored: "7", Told: "int64 7", Other: "' 7 '"},
		{Type: "bigint", Stored: "7", Told: "int64 7", Other: "'+7'"},
		{Type: "numeric(10,2)", Stored: "1.5", Told: "string 1.50", Other: "'1.500'"},
		{Type: "double precision", Stored: "1.5", Told: "float64 1.5", Other: "'15e-1'"},
		{Type: "boolean", Stored: "true", Told: "bool true", Other: "'yes'"},
		{Type: "text", Stored: "'a'", Told: "string a"},
		{Type: "varchar(9)", Stored: "'a'", Told: "string a"},
		{Type: "name", Stored: "'a'", Told: "string a"},
		{Type: "char(3)", Stored: "'a'", Told: "string a  ", Other: "'a'", Named: true},
		{Type: "citext", Stored: "'a'", Told: "string a", Other: "'A'", Named: true},
		{Type: "text COLLATE nocase", Stored: "'a'", Told: "string a", Other: "'A'", Named: true},
		{Type: "email", Stored: "'a'", Told: "string a", Other: "'A'", Named: true},
		{Type: "mood", Stored: "'sad'", Told: "string sad"},
		{Type: "uuid", Stored: "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", Told: "string a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", Other: "'{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'"},
		{Type: "bytea", Stored: `'\x0a'`, Told: "[]uint8 [10]", Other: `'\012'`},
		{Type: "date", Stored: "'2026-11-27'", Told: "time.Time 2026-11-27 00:00:00 +0000 UTC", Other: "'Nov 27 2026'"},
		{Type: "timestamptz", Stored: "'2026-11-27 10:00+02'", Told: "time.Time 2026-11-27 08:00:00 +0000 UTC", Other: "'2026-11-27 08:00Z'"},
		{Type: "time", Stored: "'10:00'", Told: "string 10:00:00", Other: "'10:00'"},
		{Type: "inet", Stored: "'FE80:0::a'", Told: "string fe80::a", Other: "'FE80::A'"},
		{Type: "macaddr", Stored: "'08-00-2B-01-02-03'", Told: "string 08:00:2b:01:02:03", Other: "'08002b010203'"},
		{Type: "interval", Stored: "'90 min'", Told: "string 01:30:00", Other: "'1h30m'"},
		{Type: "jsonb", Stored: `'{"b":1, "a":2}'`, Told: `string {"a": 2, "b": 1}`, Other: `'{"a":2,"b":1}'`},
	}
	r := newRig(t, "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)", "CREATE TYPE mood AS ENUM ('sad')")
	if r.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'") == int64(0) {
		t.Log("not tested: the server has no citext")
		texts = slices.DeleteFunc(texts, func(k feedtest.KeyText) bool { return k.Type == "citext" || k.Type == "email" })
	} else {
		r.exec("CREATE EXTENSION citext", "CREATE DOMAIN email AS citext")
	}
	feedtest.TheTextsOfAKey(t, texts, func(tables []string, log *slog.Logger) (feed.Feed, func(...string), func(string) string) {
		var told []Table
		for i, table := range tables {
			r.exec("CREATE TABLE " + table + " (k " + texts[i].Type + " PRIMARY KEY)")
			told = append(told, Table{Name: table})
		}
		return r.feed(func(o *Options) { o.Logger = log }, told...), r.exec, func(sql string) string { return fmt.Sprint(r.value(sql)) }
	})
}
