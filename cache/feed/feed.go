// Package feed defines how a cache learns which rows of a database have changed: a [Feed]
// opens a [Stream], which yields a [Batch] of changes at a time. Packages pgfeed, mysqlfeed
// and outbox have feeds; cache.Follow invalidates the keys of the rows that they report.
//
// A feed of your own implements Feed and Stream. It needs the database only: this package
// uses neither Redis nor package cache.
package feed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// A Feed reports which rows of a database have changed, whoever has changed them: a service with
// levee, one without, a job, somebody at a console. It reads the database's own log, as pgfeed
// and mysqlfeed do, or a table that transactions write to, as outbox does. cache.Follow
// invalidates the rows' keys.
//
// A Feed may be opened again after its Stream has ended; one Stream of it is open at a time.
//
// A Feed may have another method, Tables() []string, that returns the names of its tables as in
// [Change.Table]. Follow then refuses a route of any other table, because no change would come
// for it. A method Consumes() bool that returns true says that a change which one reader has
// confirmed is gone for all readers; an audit.Ledger then refuses the Feed.
type Feed interface {
	// Name identifies the feed among the feeds of one Redis. Processes that follow feeds of the
	// same name take turns: one at a time reads. So these must be the same feed of the same
	// database.
	Name() string
	// Open begins to read after the position from, which a Stream of a feed of this name has
	// returned, in this process or another. If from is the zero Position, the stream begins in
	// the present: it includes every transaction that commits after Open has returned. An error
	// that matches [ErrPositionLost] says that the changes after from are no longer available.
	Open(ctx context.Context, from Position) (Stream, error)
}

// A Stream yields the changes of a [Feed] in the order of their commits, each at least once: when
// the feed is opened again, changes after the last confirmed position come again. Next and
// Confirm are called by one goroutine.
type Stream interface {
	// Next waits for changes. When ctx ends it returns the error of ctx, and has taken no changes: it
	// may be called again, and returns them then. After any other error the stream cannot be used. The
	// error matches [ErrPositionLost] if the database no longer has the changes that come next. While
	// nothing changes, Next may return a Batch without changes and with a newer position.
	Next(ctx context.Context) (Batch, error)
	// Confirm says that all changes before p have been processed, so that the database need not
	// keep them. p is a position that Next has returned, or the one that the stream was opened
	// at.
	Confirm(ctx context.Context, p Position) error
	// Close ends the stream and frees its resources. It must be called once.
	Close() error
}

// A Batch is a number of successive changes of a [Stream].
type Batch struct {
	// Changes are in the order of their commits.
	Changes []Change
	// Position is where a later stream can begin after these changes: the zero Position in the
	// middle of a transaction.
	Position Position
	// Committed is when the last of the changes was committed, by the clock of the database. Zero
	// if that is not known.
	Committed time.Time
	// Behind is how much the database still holds after these changes: bytes of its log, or
	// rows of an outbox. Negative if that is not known.
	Behind int64
}

// A Position is a place in a [Feed]. Only the feed interprets it.
type Position struct {
	// Text is the whole position, in printable characters.
	Text string
	// Order increases from one position to the next while the feed reads the same server.
	Order uint64
}

// ErrPositionLost is returned by a [Feed] that cannot report all changes: its place in the log of
// the database has been removed, or belongs to another server. Follow then clears the caches, and
// continues from the present.
var ErrPositionLost = errors.New("feed: the position is lost")

// A Change is a change of one row, or of a whole table.
type Change struct {
	Table string     // name that the feed uses, "public.product" for example
	Kind  ChangeKind // an insert, an update, a delete, or the table as a whole
	// Old and New are the row before and after the change. Old is nil for an Inserted row, New
	// for a Deleted one. Old may also be nil for an Updated row: then none of the columns that
	// the database logs of old rows has changed.
	Old, New Row
	// Key is the columns of the row's primary key.
	Key []string
}

// A ChangeKind says what happened to a row.
type ChangeKind uint8

// The kinds of changes.
const (
	Inserted ChangeKind = iota + 1
	Updated
	Deleted
	Truncated // all rows of the table are gone, or may have changed: its caches are cleared, and their filters abstain until they are rebuilt
)

// A Row holds columns by name, as nil, bool, int64, uint64, float64, string, []byte or time.Time.
// It has only the columns that the feed was told to report.
type Row map[string]any

// Int returns an integer column. Its error names a column that is missing or is no integer.
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
	return 0, r.unfit(column, "an integer", value, ok)
}

// Text returns a column as text: a string as it is, an integer in decimal digits. Its error names
// a column that is missing or has another type.
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
	return "", r.unfit(column, "text", value, ok)
}

func (r Row) unfit(column, want string, value any, ok bool) error {
	switch {
	case !ok:
		return fmt.Errorf("feed: the feed tells no column %q, but %q: the Columns of its table say which", column, slices.Sorted(maps.Keys(r)))
	case value == nil:
		return fmt.Errorf("feed: column %q is NULL, not %s: a route may return no keys for such a row", column, want)
	}
	return fmt.Errorf("feed: column %q is a %T, not %s", column, value, want)
}

// Stats counts what cache.Follow has done for a cache in this process. One process of a fleet
// reads a feed, so add up the counters, or take the maximum, over all processes.
type Stats struct {
	// Wanted says that Follow was called for the cache, and that neither its context nor the
	// cache has ended since. It stays true if Follow has given up.
	Wanted bool

	Following bool   // this process reads a feed for the cache
	Batches   uint64 // batches that were processed, whether or not they concerned the cache
	Changes   uint64 // changes of rows that concerned the cache
	Failures  uint64 // failures of the feed, of Redis, of a route or of the cache's filter, which were tried again
	Lost      uint64 // positions that the feed had lost, after which the cache was cleared
	// Lag is the age of the changes that are being processed, counted from their commit, as far
	// as the clocks of host and database agree. If the database holds more changes, it is the lag
	// of the last processed ones. 0 when all are processed. While the cache's filter does not
	// confirm changes that are invalidated already, it is the time since it was first given them.
	Lag time.Duration
	// Behind is how much the database holds that is not processed, by the feed's last report:
	// bytes of its log, or rows of an outbox. 0 if the feed does not report it.
	Behind int64
}
