package pgfeed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/logonce"
)

// Options configures a [Feed]. Name, URL and Tables are required.
type Options struct {
	// Name is the feed's name, see [feed.Feed].
	Name string
	// URL is the address of the database, "postgres://levee@db/shop" for example, or in libpq's
	// form, "host=db user=levee dbname=shop". It must lead to the primary server itself, not to a
	// pooler such as PgBouncer; with several hosts, add target_session_attrs=primary.
	URL string
	// Tables are the tables to report. If the list changes, a stream loses its position, so that
	// the cache of an added table begins empty.
	Tables []Table
	// Slot is the name of the replication slot, which the first Open makes. No other reader may
	// use the slot. Lower-case letters, digits and "_". Empty: "levee_" and Name.
	Slot string
	// Publication is the name of the publication. Open makes it, or adds tables to it, if the
	// user may. Empty: the name of the slot.
	Publication string
	// MaxBatch is the largest number of changes in a batch; a larger transaction is delivered in
	// several batches. 0: 500.
	MaxBatch int
	// MaxRetained is how many bytes of its log the database may keep for the slot before the feed
	// logs a warning, at most once a minute. 0: 1 GiB; negative: none.
	MaxRetained int64
	// Logger gets events that the feed survives. Nil: slog.Default().
	Logger *slog.Logger
}

// A Table is a table whose changes a [Feed] reports.
type Table struct {
	// Name is the table's name with or without its schema, "public.product" for example. It
	// is [feed.Change.Table], spelled as it is here. Without a schema it is in public.
	Name string
	// Columns are the columns that a row reports: all that are needed to make the cache's keys.
	// The table's REPLICA IDENTITY must have them. Empty: the primary key.
	Columns []string
}

// A Feed reports the changes in tables of a PostgreSQL database. It implements [feed.Feed]; its
// methods may be called concurrently.
type Feed struct {
	o      Options
	config *pgx.ConnConfig
	log    *logonce.Log
	alike  sync.Once // logs the columns of table.alike

	mu         sync.Mutex
	complained map[string]string // by table, the fault that was logged last; guarded by mu

	patience, silence, again time.Duration // the constants, except in tests
}

var _ feed.Feed = (*Feed)(nil)

var (
	plain   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	unplain = regexp.MustCompile(`[^a-z0-9_]`)
)

// application and the feed's name are shown in the database's views.
const application = "levee feed "

// New makes a feed. It does not connect.
func New(o Options) (*Feed, error) {
	o.Slot = cmp.Or(o.Slot, "levee_"+unplain.ReplaceAllString(strings.ToLower(o.Name), "_"))
	o.Publication = cmp.Or(o.Publication, o.Slot)
	o.MaxBatch = cmp.Or(o.MaxBatch, 500)
	o.MaxRetained = cmp.Or(o.MaxRetained, 1<<30)
	o.Logger = logonce.WithEvents(cmp.Or(o.Logger, slog.Default()))
	switch {
	case o.Name == "":
		return nil, errors.New("pgfeed: Options.Name is empty")
	case !plain.MatchString(o.Slot):
		return nil, fmt.Errorf("pgfeed: Options.Slot is %q; it may have lower-case letters, digits and _, 63 at the most", o.Slot)
	case !plain.MatchString(o.Publication):
		return nil, fmt.Errorf("pgfeed: Options.Publication is %q; it may have lower-case letters, digits and _, 63 at the most", o.Publication)
	case o.MaxBatch < 0:
		return nil, fmt.Errorf("pgfeed: Options.MaxBatch is %d", o.MaxBatch)
	case len(o.Tables) == 0:
		return nil, errors.New("pgfeed: Options.Tables is empty")
	case o.URL == "":
		return nil, errors.New("pgfeed: Options.URL is empty")
	}
	named := map[[2]string]bool{}
	for _, t := range o.Tables {
		schema, name := t.split()
		if schema == "" || name == "" {
			return nil, fmt.Errorf("pgfeed: Options.Tables: %q is no name of a table", t.Name)
		}
		if named[[2]string{schema, name}] {
			return nil, fmt.Errorf("pgfeed: Options.Tables names %s.%s twice", schema, name)
		}
		named[[2]string{schema, name}] = true
	}
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("pgfeed: Options.URL: %v", err) // which hides the password
	}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, 10*time.Second)
	for name, value := range map[string]string{
		"application_name": fmt.Sprintf("%.63s", application+o.Name), "client_encoding": "UTF8",
		"statement_timeout": "0", "lock_timeout": "0",
	} {
		config.RuntimeParams[name] = value
	}
	return &Feed{o: o, config: config, log: logonce.New(o.Logger, "pgfeed: "), complained: map[string]string{}, patience: patience, silence: silence, again: again}, nil
}

func (t Table) split() (schema, name string) {
	schema, name, ok := strings.Cut(t.Name, ".")
	if !ok {
		return "public", schema
	}
	return schema, name
}

// Name returns [Options.Name].
func (f *Feed) Name() string { return f.o.Name }

// Tables returns the names of the feed's tables, as in Options.
func (f *Feed) Tables() []string {
	names := make([]string, len(f.o.Tables))
	for i, t := range f.o.Tables {
		names[i] = t.Name
	}
	return names
}

// Open checks the database and begins to read, see [feed.Feed]. Its errors say what to do. A
// table that cannot be followed is an error only if no table can: the other tables are followed,
// and for this one the feed reports at once and each minute that all of its rows may have changed
// ([feed.Truncated]). An Error in the log says why.
//
// At the zero Position Open makes the slot, which takes as long as the longest running
// transaction in the database. If the slot exists, the stream begins in the present.
func (f *Feed) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	begin, err := parsePosition(from)
	if err != nil {
		return nil, err
	}
	soon, cancel := context.WithTimeout(ctx, f.silence) // a link may drop packets
	defer cancel()
	db, err := f.connect(soon)
	if err != nil {
		return nil, err
	}
	published, err := f.prepare(soon, db, begin)
	if err != nil {
		closeConns(db)
		return nil, err
	}
	conn, err := f.connectReplication(soon)
	if err != nil {
		closeConns(db)
		return nil, err
	}
	start, err := f.start(ctx, db, conn, published.version, begin)
	if err != nil {
		closeConns(conn, db)
		return nil, err
	}
	start.publication = published.state
	if begin == (position{}) {
		if err := f.settle(ctx, db); err != nil {
			closeConns(conn, db)
			return nil, err
		}
	}
	f.complain(published.tables)
	return newStream(f, db, conn, published, start, begin == position{}), nil
}

// A publication is what Open has found on the server.
type publication struct {
	version int // of the server
	tables  tables
	state   string // see publicationState
}

// prepare checks the server and the tables, and makes or alters the publication if necessary.
func (f *Feed) prepare(ctx context.Context, db *pgx.Conn, begin position) (p publication, err error) {
	if p.version, err = f.checkServer(ctx, db); err != nil {
		return p, err
	}
	if p.tables, err = f.look(ctx, db, p.version, true); err != nil {
		return p, err
	}
	if len(p.tables.where(fit)) == 0 {
		return p, p.tables.unfit()
	}
	if p.state, err = f.publicationState(ctx, db, p.version); err != nil {
		return p, err
	}
	if begin != (position{}) && begin.publication != p.state {
		return p, f.altered()
	}
	return p, nil
}

func (f *Feed) altered() error {
	return fmt.Errorf("pgfeed: after the position, publication %s was made or altered, or a table was replaced or its REPLICA IDENTITY altered; "+
		"what changed in between may not have been told: %w", f.o.Publication, feed.ErrPositionLost)
}

func (f *Feed) connect(ctx context.Context) (*pgx.Conn, error) {
	db, err := pgx.ConnectConfig(ctx, f.config)
	if err != nil {
		return nil, f.failure(ctx, "connecting", err)
	}
	return db, nil
}

func (f *Feed) connectReplication(ctx context.Context) (*pgconn.PgConn, error) {
	config := f.config.Config.Copy()
	for name, value := range map[string]string{
		"replication": "database",
		// The slot of a follower that has vanished becomes free after this time.
		"wal_sender_timeout": strconv.FormatInt(f.patience.Milliseconds(), 10),
		// How the server writes values, see value.
		"datestyle": "ISO", "intervalstyle": "postgres", "timezone": "UTC", "extra_float_digits": "3", "bytea_output": "hex",
	} {
		config.RuntimeParams[name] = value
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, f.failure(ctx, "connecting for replication", err)
	}
	return conn, nil
}

// start makes or checks the slot, and begins to stream from it.
func (f *Feed) start(ctx context.Context, db *pgx.Conn, conn *pgconn.PgConn, version int, begin position) (position, error) {
	system, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return position{}, f.failure(ctx, "IDENTIFY_SYSTEM", err)
	}
	now := position{lsn: begin.lsn, system: system.SystemID, timeline: system.Timeline}
	if begin != (position{}) {
		if err := f.sameServer(ctx, conn, begin, system); err != nil {
			return position{}, err
		}
	}
	if now.lsn, err = f.seeToSlot(ctx, db, conn, version, begin); err != nil {
		return position{}, err
	}
	err = pglogrepl.StartReplication(ctx, conn, f.o.Slot, now.lsn, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", `publication_names '"` + f.o.Publication + `"'`},
	})
	if err != nil {
		return position{}, f.failure(ctx, "START_REPLICATION", err)
	}
	return now, nil
}

// Drop removes the slot and the publication from the database, for a feed that will not be
// followed any more: the database keeps its log for ever for a slot that nobody reads. Drop
// returns an error if the feed is being followed.
func (f *Feed) Drop(ctx context.Context) error {
	db, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConns(db)
	if _, err := f.freeSlot(ctx, db); err != nil {
		return err
	}
	if _, err := db.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", f.o.Slot); err != nil {
		return f.failure(ctx, "dropping slot "+f.o.Slot, err)
	}
	if _, err := db.Exec(ctx, "DROP PUBLICATION IF EXISTS "+quoted(f.o.Publication)); err != nil {
		return f.failure(ctx, "dropping publication "+f.o.Publication, err)
	}
	return nil
}

// failure returns an error of this package for an error of the driver. It includes the server's
// detail and hint, which the driver's text leaves out, and says what to do.
func (f *Feed) failure(ctx context.Context, what string, err error) error {
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("pgfeed: %s: %w", what, ended)
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return fmt.Errorf("pgfeed: %s: %v", what, err)
	}
	text := pg.Message
	for _, more := range []string{pg.Detail, pg.Hint, f.wayOut(pg)} {
		if more != "" {
			text += "; " + more
		}
	}
	if lost(pg) {
		return fmt.Errorf("pgfeed: %s: %s: %w", what, text, feed.ErrPositionLost)
	}
	return fmt.Errorf("pgfeed: %s: %s (SQLSTATE %s)", what, text, pg.Code)
}

// lost reports whether the server can no longer continue from the slot's place.
func lost(pg *pgconn.PgError) bool {
	switch pg.Code {
	case "58P01": // requested WAL segment has already been removed
		return true
	case "42704": // changes from before the publication was dropped and made anew cannot be decoded
		return strings.Contains(pg.Message, "publication")
	case "55000": // the slot has been invalidated; the text depends on the release
		return strings.Contains(pg.Message, "can no longer get changes") || strings.Contains(pg.Message, "can no longer access")
	}
	return false
}

func (f *Feed) wayOut(pg *pgconn.PgError) string {
	user := quoted(f.config.User)
	switch { // 42501 is insufficient_privilege
	case pg.Code == "42501" && strings.Contains(strings.ToLower(pg.Message+pg.Detail), "replication"):
		return "let a superuser run: ALTER ROLE " + user + " REPLICATION; (on RDS: GRANT rds_replication TO " + user + ";)"
	case pg.Code == "53300":
		return "raise max_wal_senders or max_connections"
	case pg.Code == "53400":
		return "raise max_replication_slots, or drop a slot of pg_replication_slots that nobody reads"
	}
	return ""
}

// closeConns closes connections and ignores the errors.
func closeConns(conns ...interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, conn := range conns {
		_ = conn.Close(ctx)
	}
}

func quoted(name ...string) string { return pgx.Identifier(name).Sanitize() }
