package feedtest

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A KeyText is a value of a key column, in one of the types that a database has for keys.
type KeyText struct {
	Type, Stored string // in SQL
	Told         string // the value that the feed reports, as %T and %v
	Other        string // another SQL text by which the database finds the row; "": none is known
	Named        bool   // the column is of text and Other is one of its values: the log names it
}

// TheTextsOfAKey checks the table of docs/change-feeds.md. open makes the tables, each with a
// column k of the type with the same index, and returns a feed that reports all of them, a
// function that runs statements, and one that reads a number.
func TheTextsOfAKey(t *testing.T, texts []KeyText, open func(tables []string, log *slog.Logger) (f feed.Feed, exec func(sql ...string), number func(sql string) string)) {
	var tables, inserts []string
	for i, text := range texts {
		table := fmt.Sprintf("key%02d", i)
		tables = append(tables, table)
		inserts = append(inserts, "INSERT INTO "+table+" (k) VALUES ("+text.Stored+")")
	}
	var log redistest.Log
	f, exec, number := open(tables, log.Logger())
	w := Open(t, f, feed.Position{})
	exec(inserts...)
	told := map[string]string{}
	for _, c := range w.Changes(len(texts)) {
		key := c.New["k"]
		told[c.Table[strings.LastIndexByte(c.Table, '.')+1:]] += fmt.Sprintf("%T %v", key, key)
	}
	w.End()
	for i, text := range texts {
		t.Run(text.Type, func(t *testing.T) {
			if got := told[tables[i]]; got != text.Told {
				t.Errorf("the feed tells %q, want %q", got, text.Told)
			}
			if text.Other != "" {
				if n := number("SELECT count(*) FROM " + tables[i] + " WHERE k = " + text.Other); n != "1" {
					t.Errorf("%s finds %s rows", text.Other, n)
				}
			}
			if name := tables[i] + ".k ("; text.Named {
				log.Await(t, name)
			} else if log.Count(name) > 0 {
				t.Errorf("the log names the column: %s", &log)
			}
		})
	}
}

// A Kind is a type and a value in SQL, and the value that the feed reports for it.
type Kind struct {
	Type, Value string
	Want        any
}

// TypesBecomeTheKindsOfRow inserts and deletes a row with a value of each type. open makes the
// table kinds with columns, which have names.
func TypesBecomeTheKindsOfRow(t *testing.T, kinds []Kind, open func(columns string, names []string) feed.Feed, exec func(sql ...string)) {
	var names, columns, values []string
	want := feed.Row{}
	for i, k := range kinds {
		name := fmt.Sprintf("c%02d", i)
		names, columns, values = append(names, name), append(columns, name+" "+k.Type), append(values, k.Value)
		want[name] = k.Want
	}
	w := Open(t, open(strings.Join(columns, ", "), names), feed.Position{})
	exec("INSERT INTO kinds VALUES ("+strings.Join(values, ", ")+")", "DELETE FROM kinds")
	changes := w.Changes(2)
	for i, got := range []feed.Row{changes[0].New, changes[1].Old} {
		for name, value := range want {
			if !reflect.DeepEqual(got[name], value) {
				t.Errorf("change %d: %s is %T(%v), want %T(%v)", i, name, got[name], got[name], value, value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("change %d has %d columns, want %d", i, len(got), len(want))
		}
	}
}
