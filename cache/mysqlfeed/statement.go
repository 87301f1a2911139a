package mysqlfeed

import (
	"slices"
	"strings"
)

// touched returns the tables whose rows a statement in the log may have changed without
// saying which: statements that alter tables, and those of sessions that have set
// binlog_format to STATEMENT, which may change any by views, triggers and functions. It may
// return a table too many.
func (t tables) touched(schema string, words []string) tables {
	if len(words) == 0 {
		return nil
	}
	first := func(n int, keyword string) bool {
		return slices.ContainsFunc(words[:min(n, len(words))], func(w string) bool { return strings.EqualFold(w, keyword) })
	}
	switch strings.ToUpper(words[0]) {
	case "XA": // what was changed came when it was prepared; it is seen only now
		if first(2, "COMMIT") {
			return t
		}
		return nil
	case "CREATE":
		if !first(5, "TABLE") {
			return nil
		}
	case "DROP":
		if first(2, "DATABASE") || first(2, "SCHEMA") {
			return t.where(func(t *table) bool { return contains(words, t.schema) })
		}
		if !first(5, "TABLE") && !first(5, "TABLES") {
			return nil
		}
	case "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "CALL", "SELECT", "DO":
		return t
	case "ALTER", "TRUNCATE", "RENAME":
	default:
		return nil
	}
	return t.where(func(t *table) bool {
		return contains(words, t.bare) && (strings.EqualFold(schema, t.schema) || contains(words, t.schema))
	})
}

func (t tables) where(ok func(*table) bool) (found tables) {
	for _, t := range t {
		if ok(t) {
			found = append(found, t)
		}
	}
	return found
}

func contains(words []string, name string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, name) })
}

// words are the keywords and names of a statement. What stands in quotes counts as a name,
// which at worst clears a table too many.
func words(statement string) (words []string) {
	for s := statement; s != ""; {
		switch {
		case strings.HasPrefix(s, "/*!"), strings.HasPrefix(s, "/*M!"): // a comment that is run
			s = strings.TrimLeft(s[3:], "!0123456789")
		case strings.HasPrefix(s, "/*"):
			_, s, _ = strings.Cut(s[2:], "*/")
		case strings.HasPrefix(s, "-- "), strings.HasPrefix(s, "#"):
			_, s, _ = strings.Cut(s, "\n")
		case strings.IndexByte("`\"'", s[0]) >= 0:
			var word string
			word, s, _ = strings.Cut(s[1:], s[:1])
			words = append(words, word)
		case isWord(s[0]):
			n := 1
			for n < len(s) && isWord(s[n]) {
				n++
			}
			words, s = append(words, s[:n]), s[n:]
		default:
			s = s[1:]
		}
	}
	return words
}

func isWord(b byte) bool {
	return b == '_' || b == '$' || b >= 0x80 || '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
