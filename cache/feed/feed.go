// Package feed holds the types by which a database tells a cache what has changed: a [Feed]
// opens a [Stream], which yields a [Batch] of changes at a time. Packages pgfeed, mysqlfeed
// and outbox have feeds; cache.Follow invalidates what they tell.
//
// A feed of your own implements Feed and Stream, and is a function of the database alone:
// the package knows neither Redis nor package cache.
package feed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// A Feed tells which rows of a database have changed, whoever has changed them: a service
// with levee, one without, a job, somebody at a console. It reads the database's own log,
// as pgfeed and mysqlfeed do, or a table that transactions write to, as outbox does.
// cache.Follow invalidates what it tells.
//
// A Feed may be followed again after its Stream has ended; one Stream of it is open at a time.
//
// One that knows its tables may have a method Tables() []string besides: their names as in
// [Change.Table]. Follow then refuses a route of another table, by which nothing would come.
type Feed interface {
	// Name tells the feeds of one Redis apart. Of the processes that follow feeds of one
	// name, one at a time reads; so they must be the same feed of the same database.
	Name() string
	// Open begins to read after the position from, which a Stream of a feed of this name
	// has given, in this process or another. If it is the zero Position, the stream begins
	// now: with all that is committed after Open has returned, at the latest.
	// An error that matches [ErrPositionLost] says that what came after from is not to be
	// had any more.
	Open(ctx context.Context, from Position) (Stream, error)
}

// A Stream yields the changes of a [Feed] in the order of their commits, each at least
// once: those after the last position that was confirmed come again when the feed is
// opened anew. Next and Confirm are called by one goroutine.
type Stream interface {
	// Next waits for changes. It returns the error of ctx when ctx ends, and may then be
	// called again; after any other error the stream is of no more use. It matches
	// [ErrPositionLost] if the database does not hold what comes next. While nothing
	// changes, Next may return a Batch without changes, of a newer position.
	Next(ctx context.Context) (Batch, error)
	// Confirm says that whatever came before a position has been dealt with, so that
	// the database need not hold it any longer. The position is one that Next has given,
	// or the one that the stream was opened at.
	Confirm(ctx context.Context, p Position) error
	// Close ends the stream and frees what it holds. It must be called once.
	Close() error
}

// A Batch is a part of a [Stream].
type Batch struct {
	// Changes are in the order of their commits.
	Changes []Change
	// Position is where a later stream can begin after these changes: the zero Position
	// in the middle of a transaction.
	Position Position
	// Committed is when the last of the changes was committed, by the clock of the database.
	// Zero if that is not known.
	Committed time.Time
	// Behind is how many bytes of its log the database holds that come after the changes,
	// or rows of an outbox. Negative if that is not known.
	Behind int64
}

// A Position is a place in a [Feed]. What it means is the feed's own affair.
type Position struct {
	// Text is the whole position, in printable characters.
	Text string
	// Order grows from one position to the next while the feed reads the same server.
	Order uint64
}

// ErrPositionLost is what a [Feed] returns if changes have been lost to it: its place in
// the log of the database has been removed, or belongs to another server. Follow clears the
// caches then, and goes on from the present.
var ErrPositionLost = errors.New("feed: the position is lost")

// A Change is what happened to one row, or to a table.
type Change struct {
	Table string     // as the feed names it, "public.product" for example
	Kind  ChangeKind // an insert, an update, a delete, or the table as a whole
	// Old and New are the row before and after. Old is nil for an Inserted row, New for a
	// Deleted one. Old of an Updated row may be nil as well, which says that none of the
	// columns that the database logs of old rows has changed.
	Old, New Row
	// Key are the columns of the row's primary key.
	Key []string
}

// ChangeKind is what happened to a row.
type ChangeKind uint8

// The kinds of changes.
const (
	Inserted ChangeKind = iota + 1
	Updated
	Deleted
	Truncated // all rows of the table are gone, or may have changed: its caches are cleared, and their filters abstain until they are rebuilt
)

// A Row holds columns by name, as nil, bool, int64, uint64, float64, string, []byte or
// time.Time. A column that was not named to the feed is not in it.
type Row map[string]any

// Int returns an integer column. Its error names a column that is not there, or that is
// no integer.
func (r Row) Int(column string) (int64, error) {
	value, ok := r[column]
	switch n := value.(type) {
	case int64:
		return n, nil
	case uint64:
		if n <= 1<<63-1 {
			return int64(n), nil
		}
	}
	return 0, unfit(column, "an integer", value, ok)
}

// Text returns a column as text: a string as it is, an integer in decimal digits. Its
// error names a column that is not there, or that is of another type.
func (r Row) Text(column string) (string, error) {
	value, ok := r[column]
	switch t := value.(type) {
	case string:
		return t, nil
	case []byte:
		return string(t), nil
	case int64:
		return strconv.FormatInt(t, 10), nil
	case uint64:
		return strconv.FormatUint(t, 10), nil
	}
	return "", unfit(column, "text", value, ok)
}

func unfit(column, want string, value any, ok bool) error {
	switch {
	case !ok:
		return fmt.Errorf("feed: the feed tells no column %q", column)
	case value == nil:
		return fmt.Errorf("feed: column %q is NULL, not %s", column, want)
	}
	return fmt.Errorf("feed: column %q is a %T, not %s", column, value, want)
}

// Stats counts what cache.Follow has done for a cache in this process. Of a fleet one
// process reads a feed, so add up or take the highest over all processes.
type Stats struct {
	// Wanted says that Follow was called for the cache, and that neither its context nor
	// the cache has ended since. It stays so when Follow has given up.
	Wanted bool

	Following bool   // this process reads a feed for the cache
	Batches   uint64 // of a feed that were dealt with, whether or not they concerned the cache
	Changes   uint64 // of rows that concerned the cache
	Failures  uint64 // of the feed, of Redis or of a route, that were tried again
	Lost      uint64 // positions that the feed had lost, after which the cache was cleared
	// Lag is how long ago the changes were committed that are being dealt with, or were
	// last if the database holds more, as far as the clocks of host and database agree. 0
	// when all is dealt with.
	Lag time.Duration
	// Behind is how many bytes of its log the database holds that are not dealt with,
	// or rows of an outbox, when the feed told last. 0 if it does not tell.
	Behind int64
}
