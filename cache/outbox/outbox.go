// Package outbox is a change feed for any SQL database: a table into which transactions
// write the keys that they change, and a [feed.Feed] that reads it.
//
//	changes, err := outbox.New(db, outbox.Options{Dialect: outbox.PostgreSQL})
//	err = changes.Create(ctx) // once; or put outbox.PostgreSQL.Schema("levee_outbox") into your migrations
//	err = cache.Follow(ctx, changes, products.Route("product", nil)) // on a goroutine of its own, until ctx ends
//
// A writer adds one line to its transaction. The example checks all errors.
//
//	_, err = tx.ExecContext(ctx, "UPDATE product SET price = 5 WHERE id = 42")
//	err = changes.Add(ctx, tx, "product", "42")
//	err = tx.Commit()
//
// A row of the table commits with the change, or not at all. So a writer that dies after
// its commit leaves no stale value. A writer without a cache or in another
// language inserts a row into the table itself, or a trigger does for programs that do not
// know levee. Writes without such a row are missed; pgfeed and mysqlfeed, which read the
// database's own log, do not miss them.
//
// # How it reads
//
// Rows get their numbers when they are inserted and become visible when their transaction
// commits, in another order. A reader that selects the rows after the last number that it has
// seen loses the rows of slow transactions. This one selects all rows in the table, the
// oldest first, and deletes them by their numbers when [cache.Follow] has processed
// them. It takes no lock that a writer waits for. A row may be read more than once.
//
// It polls every 100 ms, and at once after a batch and after a signal ([Options.Wake]). In an
// idle database a poll reads an empty table. Each poll reads the rows again that it has given and
// that are not confirmed, as while a filter does not confirm: the more they are, the more rarely it
// polls, every two seconds at the least. With 100,000 such rows it gives no more.
//
// Rows stay while no process follows, so do not write rows before one does. They say which
// keys to drop, not how the rows have changed.
package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/levee-go/levee/cache/feed"
)

// Options says where the table is and how to read it. The zero value of every field but Dialect
// works.
type Options struct {
	// Dialect is the SQL of the database.
	Dialect Dialect
	// Table is the name of the table, with its schema if need be: letters, digits,
	// underscores and dots. "": levee_outbox.
	Table string
	// Name is the feed's name, the same in all processes and different from other feeds' on the
	// same Redis. "": "outbox:" and the table.
	Name string
	// Every is how often the feed polls. 0: 100 ms; at least 1 ms.
	Every time.Duration
	// Batch is how many rows to read at once, more while many wait for a filter. 0: 500; at most 10,000.
	Batch int
	// Wake makes the feed poll at once, for example by a goroutine that waits for the database's
	// notifications. Use a channel with room for one signal and a sender that does not block:
	// signals dropped while the feed polls do no harm. Nil: none.
	Wake <-chan struct{}
}

// An Outbox writes and reads a table of changed keys. It may be used concurrently, but only one
// Follow at a time may read it. Make it with [New].
type Outbox struct {
	db *sql.DB
	o  Options

	patience    time.Duration // the constants patience and mostWaiting, except in tests
	mostWaiting int
}

// plain matches the names of tables, which become part of SQL as they are.
var plain = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

// New makes an Outbox, whose table need not exist yet. db must be the database's primary; the
// caller closes it. The error names the option that is wrong.
func New(db *sql.DB, o Options) (*Outbox, error) {
	if o.Table == "" {
		o.Table = "levee_outbox"
	}
	if o.Name == "" {
		o.Name = "outbox:" + o.Table
	}
	if o.Every == 0 {
		o.Every = 100 * time.Millisecond
	}
	if o.Batch == 0 {
		o.Batch = 500
	}
	switch {
	case db == nil:
		return nil, errors.New("outbox: the database is nil")
	case !o.Dialect.known():
		return nil, errors.New("outbox: Dialect must be PostgreSQL, MySQL or SQLite")
	case !plain.MatchString(o.Table):
		return nil, fmt.Errorf("outbox: Table must be of letters, digits and underscores, got %.60q", o.Table)
	case o.Every < time.Millisecond:
		return nil, fmt.Errorf("outbox: Every must be at least 1ms, got %v", o.Every)
	case o.Batch < 0 || o.Batch > 10_000:
		return nil, fmt.Errorf("outbox: Batch must be from 1 to 10000, got %d", o.Batch)
	}
	return &Outbox{db: db, o: o, patience: patience, mostWaiting: mostWaiting}, nil
}

// Create makes the table if it does not exist.
func (b *Outbox) Create(ctx context.Context) error {
	if _, err := b.db.ExecContext(ctx, b.o.Dialect.Schema(b.o.Table)); err != nil {
		return fmt.Errorf("outbox: making the table %s: %w", b.o.Table, err)
	}
	return nil
}

// A Tx is a transaction of database/sql.
type Tx interface {
	// ExecContext is the method of *sql.Tx.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// addAtOnce is how many rows one INSERT adds.
const addAtOnce = 500

// Add writes, within a transaction, the keys that it changes. table is what [cache.Cache.Route]
// compares, usually the name of the table. keys are ids, as Source.Key returns them. When the
// transaction has committed, followers drop the keys.
func (b *Outbox) Add(ctx context.Context, tx Tx, table string, keys ...string) error {
	for len(keys) > 0 {
		n := min(len(keys), addAtOnce)
		query, args := b.Insert(table, keys[:n]...)
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("outbox: %w", err)
		}
		keys = keys[n:]
	}
	return nil
}

// Insert returns the statement of [Outbox.Add] and its arguments, for a transaction that is not
// one of database/sql: tx.Exec(ctx, query, args...) of pgx. It takes at least one key and at most
// a thousand or so, as many as the database takes arguments for.
func (b *Outbox) Insert(table string, keys ...string) (query string, args []any) {
	var text strings.Builder
	text.WriteString("INSERT INTO " + b.o.Table + " (subject, subject_key, written_at) VALUES ")
	now := time.Now().UnixMicro()
	for i, key := range keys {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString("(" + b.o.Dialect.parameters(3*i, 3) + ")")
		args = append(args, table, key, now)
	}
	return text.String(), args
}

// Name returns the name of the feed.
func (b *Outbox) Name() string { return b.o.Name }

// Consumes returns true: a row that one reader has confirmed is gone for all.
func (b *Outbox) Consumes() bool { return true }

// Open begins to read. It reads all rows of the table, whatever the position, because processed
// rows are deleted.
func (b *Outbox) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	s := &stream{Outbox: b, order: from.Order, waiting: map[int64]bool{}}
	_, _, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}
