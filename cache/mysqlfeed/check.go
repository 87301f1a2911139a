package mysqlfeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/logonce"
)

// A serverInfo holds settings of the server.
type serverInfo struct {
	flavor     string
	image      string // binlog_row_image
	collations string // a table of names and ids of collations, in SQL
}

// checkServer checks the settings of the server.
func (f *Feed) checkServer(ctx context.Context, db *conn) (serverInfo, error) {
	row, err := db.row(ctx, "SELECT @@version, @@global.log_bin, @@global.binlog_format, @@global.binlog_row_image")
	if err != nil {
		return serverInfo{}, err
	}
	s := serverInfo{flavor: mysql.MySQLFlavor, image: strings.ToUpper(row[3]), collations: "SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS"}
	if strings.Contains(row[0], "MariaDB") {
		s.flavor = mysql.MariaDBFlavor
	}
	switch {
	case row[1] != "1":
		return s, errors.New("mysqlfeed: log_bin is OFF, so the server keeps no log: start it with log_bin")
	case row[2] != "ROW":
		return s, fmt.Errorf("mysqlfeed: binlog_format is %s, so the log does not have rows: let an administrator run SET GLOBAL binlog_format = ROW; and set it in the server's configuration", row[2])
	}
	if s.flavor == mysql.MySQLFlavor {
		mode, err := db.row(ctx, "SELECT @@global.gtid_mode")
		if err != nil {
			return s, err
		}
		if mode[0] != "ON" {
			return s, fmt.Errorf("mysqlfeed: gtid_mode is %s: without global transaction ids the server does not tell when others see a transaction; "+
				"set gtid_mode = ON and enforce_gtid_consistency = ON", mode[0])
		}
	}
	compression, err := db.rows(ctx, "SHOW GLOBAL VARIABLES LIKE 'binlog_transaction_compression'")
	if err != nil {
		return s, err
	}
	if len(compression) > 0 && compression[0][1] == "ON" {
		f.log.Warn("binlog_transaction_compression is ON: the feed takes a compressed transaction into memory whole")
	}
	full, err := db.rows(ctx, `SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'
		AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'FULL_COLLATION_NAME'`)
	if err != nil {
		return s, err
	}
	if len(full) > 0 { // since MariaDB 10.10, whose COLLATIONS has no ids of the collations that several character sets share, such as uca1400_ai_ci
		s.collations = "SELECT FULL_COLLATION_NAME AS COLLATION_NAME, ID FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
	}
	return s, f.checkFilters(ctx, db, s)
}

// denied is how long Check waits for the server to refuse its log.
const denied = time.Second

// Check tests, at the start of a service, whether the feed can be opened: the server's settings,
// the tables, and the user's rights, including the right to read the log. Its error names all
// tables with a fault, each with the remedy, such as the statement that fixes it; Open may
// succeed although some tables have faults. Check changes nothing, and may be called while the
// feed is followed. It takes a second, ten if the server does not answer, or until ctx ends.
func (f *Feed) Check(ctx context.Context) error {
	db, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer db.close()
	server, err := f.checkServer(ctx, db)
	if err != nil {
		return err
	}
	tables, err := f.look(ctx, server, f.o.Tables, nil)
	if err != nil {
		return err
	}
	unfit := tables.unfit()
	if len(tables.where(func(t *table) bool { return t.unfit == nil })) == 0 {
		return unfit
	}
	return errors.Join(unfit, f.checkReading(ctx))
}

// checkReading reads from the log, as a separate reader.
func (f *Feed) checkReading(ctx context.Context) error {
	reader := &Feed{o: f.o, host: f.host, port: f.port, log: logonce.New(slog.New(slog.DiscardHandler), "")}
	reader.o.ServerID = 0 // the follower uses the feed's
	s, err := reader.Open(ctx, feed.Position{})
	if err != nil {
		return err
	}
	defer s.Close()
	soon, cancel := context.WithTimeout(ctx, denied)
	defer cancel()
	for err == nil { // a refusal of the server comes in place of the first event
		_, err = s.Next(soon)
	}
	if soon.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// checkFilters checks that the log has the databases of the tables.
func (f *Feed) checkFilters(ctx context.Context, db *conn, s serverInfo) error {
	status, err := f.logStatus(ctx, db, s)
	if err != nil || len(status) == 0 {
		return err
	}
	only, never := split(status[2]), split(status[3])
	for _, t := range f.o.Tables {
		schema, _, _ := strings.Cut(t.Name, ".")
		if len(only) > 0 && !slices.Contains(only, schema) || slices.Contains(never, schema) {
			return fmt.Errorf("mysqlfeed: binlog_do_db (%q) and binlog_ignore_db (%q) keep %s out of the log", only, never, schema)
		}
	}
	return nil
}

// logStatus returns where the log ends and which databases it has. It is empty without a log.
func (f *Feed) logStatus(ctx context.Context, db *conn, s serverInfo) ([]string, error) {
	status, err := db.rows(ctx, "SHOW MASTER STATUS")
	if err != nil && s.flavor == mysql.MySQLFlavor && ctx.Err() == nil { // since MySQL 8.4
		status, err = db.rows(ctx, "SHOW BINARY LOG STATUS")
	}
	if err != nil || len(status) == 0 {
		return nil, err
	}
	return status[0], nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// A table describes one of [Options.Tables], as the server has it.
type table struct {
	name         string // in Options
	schema, bare string
	wanted       []string // columns that a row reports
	key          []string // the primary key, if a row reports all of it
	columns      []column // all of them, in their order
	cascades     bool     // a foreign key may change its rows, which the log does not show
	unfit        error    // why rows cannot be reported; nil: they can
	blind        bool     // it is unfit, and the log does not have all of its changes

	sum        string    // the digest
	end, since place     // where the log ended when columns were read; rows after since have these columns
	looked     time.Time // when columns were read
	mapped     uint64    // the server's id of the table when known was found
	known      []column  // columns of rows with this id
}

// readTable locks a table until the end of the connection's transaction and reads it. It returns
// errors of the connection; a fault of the table makes it unfit.
func (f *Feed) readTable(ctx context.Context, db *conn, s serverInfo, o Table) (*table, error) {
	t := &table{name: o.Name, wanted: slices.Clone(o.Columns)}
	t.schema, t.bare, _ = strings.Cut(o.Name, ".")
	err := t.read(ctx, db, s)
	if err != nil && (ctx.Err() != nil || db.broken) {
		return nil, err
	}
	if err != nil {
		t.unfit = fmt.Errorf("mysqlfeed: table %s: %w", o.Name, err)
	}
	return t, nil
}

func (t *table) read(ctx context.Context, db *conn, s serverInfo) error {
	// A statement that makes or alters the table now may be in the log already, and what the server tells of its
	// tables does not wait for it. This does, and takes the lock; if it fails, so does what follows.
	_, _ = db.query(ctx, t.lock())
	kind, err := db.rows(ctx, "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", t.schema, t.bare)
	switch {
	case err != nil:
		return err
	case len(kind) == 0:
		return fmt.Errorf("does not exist, or user %s may not see it: GRANT SELECT ON %s TO the user", db.f.o.User, t.name)
	case kind[0][2] == "VIEW":
		return errors.New("is a view: name the tables that it reads")
	}
	t.schema, t.bare = kind[0][0], kind[0][1]
	if _, err := db.query(ctx, t.lock()); err != nil {
		return err
	}
	if err := t.readColumns(ctx, db, s); err != nil {
		return err
	}
	if err := t.readCascades(ctx, db); err != nil {
		return err
	}
	return t.check(s)
}

// lock is a statement that takes the table's metadata lock, which the transaction then has.
func (t *table) lock() string {
	return "SELECT 1 FROM " + quoted(t.schema) + "." + quoted(t.bare) + " LIMIT 0"
}

func quoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func (t *table) readColumns(ctx context.Context, db *conn, s serverInfo) error {
	rows, err := db.rows(ctx, `SELECT c.COLUMN_NAME, c.DATA_TYPE, c.COLUMN_TYPE, COALESCE(c.CHARACTER_SET_NAME, ''), COALESCE(c.CHARACTER_OCTET_LENGTH, 0), c.EXTRA,
			c.IS_NULLABLE, COALESCE(c.COLLATION_NAME, ''), COALESCE(o.ID, 0), COALESCE(c.NUMERIC_PRECISION, 0), COALESCE(c.NUMERIC_SCALE, 0)
		FROM information_schema.COLUMNS c LEFT JOIN (`+s.collations+`) o ON o.COLLATION_NAME = c.COLLATION_NAME
		WHERE c.TABLE_SCHEMA = ? AND c.TABLE_NAME = ? ORDER BY c.ORDINAL_POSITION`, t.schema, t.bare)
	if err != nil {
		return err
	}
	for _, row := range rows {
		c := column{
			name: row[0], kind: strings.ToLower(row[1]), text: row[2], charset: row[3], length: int(number(row[4])), virtual: strings.Contains(row[5], "VIRTUAL"),
			nullable: row[6] == "YES", collation: row[7], collationID: number(row[8]), precision: int(number(row[9])), scale: int(number(row[10])),
		}
		c.unsigned = strings.Contains(strings.ToLower(row[2]), "unsigned")
		if c.kind == "enum" {
			c.labels = labels(row[2])
		}
		t.columns = append(t.columns, c)
	}
	t.sum = t.digest()
	rows, err = db.rows(ctx, `SELECT COLUMN_NAME FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX`, t.schema, t.bare)
	for _, row := range rows {
		t.key = append(t.key, row[0])
	}
	return err
}

func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// readCascades checks for foreign keys by which a change of another table changes rows of this
// one.
func (t *table) readCascades(ctx context.Context, db *conn) error {
	rows, err := db.rows(ctx, `SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
		WHERE CONSTRAINT_SCHEMA = ? AND TABLE_NAME = ? AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))`, t.schema, t.bare)
	t.cascades = len(rows) > 0
	return err
}

// check returns an error if rows cannot report the wanted columns.
func (t *table) check(s serverInfo) error {
	primary := t.key
	if len(t.wanted) == 0 {
		t.wanted = t.key
	}
	if len(t.wanted) == 0 {
		return errors.New("has no primary key: name the Columns that its keys are made of")
	}
	var blob bool
	for _, name := range t.wanted {
		i := slices.IndexFunc(t.columns, func(c column) bool { return c.name == name })
		if i < 0 {
			return fmt.Errorf("has no column %q; it has %q", name, names(t.columns))
		}
		if err := t.columns[i].check(); err != nil {
			return fmt.Errorf("column %q %v", name, err)
		}
		blob = blob || strings.HasSuffix(t.columns[i].kind, "blob") || strings.HasSuffix(t.columns[i].kind, "text")
	}
	for i := range t.columns {
		t.columns[i].wanted = slices.Contains(t.wanted, t.columns[i].name)
	}
	if slices.ContainsFunc(t.key, func(c string) bool { return !slices.Contains(t.wanted, c) }) {
		t.key = nil
	}
	beyond := slices.ContainsFunc(t.wanted, func(c string) bool { return !slices.Contains(primary, c) })
	if s.image == "MINIMAL" && beyond || s.image == "NOBLOB" && blob {
		return fmt.Errorf("binlog_row_image is %s, so the log does not tell the old values of %q: let an administrator run SET GLOBAL binlog_row_image = FULL; "+
			"and set it in the server's configuration", s.image, t.wanted)
	}
	if t.cascades && s.flavor == mysql.MySQLFlavor {
		t.blind = true
		return errors.New("has a foreign key ON DELETE or ON UPDATE CASCADE or SET NULL; what that changes is not in the log of MySQL: " +
			"let the application change the rows itself, and the key be RESTRICT")
	}
	return nil
}

// tellAlike logs once the wanted columns whose collation takes different texts, and so different
// keys, for one value.
func (f *Feed) tellAlike(tables tables) {
	var alike []string
	for _, t := range tables {
		for _, c := range t.columns {
			if c.wanted && c.alike() {
				alike = append(alike, fmt.Sprintf("%s.%s (%s)", t.name, c.name, c.collation))
			}
		}
	}
	if len(alike) > 0 {
		f.alike.Do(func() {
			f.log.Warn("texts that are different keys are one value of a column; the feed tells the one that is stored", "columns", strings.Join(alike, ", "))
		})
	}
}

// alike reports whether different texts may be one value of the column. A binary collation
// compares bytes, but most binary collations pad the shorter text with blanks.
func (c column) alike() bool {
	return c.collation != "" && !strings.HasSuffix(c.collation, "_nopad_bin") && !strings.HasSuffix(c.collation, "_0900_bin") && c.kind != "json"
}

func names(columns []column) (names []string) {
	for _, c := range columns {
		names = append(names, c.name)
	}
	return names
}

// tables are few, so that a search takes less time than a map.
type tables []*table

func (t tables) find(schema, bare string) *table {
	for _, t := range t {
		if t.bare == bare && t.schema == schema {
			return t
		}
	}
	return nil
}

func (t tables) where(ok func(*table) bool) (found tables) {
	for _, t := range t {
		if ok(t) {
			found = append(found, t)
		}
	}
	return found
}

// present returns the position of a stream that begins now. Transactions that are in the log and
// not visible yet come after it.
func (f *Feed) present(ctx context.Context, db *conn, s serverInfo) (position, error) {
	if s.flavor == mysql.MySQLFlavor {
		row, err := db.row(ctx, "SELECT @@global.gtid_executed")
		if err != nil {
			return position{}, err
		}
		set, err := parseGTIDs(s.flavor, strings.ReplaceAll(row[0], "\n", ""))
		return position{flavor: s.flavor, gtids: set}, err
	}
	file, pos, err := f.seen(ctx, db)
	if err != nil {
		return position{}, err
	}
	row, err := db.row(ctx, "SELECT COALESCE(BINLOG_GTID_POS('"+file+"', "+strconv.FormatUint(pos, 10)+"), '')")
	if err != nil {
		return position{}, err
	}
	set, err := parseGTIDs(s.flavor, row[0])
	if err != nil {
		return position{}, err
	}
	at, err := placeOf(file, pos)
	return position{flavor: s.flavor, gtids: set, place: at}, err
}

// inThePast checks that a MySQL server has all transactions that were reported. A server that has
// not was restored from a backup, or is a replica that was promoted before it had everything; it
// would send other transactions instead, without an error.
func (f *Feed) inThePast(ctx context.Context, db *conn, begin position) error {
	row, err := db.row(ctx, "SELECT GTID_SUBSET(?, @@global.gtid_executed)", begin.gtids.String())
	if err == nil && row[0] != "1" {
		err = fmt.Errorf("mysqlfeed: the server does not have all the transactions %s that were told: %w", begin.gtids, feed.ErrPositionLost)
	}
	return err
}

// seen returns the place in a MariaDB server's log up to which transactions are visible to
// others.
func (f *Feed) seen(ctx context.Context, db *conn) (file string, pos uint64, err error) {
	if _, err := db.query(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
		return "", 0, err
	}
	rows, err := db.rows(ctx, "SHOW STATUS LIKE 'binlog_snapshot_%'")
	if err != nil {
		return "", 0, err
	}
	for _, row := range rows {
		switch strings.ToLower(row[0]) {
		case "binlog_snapshot_file":
			file = row[1]
		case "binlog_snapshot_position":
			pos, err = strconv.ParseUint(row[1], 10, 64)
		}
	}
	if err != nil || file == "" {
		return "", 0, fmt.Errorf("mysqlfeed: the server does not tell binlog_snapshot_position: %q", rows)
	}
	_, err = db.query(ctx, "COMMIT")
	return file, pos, err
}
