package mysqlfeed

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/encoding/charmap"
)

// A column describes a column, as information_schema has it.
type column struct {
	name        string
	kind        string // DATA_TYPE
	text        string // COLUMN_TYPE
	charset     string
	collation   string
	collationID uint64 // 0 if the server does not report it
	length      int    // in bytes, of text and binary
	precision   int    // of a decimal
	scale       int
	nullable    bool
	unsigned    bool
	virtual     bool
	wanted      bool     // rows report it
	labels      []string // of an enum
}

var (
	integers = []string{"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"}
	texts    = []string{"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
	binaries = []string{"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
	others   = []string{"float", "double", "decimal", "enum", "date", "time", "datetime", "timestamp", "json", "uuid"}
	charsets = []string{"", "binary", "ascii", "utf8", "utf8mb3", "utf8mb4", "latin1"}
)

// check returns an error if rows cannot report the column.
func (c column) check() error {
	switch {
	case !slices.Contains(slices.Concat(integers, texts, binaries, others), c.kind):
		return fmt.Errorf("is of type %s, which the feed cannot tell", c.kind)
	case !slices.Contains(charsets, c.charset):
		return fmt.Errorf("is in the character set %s; the feed can read utf8mb4, utf8mb3, latin1 and ascii", c.charset)
	case c.virtual:
		return fmt.Errorf("is VIRTUAL, so the log does not have it: make it STORED, or name the columns that it is made of")
	}
	return nil
}

// labels parses the names of an enum's values in its type, such as enum('a','b'); a quote in a
// name is doubled.
func labels(columnType string) (labels []string) {
	_, rest, _ := strings.Cut(columnType, "(")
	for strings.HasPrefix(rest, "'") {
		var label strings.Builder
		for rest = rest[1:]; rest != ""; rest = rest[1:] {
			if strings.HasPrefix(rest, "''") {
				rest = rest[1:]
			} else if rest[0] == '\'' {
				break
			}
			label.WriteByte(rest[0])
		}
		labels = append(labels, label.String())
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, "'"), ",")
	}
	return labels
}

// value converts a value in the log to a value of a Row. It is not ok if the value does not fit
// the column, which then has another type now.
func (c column) value(v any) (value any, ok bool) {
	switch {
	case v == nil:
		return nil, true
	case c.kind == "enum":
		i, ok := v.(int64)
		if !ok || i < 0 || i > int64(len(c.labels)) {
			return nil, false
		}
		if i == 0 { // stored for a value that is not in the enum
			return "", true
		}
		return c.labels[i-1], true
	case slices.Contains(integers, c.kind):
		return c.integer(v)
	case slices.Contains(texts, c.kind), c.kind == "json":
		data, ok := raw(v)
		if ok && c.charset == "latin1" {
			if decoded, err := charmap.Windows1252.NewDecoder().Bytes(data); err == nil {
				data = decoded
			}
		}
		return string(data), ok
	case c.kind == "uuid":
		data, ok := raw(v)
		if !ok || len(data) > 16 {
			return nil, false
		}
		return uuidText(padded(data, 16)), true
	case slices.Contains(binaries, c.kind):
		data, ok := raw(v)
		if c.kind == "binary" {
			data = padded(data, c.length)
		}
		return bytes.Clone(data), ok
	}
	switch v := v.(type) {
	case float32:
		return float64(v), c.kind == "float"
	case float64:
		return v, c.kind == "double"
	case time.Time:
		return v.UTC(), c.kind == "datetime" || c.kind == "timestamp"
	case string: // a date, a time, a decimal; an invalid date and time, 0000-00-00
		return v, c.kind != "float" && c.kind != "double"
	}
	return nil, false
}

func (c column) integer(v any) (any, bool) {
	var n int64
	width := 64
	switch v := v.(type) {
	case int8:
		n, width = int64(v), 8
	case int16:
		n, width = int64(v), 16
	case int32:
		n, width = int64(v), 32
	case int64:
		n = v
	case int: // a year
		n = int64(v)
	default:
		return nil, false
	}
	if c.kind == "mediumint" {
		width = 24
	}
	if c.unsigned || c.kind == "bit" {
		return uint64(n) << (64 - width) >> (64 - width), true
	}
	return n, true
}

func raw(v any) ([]byte, bool) {
	switch v := v.(type) {
	case string:
		return []byte(v), true
	case []byte:
		return v, true
	}
	return nil, false
}

// padded appends the zero bytes that the log leaves out at the end.
func padded(data []byte, length int) []byte {
	if len(data) >= length {
		return data
	}
	return append(bytes.Clone(data), make([]byte, length-len(data))...)
}

// uuidText formats a UUID. In the log its bytes are in their order, though MariaDB stores them in
// another one.
func uuidText(b []byte) string {
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
