package pgfeed

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/levee-go/levee/cache/feed"
)

// A relation is the server's description of a table, which it sends before the first change of
// the table, and again after the table was altered.
type relation struct {
	table   *table // nil: not one of the feed's
	columns []relationColumn
	untold  bool // its rows cannot be read: the table is unfit, or was altered before or after Open
}

type relationColumn struct {
	name     string // "" if rows do not report the column
	oid      uint32 // of its type; for a domain, of its base type
	identity bool
}

// firstOwnType is the first number of types that are not built into PostgreSQL.
const firstOwnType = 16384

// newRelation reads a relation. Its error matches feed.ErrPositionLost, or says why the rows of
// the relation cannot be reported.
func newRelation(tables tables, m *pglogrepl.RelationMessage) (*relation, error) {
	t := tables.named(m.Namespace, m.RelationName)
	r := &relation{table: t, untold: t != nil && t.unfit != nil}
	if t == nil || r.untold {
		return r, nil
	}
	seen := 0
	for _, c := range m.Columns {
		column := relationColumn{oid: c.DataType, identity: c.Flags&1 != 0}
		if slices.Contains(t.columns, c.Name) {
			seen++
			column.name = c.Name
			if !column.identity {
				return nil, t.blind(c.Name)
			}
			base, known := t.types[c.DataType]
			if !known && c.DataType >= firstOwnType {
				return nil, fmt.Errorf("pgfeed: table %s has been altered: column %q is of a new type", t.name, c.Name)
			}
			if known {
				column.oid = base
			}
		}
		r.columns = append(r.columns, column)
	}
	if seen != len(t.columns) {
		return nil, fmt.Errorf("pgfeed: table %s has been altered: the feed is to tell %q, and not all of them are there any more", t.name, t.columns)
	}
	return r, nil
}

// blind returns the error for old rows without a column that they had when Open read the table.
func (t *table) blind(column string) error {
	return fmt.Errorf("pgfeed: table %s: its REPLICA IDENTITY, or that of a partition, did not have column %q: %w", t.name, column, feed.ErrPositionLost)
}

// change makes a change of the two tuples of a message. PostgreSQL leaves out of the new row
// values that are stored separately (TOAST) and have not changed.
func (r *relation) change(kind feed.ChangeKind, before *pglogrepl.TupleData, beforeIsKey bool, after *pglogrepl.TupleData) (feed.Change, error) {
	c := feed.Change{Table: r.table.name, Kind: kind, Key: r.table.key}
	if r.untold {
		c.Kind = feed.Truncated
		return c, nil
	}
	var err error
	if before != nil {
		if c.Old, err = r.row(before, beforeIsKey, nil); err != nil {
			return c, err
		}
		for column, v := range c.Old { // the server sends NULL for columns that the identity of a partition lacks
			if v == nil && r.table.notNull[column] {
				return c, r.table.blind(column)
			}
		}
	}
	if after != nil {
		c.New, err = r.row(after, false, c.Old)
	}
	return c, err
}

func (r *relation) row(t *pglogrepl.TupleData, onlyIdentity bool, old feed.Row) (feed.Row, error) {
	if len(t.Columns) != len(r.columns) {
		return nil, fmt.Errorf("pgfeed: table %s: a row has %d columns, and the table %d", r.table.name, len(t.Columns), len(r.columns))
	}
	row := make(feed.Row, len(r.table.columns))
	for i, data := range t.Columns {
		column := r.columns[i]
		if column.name == "" || onlyIdentity && !column.identity {
			continue
		}
		switch data.DataType {
		case pglogrepl.TupleDataTypeNull:
			row[column.name] = nil
		case pglogrepl.TupleDataTypeToast:
			if value, ok := old[column.name]; ok {
				row[column.name] = value
			}
		case pglogrepl.TupleDataTypeText:
			v, err := value(column.oid, string(data.Data))
			if err != nil {
				return nil, fmt.Errorf("pgfeed: table %s, column %q: %v", r.table.name, column.name, err)
			}
			row[column.name] = v
		default:
			return nil, fmt.Errorf("pgfeed: table %s, column %q: a value of unknown form %q", r.table.name, column.name, data.DataType)
		}
	}
	return row, nil
}

// value parses a value that PostgreSQL has written with the settings of connectReplication. Times
// that time.Time cannot represent, such as infinity, stay text.
func value(oid uint32, text string) (any, error) {
	switch oid {
	case 16: // boolean
		return text == "t", nil
	case 17: // bytea
		if len(text) < 2 || text[:2] != `\x` {
			return nil, fmt.Errorf("a bytea that does not begin with \\x")
		}
		return hex.DecodeString(text[2:])
	case 20, 21, 23, 26: // bigint, smallint, integer, oid
		return strconv.ParseInt(text, 10, 64)
	case 700, 701: // real, double precision
		return strconv.ParseFloat(text, 64)
	case 1082: // date
		return moment("2006-01-02", text), nil
	case 1114: // timestamp
		return moment("2006-01-02 15:04:05", text), nil
	case 1184: // timestamp with time zone
		return moment("2006-01-02 15:04:05-07", text), nil
	}
	return text, nil
}

func moment(layout, text string) any {
	t, err := time.Parse(layout, text)
	if err != nil {
		return text
	}
	return t.UTC()
}
