package mysqlfeed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/logonce"
)

// Options configures a [Feed]. Name, Addr, User and Tables are required.
type Options struct {
	// Name is the feed's name, see [feed.Feed].
	Name string
	// Addr is the address of the server, "db:3306" for example.
	Addr string
	// User and Password are the credentials.
	User, Password string
	// TLS configures an encrypted connection. Nil: the connection is not encrypted.
	TLS *tls.Config
	// Tables are the tables to report.
	Tables []Table
	// MaxBatch is the largest number of changes in a batch; a larger transaction is delivered in
	// several batches. 0: 500.
	MaxBatch int
	// ServerID is the feed's number among the server's replicas, which must have different ones.
	// 0: a random number of at least 2³¹.
	ServerID uint32
	// Logger gets events that the feed survives. Nil: slog.Default().
	Logger *slog.Logger
}

// A Table is a table whose changes a [Feed] reports.
type Table struct {
	// Name is the table's name with its database, "shop.product" for example. It is
	// [feed.Change.Table], spelled as it is here.
	Name string
	// Columns are the columns that a row reports: all that are needed to make the cache's keys.
	// Empty: the primary key.
	Columns []string
}

// A Feed reports the changes in tables of a MySQL or MariaDB server. It implements [feed.Feed];
// its methods may be called concurrently.
type Feed struct {
	o    Options
	host string
	port uint16
	log  *logonce.Log

	alike sync.Once // see tellAlike
}

var _ feed.Feed = (*Feed)(nil)

// New makes a feed. It does not connect.
func New(o Options) (*Feed, error) {
	o.MaxBatch = cmp.Or(o.MaxBatch, 500)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	host, portText, err := net.SplitHostPort(o.Addr)
	port, portErr := strconv.ParseUint(portText, 10, 16)
	switch {
	case o.Name == "":
		return nil, errors.New("mysqlfeed: Options.Name is empty")
	case err != nil || portErr != nil || host == "":
		return nil, fmt.Errorf("mysqlfeed: Options.Addr is %q, want host:port", o.Addr)
	case o.User == "":
		return nil, errors.New("mysqlfeed: Options.User is empty")
	case o.MaxBatch < 0:
		return nil, fmt.Errorf("mysqlfeed: Options.MaxBatch is %d", o.MaxBatch)
	case len(o.Tables) == 0:
		return nil, errors.New("mysqlfeed: Options.Tables is empty")
	}
	named := map[string]bool{}
	for _, t := range o.Tables {
		schema, name, ok := strings.Cut(t.Name, ".")
		if !ok || schema == "" || name == "" {
			return nil, fmt.Errorf("mysqlfeed: Options.Tables: %q is not of the form database.table", t.Name)
		}
		if named[t.Name] {
			return nil, fmt.Errorf("mysqlfeed: Options.Tables names %s twice", t.Name)
		}
		named[t.Name] = true
	}
	return &Feed{o: o, host: host, port: uint16(port), log: logonce.New(o.Logger, "mysqlfeed: ")}, nil
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

// Open checks the server and begins to read, see [feed.Feed]. Its errors say what to do. A lost
// position may be reported only by the first Next.
func (f *Feed) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	begin, err := parsePosition(from)
	if err != nil {
		return nil, err
	}
	db, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	s, err := f.open(ctx, db, begin)
	if err != nil {
		db.close()
		return nil, err
	}
	return s, nil
}

func (f *Feed) open(ctx context.Context, db *conn, begin position) (*stream, error) {
	server, err := f.checkServer(ctx, db)
	if err != nil {
		return nil, err
	}
	fresh := begin.flavor == ""
	tables, err := f.look(ctx, server, f.o.Tables, func() (err error) {
		if fresh { // rows after this position have the columns that the tables have now
			begin, err = f.present(ctx, db, server)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case fresh && (len(tables.where(func(t *table) bool { return t.unfit == nil })) == 0 || len(tables.where(func(t *table) bool { return t.blind })) > 0):
		return nil, tables.unfit()
	case begin.flavor != server.flavor:
		return nil, fmt.Errorf("mysqlfeed: the position is of %s, and the server is %s: %w", begin.flavor, server.flavor, feed.ErrPositionLost)
	case server.flavor == mysql.MySQLFlavor && !fresh:
		if err := f.inThePast(ctx, db, begin); err != nil {
			return nil, err
		}
	}
	for _, t := range tables {
		if fresh || t.unfit == nil && slices.Contains(strings.Split(begin.digests, ","), t.sum) {
			t.since = 0
		}
	}
	f.complain(tables)
	f.tellAlike(tables)
	return newStream(ctx, f, db, server, tables, begin, fresh)
}

// syncer makes the reader of the server's log. followed reports whether the rows of a table are
// wanted.
func (f *Feed) syncer(flavor string, followed func(schema, table string) bool) *replication.BinlogSyncer {
	return replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: cmp.Or(f.o.ServerID, 1<<31|rand.Uint32()), Flavor: flavor,
		Host: f.host, Port: f.port, User: f.o.User, Password: f.o.Password, TLSConfig: f.o.TLS,
		ParseTime: true, FillZeroLogPos: true, VerifyChecksum: true,
		HeartbeatPeriod: silence / 3, ReadTimeout: silence,
		DisableRetrySync: true, // the follower begins anew, from the confirmed position
		DiscardGTIDSet:   true, // its set mixes up what gtids keeps apart
		EventCacheCount:  64,   // events that wait when the follower is slow
		Logger:           slog.New(slog.DiscardHandler),
		RowsEventDecodeFunc: func(e *replication.RowsEvent, data []byte) error {
			pos, err := e.DecodeHeader(data)
			if err != nil || !followed(string(e.Table.Schema), string(e.Table.Table)) {
				return err
			}
			if e.DecodeData(pos, data) != nil { // a type that the package cannot read: the whole table counts as changed
				e.Rows = nil
			}
			return nil
		},
	})
}

// A conn is a connection for queries. One goroutine at a time uses it.
type conn struct {
	f      *Feed
	c      *client.Conn
	broken bool // the connection itself has failed
}

func (f *Feed) connect(ctx context.Context) (*conn, error) {
	c, err := client.ConnectWithContext(ctx, f.o.Addr, f.o.User, f.o.Password, "", 10*time.Second, func(c *client.Conn) error {
		c.SetTLSConfig(f.o.TLS)
		c.SetAttributes(map[string]string{"program_name": "levee feed " + f.o.Name})
		return nil
	})
	if err != nil {
		return nil, f.failure(ctx, "connecting to "+f.o.Addr, err)
	}
	return &conn{f: f, c: c}, nil
}

func (c *conn) close() { _ = c.c.Close() }

// query runs a statement. It closes the connection when ctx ends.
func (c *conn) query(ctx context.Context, sql string, args ...any) (*mysql.Result, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.c.Conn.Conn.Close() })
	defer stop()
	_ = c.c.SetDeadline(time.Now().Add(silence))
	result, err := c.c.Execute(sql, args...)
	if err != nil {
		var server *mysql.MyError
		c.broken = !errors.As(err, &server)
		return nil, c.f.failure(ctx, sql, err)
	}
	return result, nil
}

// row returns the first row of a query's result as texts, "" for NULL.
func (c *conn) row(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := c.rows(ctx, sql, args...)
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("mysqlfeed: %s: no rows", sql)
	}
	if err != nil {
		return nil, err
	}
	return rows[0], nil
}

func (c *conn) rows(ctx context.Context, sql string, args ...any) (rows [][]string, err error) {
	result, err := c.query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer result.Close()
	for i := range result.RowNumber() {
		row := make([]string, result.ColumnNumber())
		for j := range row {
			value, err := result.GetString(i, j)
			if err != nil {
				return nil, fmt.Errorf("mysqlfeed: %s: %v", sql, err)
			}
			row[j] = strings.Clone(value) // it is in memory that the next query uses after Close
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// failure returns an error of this package for an error of the driver, and says what to do.
func (f *Feed) failure(ctx context.Context, what string, err error) error {
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("mysqlfeed: %s: %w", what, ended)
	}
	var server *mysql.MyError
	if !errors.As(err, &server) {
		return fmt.Errorf("mysqlfeed: %s: %v", what, err)
	}
	switch server.Code {
	case mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG:
		switch {
		case strings.Contains(server.Message, "same server_"): // server_uuid/server_id in MySQL
			return fmt.Errorf("mysqlfeed: %s: %v; somebody else reads with server id %d: give each reader an Options.ServerID of its own", what, err, f.o.ServerID)
		case !strings.Contains(server.Message, "max_allowed_packet"):
			return fmt.Errorf("mysqlfeed: %s: %v: %w", what, err, feed.ErrPositionLost)
		}
	case mysql.ER_SPECIFIC_ACCESS_DENIED_ERROR, mysql.ER_TABLEACCESS_DENIED_ERROR, mysql.ER_DBACCESS_DENIED_ERROR, mysql.ER_ACCESS_DENIED_ERROR:
		if strings.HasPrefix(what, "connecting") { // the password
			break
		}
		user := strings.ReplaceAll(f.o.User, "'", "''")
		return fmt.Errorf("mysqlfeed: %s: %v; let an administrator run: GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '%s'@'%%'; and GRANT SELECT on the tables", what, err, user)
	}
	return fmt.Errorf("mysqlfeed: %s: %v", what, err)
}
