package mysqlfeed

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// The log has the values of a row without the names of their columns, unless
// binlog_row_metadata is FULL. If a row is read with the columns that the table has at another
// moment, it gives values of the wrong columns, and the right keys stay cached. So a row is read
// only if it is certain that its columns are the known ones:
//
//   - look reads a table's columns and the end of the log while it holds the table's
//     metadata lock, so that no ALTER TABLE is between the two: rows after that place have
//     these columns, until a statement in the log touches the table;
//   - a position has a digest of the columns. If they are the same when a stream begins
//     there, the rows from there on have them, again until a statement touches the table;
//   - a row that names its columns is read by these names, if their types are the known ones.
//
// Any other row counts as a change of the whole table.

// again is how long a table that cannot be read is not read again.
const again = time.Minute

// look reads tables, and calls meanwhile while no session can alter them. A table that does not
// exist, or has another fault, is unfit, which is no error.
func (f *Feed) look(ctx context.Context, s serverInfo, options []Table, meanwhile func() error) (tables, error) {
	db, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer db.close() // which frees the locks
	for _, sql := range []string{
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", // each table is read as it is after its own lock
		"SET SESSION lock_wait_timeout = 5",
		"START TRANSACTION READ ONLY",
	} {
		if _, err := db.query(ctx, sql); err != nil {
			return nil, err
		}
	}
	found := make(tables, len(options))
	for i, o := range options {
		if found[i], err = f.readTable(ctx, db, s, o); err != nil {
			return nil, err
		}
	}
	status, err := f.logStatus(ctx, db, s)
	if err != nil {
		return nil, err
	}
	var end place
	if len(status) > 0 {
		at, err := placeOf(status[0], number(status[1]))
		if err != nil {
			return nil, err
		}
		end = at
	}
	for _, t := range found {
		t.end, t.since, t.looked = end, end, time.Now()
	}
	if meanwhile != nil {
		err = meanwhile()
	}
	return found, err
}

// unfit returns the faults of the tables.
func (t tables) unfit() error {
	var wrong []error
	for _, t := range t {
		if t.unfit != nil {
			wrong = append(wrong, t.unfit)
		}
	}
	return errors.Join(wrong...)
}

// complain logs the faults of the tables.
func (f *Feed) complain(t tables) {
	if err := t.unfit(); err != nil {
		f.log.Error("the rows of a table cannot be told: each change of it clears its caches", "error", err)
	}
}

// digest identifies the columns of a table in a position.
func (t *table) digest() string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q", []string{t.schema, t.bare})
	for _, c := range t.columns {
		fmt.Fprintf(h, " %q %v", []string{c.name, c.text, c.collation}, []bool{c.nullable, c.virtual})
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// digests returns the digests of the tables whose rows after a place have the known columns.
func (t tables) digests(at place) string {
	var all []string
	for _, t := range t {
		if t.unfit == nil && at >= t.since {
			all = append(all, t.sum)
		}
	}
	return strings.Join(all, ",")
}

// layout returns the columns of an event's rows, or nil if they are not certain.
func (t *table) layout(m *replication.TableMapEvent, at place) []column {
	named := len(m.ColumnName) > 0
	if t.unfit != nil || !named && at <= t.since {
		return nil
	}
	if t.mapped != m.TableID || t.known == nil { // the server gives another id when a table was altered
		t.mapped, t.known = m.TableID, t.match(m, named)
	}
	return t.known
}

// match finds the columns that an event describes, by their names or in their order. It returns
// nil if they differ from the known ones.
func (t *table) match(m *replication.TableMapEvent, named bool) []column {
	count := int(m.ColumnCount)
	if len(m.ColumnType) < count || len(m.ColumnMeta) < count {
		return nil
	}
	unsigned, collations, labels := unsigned(m), m.CollationMap(), m.EnumStrValueMap()
	for i, id := range m.EnumSetCollationMap() {
		if collations == nil {
			collations = map[int]uint64{}
		}
		collations[i] = id
	}
	same := func(c column, i int) bool {
		u, hasSign := unsigned[i]
		id, hasCollation := collations[i]
		own, hasLabels := labels[i]
		switch {
		case !c.like(m.ColumnType[i], m.ColumnMeta[i]):
		case hasSign && u != c.unsigned:
		case hasCollation && id != c.collationID && (named || c.collationID != 0):
		case hasLabels && !slices.Equal(own, c.labels):
		case named && c.charset != "" && !hasCollation:
		case named && c.kind == "enum" && !hasLabels:
		default:
			return true
		}
		return false
	}
	if named {
		own, seen := make([]column, count), 0
		for i, name := range m.ColumnNameString() {
			j := slices.IndexFunc(t.columns, func(c column) bool { return c.name == name })
			if j < 0 || !t.columns[j].wanted {
				continue
			}
			if !same(t.columns[j], i) {
				return nil
			}
			own[i] = t.columns[j]
			seen++
		}
		if seen != len(t.wanted) {
			return nil
		}
		return own
	}
	columns := t.columns
	if len(columns) != count {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.virtual })
	}
	if len(columns) != count {
		return nil
	}
	for i, c := range columns {
		if available, nullable := m.Nullable(i); available && nullable != c.nullable || !same(c, i) {
			return nil
		}
	}
	return columns
}

// unsigned reports of the numeric columns, by their places, whether they are unsigned; nil if the log
// does not say so. The log has a bit for a year too, which m.UnsignedMap does not know: it gives each
// number behind a year the sign of the column before.
func unsigned(m *replication.TableMapEvent) map[int]bool {
	if len(m.SignednessBitmap) == 0 {
		return nil
	}
	signs, bit := map[int]bool{}, 0
	for i := range int(m.ColumnCount) {
		number := m.IsNumericColumn(i)
		if number && bit/8 < len(m.SignednessBitmap) {
			signs[i] = m.SignednessBitmap[bit/8]&(0x80>>(bit%8)) != 0
		}
		if number || m.ColumnType[i] == mysql.MYSQL_TYPE_YEAR {
			bit++
		}
	}
	return signs
}

// logged are the types by which the log describes columns.
var logged = map[string][]byte{
	"tinyint": {mysql.MYSQL_TYPE_TINY}, "smallint": {mysql.MYSQL_TYPE_SHORT}, "mediumint": {mysql.MYSQL_TYPE_INT24},
	"int": {mysql.MYSQL_TYPE_LONG}, "bigint": {mysql.MYSQL_TYPE_LONGLONG}, "year": {mysql.MYSQL_TYPE_YEAR}, "bit": {mysql.MYSQL_TYPE_BIT},
	"float": {mysql.MYSQL_TYPE_FLOAT}, "double": {mysql.MYSQL_TYPE_DOUBLE}, "decimal": {mysql.MYSQL_TYPE_NEWDECIMAL},
	"date": {mysql.MYSQL_TYPE_DATE, mysql.MYSQL_TYPE_NEWDATE}, "time": {mysql.MYSQL_TYPE_TIME, mysql.MYSQL_TYPE_TIME2},
	"datetime":  {mysql.MYSQL_TYPE_DATETIME, mysql.MYSQL_TYPE_DATETIME2},
	"timestamp": {mysql.MYSQL_TYPE_TIMESTAMP, mysql.MYSQL_TYPE_TIMESTAMP2},
	"char":      {mysql.MYSQL_TYPE_STRING, mysql.MYSQL_TYPE_VAR_STRING}, "binary": {mysql.MYSQL_TYPE_STRING},
	"varchar": {mysql.MYSQL_TYPE_VARCHAR, mysql.MYSQL_TYPE_VAR_STRING}, "varbinary": {mysql.MYSQL_TYPE_VARCHAR, mysql.MYSQL_TYPE_VAR_STRING},
	"enum": {mysql.MYSQL_TYPE_STRING, mysql.MYSQL_TYPE_ENUM}, "set": {mysql.MYSQL_TYPE_STRING, mysql.MYSQL_TYPE_SET},
	"uuid": {mysql.MYSQL_TYPE_STRING}, "json": {mysql.MYSQL_TYPE_JSON, mysql.MYSQL_TYPE_BLOB},
	"tinytext": {mysql.MYSQL_TYPE_BLOB}, "text": {mysql.MYSQL_TYPE_BLOB}, "mediumtext": {mysql.MYSQL_TYPE_BLOB}, "longtext": {mysql.MYSQL_TYPE_BLOB},
	"tinyblob": {mysql.MYSQL_TYPE_BLOB}, "blob": {mysql.MYSQL_TYPE_BLOB}, "mediumblob": {mysql.MYSQL_TYPE_BLOB}, "longblob": {mysql.MYSQL_TYPE_BLOB},
}

// blobs are the sizes, in bytes, of the length of a long value.
var blobs = map[string]uint16{"tiny": 1, "": 2, "medium": 3, "long": 4}

// like reports whether the log may describe the column by this type. Any description fits a type
// that rows do not report.
func (c column) like(kind byte, meta uint16) bool {
	kinds, ok := logged[c.kind]
	switch {
	case !ok, kind == 140 || kind == 141: // compressed, in MariaDB
		return true
	case !slices.Contains(kinds, kind):
		return false
	case c.kind == "decimal":
		return meta == uint16(c.precision)<<8|uint16(c.scale)
	case kind == mysql.MYSQL_TYPE_VARCHAR:
		return int(meta) == c.length
	case kind == mysql.MYSQL_TYPE_BLOB && c.kind != "json":
		prefix := strings.TrimSuffix(strings.TrimSuffix(c.kind, "text"), "blob")
		return meta == blobs[prefix]
	case kind == mysql.MYSQL_TYPE_STRING:
		own, length := byte(meta>>8), int(meta&0xff)
		if own&0x30 != 0x30 { // the type contains two bits of the length, inverted
			length |= int(own&0x30^0x30) << 4
			own |= 0x30
		}
		isEnum, isSet := own == mysql.MYSQL_TYPE_ENUM, own == mysql.MYSQL_TYPE_SET
		return isEnum == (c.kind == "enum") && isSet == (c.kind == "set") && (c.kind != "char" && c.kind != "binary" || length == c.length)
	}
	return true
}
