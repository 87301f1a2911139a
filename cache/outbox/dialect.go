package outbox

import (
	"strconv"
	"strings"
)

// A Dialect is the kind of SQL that a database speaks.
type Dialect uint8

// The dialects.
const (
	PostgreSQL Dialect = iota + 1
	MySQL              // MariaDB as well
	SQLite
)

func (d Dialect) known() bool { return d >= PostgreSQL && d <= SQLite }

// Schema returns the statement that makes a table for an [Outbox], for a migration. It does
// nothing if the table exists. The table has these columns:
//
//	id           a number that the database assigns
//	subject      what Route compares, usually the name of the table that has changed
//	subject_key  the key that has changed, as Source.Key returns it
//	written_at   when, in microseconds since 1970; may be NULL, and is for statistics only
//
// A trigger may write to it: INSERT INTO levee_outbox (subject, subject_key) VALUES ('product',
// NEW.id).
func (d Dialect) Schema(table string) string {
	columns := map[Dialect]string{
		PostgreSQL: "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, subject TEXT NOT NULL, subject_key TEXT NOT NULL, written_at BIGINT",
		// Keys may be any bytes that a Source makes, and differ in case.
		MySQL: "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, subject VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, " +
			"subject_key VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, written_at BIGINT",
		// Without AUTOINCREMENT the number of a deleted row would be assigned again, to a row
		// that is not processed yet.
		SQLite: "id INTEGER PRIMARY KEY AUTOINCREMENT, subject TEXT NOT NULL, subject_key TEXT NOT NULL, written_at INTEGER",
	}[d]
	end := ")"
	if d == MySQL {
		end = ") ENGINE=InnoDB"
	}
	return "CREATE TABLE IF NOT EXISTS " + table + " (" + columns + end
}

// Notify returns statements for PostgreSQL, "" for other dialects. They make every transaction
// that writes to the table notify, once, the channel of the table's name when it commits. If a
// goroutine listens there, as with WaitForNotification of pgx, and sends signals to
// [Options.Wake], the time from a commit to its invalidation falls to about a millisecond. A
// NOTIFY makes commits wait for one another for a moment: with thousands of writes a second, let
// the feed poll instead.
func (d Dialect) Notify(table string) string {
	if d != PostgreSQL {
		return ""
	}
	name := strings.ReplaceAll(table, ".", "_") + "_notify"
	return "CREATE OR REPLACE FUNCTION " + name + "() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('" + table + "', ''); RETURN NULL; END $$;\n" +
		"DROP TRIGGER IF EXISTS " + name + " ON " + table + ";\n" +
		"CREATE TRIGGER " + name + " AFTER INSERT ON " + table + " FOR EACH STATEMENT EXECUTE FUNCTION " + name + "();"
}

// removeAtOnce returns how many rows one DELETE removes. MySQL finds a single row by its number.
// For several it may scan the table, whatever the hints, and lock all rows that it scans: it
// would wait for the rows of open transactions, and writers for it.
func (d Dialect) removeAtOnce() int {
	if d == MySQL {
		return 1
	}
	return 500
}

// parameters returns n placeholders for arguments, after before others.
func (d Dialect) parameters(before, n int) string {
	var text strings.Builder
	for i := range n {
		if i > 0 {
			text.WriteString(", ")
		}
		if d == PostgreSQL {
			text.WriteString("$" + strconv.Itoa(before+i+1))
		} else {
			text.WriteString("?")
		}
	}
	return text.String()
}
