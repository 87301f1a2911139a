// Package statement knows which tables a statement in the log of a MySQL or MariaDB may have
// changed.
package statement

import (
	"slices"
	"strings"
)

// A Table is one by its database and its name.
type Table struct{ Schema, Name string }

// Touched returns the tables, by their index, whose rows a statement in the log may have
// changed without saying which, and whether it may have altered their columns too. schema is
// the database that the session was in. It may return a table too many, and none too few: of
// a statement that is not known to be harmless, those that it names, or all if that is no
// statement about tables either, such as one of a session that has set binlog_format to
// STATEMENT: it may change any by views, triggers and functions.
//
// A comment that some servers run and others do not is read in both ways.
func Touched(schema, statement string, tables []Table) (touched []int, altered bool) {
	s := subject{schema, statement, tables}
	for _, run := range []bool{true, false} {
		found, alters := s.touched(Words(statement, run))
		touched = append(touched, found...)
		altered = altered || alters && len(found) > 0
		if !strings.Contains(statement, "/*!") && !strings.Contains(statement, "/*M!") {
			break
		}
	}
	slices.Sort(touched)
	return slices.Compact(touched), altered
}

// A subject is a statement and what it may be about.
type subject struct {
	schema, text string
	tables       []Table
}

func (s subject) touched(words []string) (touched []int, altered bool) {
	if len(words) == 0 {
		return nil, false
	}
	verb, object := words[0], ""
	for _, object = range words[1:] {
		if !slices.Contains(decorations, object) {
			break
		}
	}
	switch verb {
	case "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "START", "GRANT", "REVOKE", "FLUSH", "USE":
		return nil, false
	case "XA": // what was changed came when it was prepared; it is seen only now
		if object == "COMMIT" {
			return s.all(), false
		}
		return nil, false
	case "SET":
		if object != "STATEMENT" {
			return nil, false
		}
		if i := slices.Index(words, "FOR"); i > 0 {
			if inner, alters := s.touched(words[i+1:]); len(inner) > 0 {
				return inner, alters
			}
			return s.named(), true
		}
	case "ANALYZE", "OPTIMIZE":
		if object == "TABLE" || object == "TABLES" {
			return nil, false
		}
	case "TRUNCATE":
		return s.named(), true
	case "CREATE", "ALTER", "DROP", "RENAME":
		switch {
		case slices.Contains(harmless, object):
			return nil, false
		case object == "DATABASE" || object == "SCHEMA":
			return s.where(func(t Table) bool { return mentions(s.text, t.Schema) }), true
		case verb != "CREATE" || !mentions(s.text, "SELECT"): // which may call functions
			return s.named(), true
		}
	case "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "CALL", "SELECT", "DO", "LOAD", "VALUES":
		return s.all(), false
	}
	return s.all(), true
}

var (
	// decorations may stand between CREATE, ALTER or DROP and what it is about.
	decorations = []string{"OR", "REPLACE", "TEMPORARY", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "AGGREGATE",
		"ALGORITHM", "UNDEFINED", "MERGE", "TEMPTABLE", "SQL", "SECURITY", "INVOKER", "NO_WRITE_TO_BINLOG", "LOCAL"}
	// harmless are things whose making and end changes no rows. A DEFINER have only such.
	harmless = []string{"VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "PACKAGE", "EVENT", "USER", "ROLE", "INDEX", "SERVER", "SEQUENCE", "DEFINER"}
)

// named returns the tables that the statement names.
func (s subject) named() []int {
	return s.where(func(t Table) bool {
		return mentions(s.text, t.Name) && (strings.EqualFold(s.schema, t.Schema) || mentions(s.text, t.Schema))
	})
}

func (s subject) all() []int { return s.where(func(Table) bool { return true }) }

func (s subject) where(ok func(Table) bool) (found []int) {
	for i, t := range s.tables {
		if ok(t) {
			found = append(found, i)
		}
	}
	return found
}

// mentions reports whether a name stands anywhere in a statement, quoted or not, be it in a
// comment or a text. A name that is not ASCII may be written in any character set, so that it
// counts as mentioned.
func mentions(statement, name string) bool {
	if strings.ContainsFunc(name, func(r rune) bool { return r >= 0x80 }) {
		return true
	}
	statement, name = strings.ToLower(statement), strings.ToLower(name)
	for _, form := range []string{name, strings.ReplaceAll(name, "`", "``"), strings.ReplaceAll(name, `"`, `""`)} {
		for begin := 0; begin+len(form) <= len(statement); begin++ {
			i := strings.Index(statement[begin:], form)
			if i < 0 {
				break
			}
			begin += i
			end := begin + len(form)
			before := begin > 0 && isWord(statement[begin-1]) && isWord(form[0])
			after := end < len(statement) && isWord(statement[end]) && isWord(form[len(form)-1])
			if !before && !after {
				return true
			}
		}
	}
	return false
}

// Words are the first words of a statement in upper case. What stands in quotes is none.
// run says whether to read what stands in comments that some servers run.
func Words(s string, run bool) (words []string) {
	for s != "" && len(words) < 64 {
		switch {
		case strings.HasPrefix(s, "/*!") && run, strings.HasPrefix(s, "/*M!") && run:
			s = strings.TrimLeft(s[3:], "!0123456789")
		case strings.HasPrefix(s, "/*"):
			_, s, _ = strings.Cut(s[2:], "*/")
		case strings.HasPrefix(s, "--") && (len(s) == 2 || s[2] <= ' '), s[0] == '#':
			_, s, _ = strings.Cut(s, "\n")
		case strings.IndexByte("`\"'", s[0]) >= 0:
			quote, n := s[0], 1
			for n < len(s) && s[n] != quote {
				if s[n] == '\\' && quote != '`' {
					n++
				}
				n++
			}
			s = s[min(n+1, len(s)):]
		case isWord(s[0]):
			n := 1
			for n < len(s) && isWord(s[n]) {
				n++
			}
			words, s = append(words, strings.ToUpper(s[:n])), s[n:]
		default:
			s = s[1:]
		}
	}
	return words
}

func isWord(b byte) bool {
	return b == '_' || b == '$' || b >= 0x80 || '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
