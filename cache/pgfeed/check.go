package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	oldestServer = 140000 // publish_via_partition_root, pg_current_snapshot, wal_status, idle_session_timeout
	columnLists  = 150000
)

// checkServer checks the settings of the server, and returns its version.
func (f *Feed) checkServer(ctx context.Context, db *pgx.Conn) (version int, err error) {
	var level, standbys string
	var standby bool
	err = db.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
		current_setting('synchronous_standby_names'), pg_is_in_recovery()`).Scan(&version, &level, &standbys, &standby)
	switch {
	case err != nil:
		return 0, f.failure(ctx, "reading settings", err)
	case version < oldestServer:
		return 0, fmt.Errorf("pgfeed: the server's version is %d; PostgreSQL %d is the oldest that will do", version/10000, oldestServer/10000)
	case standby:
		return 0, errors.New("pgfeed: the server is a standby: connect to the primary, with target_session_attrs=primary in the URL if that names several hosts")
	case level != "logical":
		return 0, fmt.Errorf("pgfeed: wal_level is %s: let a superuser run ALTER SYSTEM SET wal_level = logical; and restart the server", level)
	case strings.Contains(standbys, "*"), strings.Contains(standbys, application+f.o.Name):
		return 0, fmt.Errorf("pgfeed: synchronous_standby_names is %q, so that commits may wait for the feed as if it were a standby: name the standbys there", standbys)
	}
	if _, err := db.Exec(ctx, "SET idle_session_timeout = 0"); err != nil { // an older server would refuse to connect with it
		return 0, f.failure(ctx, "SET", err)
	}
	return version, nil
}

// A table describes one of [Options.Tables], as the catalog has it.
type table struct {
	name         string // in Options
	schema, bare string
	oid          uint32
	columns      []string          // columns that a row reports
	key          []string          // the primary key, if a row reports all of it
	identity     []string          // columns of the replica identities, its own and its partitions'
	full         bool              // one of them is FULL
	types        map[uint32]uint32 // types of columns; for a domain, its base type
	notNull      map[string]bool   // columns that are NOT NULL
	alike        []string          // columns to which different texts may be one value, and why
	unfit        error             // why its rows cannot be reported; nil: they can
}

// tables are the tables of [Options.Tables], in their order.
type tables []*table

// checkTables reads the tables from the catalog. A fault of a table makes it unfit, and is no
// error.
func (f *Feed) checkTables(ctx context.Context, db *pgx.Conn) (tables, error) {
	found, alike := make(tables, len(f.o.Tables)), []string(nil)
	for i, o := range f.o.Tables {
		t := &table{name: o.Name, columns: slices.Clone(o.Columns), types: map[uint32]uint32{}, notNull: map[string]bool{}}
		t.schema, t.bare = o.split()
		if err := t.read(ctx, db); err != nil {
			what := fmt.Sprintf("table %s.%s", t.schema, t.bare)
			var pg *pgconn.PgError
			if ctx.Err() != nil || db.IsClosed() || errors.As(err, &pg) {
				return nil, f.failure(ctx, what, err)
			}
			t.unfit = fmt.Errorf("pgfeed: %s: %v", what, err)
		}
		found[i] = t
		alike = append(alike, t.alike...)
	}
	if len(alike) > 0 {
		f.alike.Do(func() {
			f.log.Warn("texts that are different keys are one value of a column; the feed tells the one that is stored", "columns", strings.Join(alike, ", "))
		})
	}
	return found, nil
}

func (t *table) read(ctx context.Context, db *pgx.Conn) error {
	var kind, persistence string
	err := db.QueryRow(ctx, `SELECT c.oid, c.relkind::text, c.relpersistence::text
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`, t.schema, t.bare).
		Scan(&t.oid, &kind, &persistence)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errors.New("does not exist in this database, or the name is spelled otherwise: it is as in pg_class, without quotes")
	case err != nil:
		return err
	case kind != "r" && kind != "p":
		return errors.New("is no table but a view or the like: name the tables that it reads")
	case persistence != "p":
		return errors.New("is unlogged or temporary, so the log does not have its changes: let its owner run ALTER TABLE … SET LOGGED")
	}
	if err := t.readColumns(ctx, db); err != nil {
		return err
	}
	return t.readIdentity(ctx, db)
}

func (t *table) readColumns(ctx context.Context, db *pgx.Conn) error {
	rows, err := db.Query(ctx, `SELECT a.attname, a.attgenerated <> '', a.attnotnull, a.atttypid, base.oid, COALESCE(
			CASE base.typname WHEN 'bpchar' THEN 'character(n)' WHEN 'citext' THEN 'citext' END,
			(SELECT collname FROM pg_collation WHERE oid = a.attcollation AND NOT collisdeterministic), '')
		FROM pg_attribute a CROSS JOIN LATERAL (
			WITH RECURSIVE type AS (
				SELECT a.atttypid AS oid
				UNION ALL SELECT d.typbasetype FROM type JOIN pg_type d USING (oid) WHERE d.typtype = 'd')
			SELECT oid, typname FROM type JOIN pg_type USING (oid) WHERE typtype <> 'd') base
		WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped`, t.oid)
	if err != nil {
		return err
	}
	type column struct {
		generated, notNull bool
		oid, base          uint32
		alike              string
	}
	all, c, name := map[string]column{}, column{}, ""
	if _, err := pgx.ForEachRow(rows, []any{&name, &c.generated, &c.notNull, &c.oid, &c.base, &c.alike}, func() error {
		all[name] = c
		return nil
	}); err != nil {
		return err
	}
	err = db.QueryRow(ctx, `SELECT COALESCE(array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum)), '{}')
		FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
		WHERE i.indrelid = $1 AND i.indisprimary`, t.oid).Scan(&t.key)
	if err != nil {
		return err
	}
	if len(t.columns) == 0 {
		t.columns = t.key
	}
	if len(t.columns) == 0 {
		return errors.New("has no primary key: name the Columns that its keys are made of")
	}
	for _, name := range t.columns {
		c, ok := all[name]
		switch {
		case !ok:
			return fmt.Errorf("has no column %q; it has %q: name one of them in Columns, or add it", name, slices.Sorted(maps.Keys(all)))
		case c.generated:
			return fmt.Errorf("column %q is generated, so the log does not have it: name the columns that it is made of", name)
		case c.alike != "":
			t.alike = append(t.alike, fmt.Sprintf("%s.%s (%s)", t.name, name, c.alike))
		}
		t.types[c.oid], t.notNull[name] = c.base, c.notNull
	}
	if !covers(t.columns, t.key) {
		t.key = nil
	}
	return nil
}

// members selects the tables of the schemas $1 and the names $2, each with its partitions that
// hold rows, and the columns of their replica identities. pg_partition_tree would wait for an
// ALTER TABLE.
const members = `WITH RECURSIVE tree AS (
		SELECT c.oid AS root, c.oid FROM unnest($1::text[], $2::text[]) t (schema, name)
			JOIN pg_namespace n ON n.nspname = t.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
		UNION ALL SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid),
	member AS (
		SELECT t.root, t.oid, CASE c.relpersistence WHEN 'p' THEN c.relreplident::text ELSE 'unlogged' END AS kind, COALESCE((
			SELECT array_agg(a.attname::text ORDER BY a.attname)
			FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
			WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END), '{}') AS columns
		FROM tree t JOIN pg_class c USING (oid) WHERE t.oid = t.root OR c.relispartition AND c.relkind <> 'p') `

// readIdentity checks that the log will have the old values of the columns.
func (t *table) readIdentity(ctx context.Context, db *pgx.Conn) error {
	rows, err := db.Query(ctx, members+"SELECT oid::regclass::text, kind, columns FROM member ORDER BY oid <> root, oid", []string{t.schema}, []string{t.bare})
	if err != nil {
		return err
	}
	var name, kind string
	var columns []string
	_, err = pgx.ForEachRow(rows, []any{&name, &kind, &columns}, func() error {
		switch kind {
		case "unlogged":
			return fmt.Errorf("partition %s is unlogged, so the log does not have its changes: let its owner run ALTER TABLE %s SET LOGGED", name, name)
		case "f":
			t.full = true
			return nil
		}
		for _, column := range columns { // partitions mostly have the same columns
			if !slices.Contains(t.identity, column) {
				t.identity = append(t.identity, column)
			}
		}
		for _, column := range t.columns {
			if !slices.Contains(columns, column) {
				return fmt.Errorf("the REPLICA IDENTITY of %s does not have column %q, so the log does not tell under which keys an old row was cached: "+
					"let its owner run ALTER TABLE %s REPLICA IDENTITY FULL; or … REPLICA IDENTITY USING INDEX, with a unique index over %s, all of them NOT NULL",
					name, column, name, strings.Join(t.columns, ", "))
			}
		}
		return nil
	})
	return err
}

// Check tests, at the start of a service, whether the feed can be opened: the server's settings,
// the tables, the user's rights, the publication and the slot. Its error names all faults, each
// with the remedy, such as the statement that fixes it; Open may succeed although some tables
// have faults. Check changes nothing, and may be called while the feed is followed: it tries the
// statements that make or alter the publication, and rolls them back. It takes some milliseconds,
// ten seconds if it cannot connect to the server, thirty seconds at most, or until ctx ends.
func (f *Feed) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.silence)
	defer cancel()
	db, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConns(db)
	version, err := f.checkServer(ctx, db)
	if err != nil {
		return err
	}
	tables, err := f.look(ctx, db, version, false)
	conn, unconnected := f.connectReplication(ctx)
	if unconnected == nil {
		_, unconnected = pglogrepl.IdentifySystem(ctx, conn)
		closeConns(conn)
	}
	s, unread := f.slot(ctx, db)
	if s != nil {
		unread = f.ours(s)
	}
	return errors.Join(tables.unfit(), err, unconnected, unread)
}

// publish makes sure that the publication has the tables that are fit, or, without keep, only
// checks that it can. A table that it cannot add is unfit.
func (f *Feed) publish(ctx context.Context, db *pgx.Conn, version int, tables tables, keep bool) error {
	var exists, right bool
	err := db.QueryRow(ctx, `SELECT true, pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot
		FROM pg_publication WHERE pubname = $1`, f.o.Publication).Scan(&exists, &right)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return f.failure(ctx, "reading pg_publication", err)
	}
	published, err := f.published(ctx, db, version)
	if err != nil {
		return err
	}
	name := quoted(f.o.Publication)
	var add []string
	for _, t := range tables {
		now := published[t.oid]
		switch {
		case t.unfit != nil: // if it were published without the identity, PostgreSQL might refuse its writers' updates
			continue
		case now.ok && !now.filtered && (!now.listed || !t.full && covers(now.columns, t.needed())):
			continue
		case !exists:
			add = append(add, t.published(nil, version))
			continue
		}
		statements := []string{"ALTER PUBLICATION " + name + " ADD TABLE " + t.published(now.columns, version)}
		if now.ok {
			statements = slices.Insert(statements, 0, "ALTER PUBLICATION "+name+" DROP TABLE "+quoted(t.schema, t.bare))
		}
		if t.unfit = f.alter(ctx, db, statements, keep); t.unfit != nil && (ctx.Err() != nil || db.IsClosed()) {
			return t.unfit
		}
	}
	const settings = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
	switch {
	case !exists && len(add) > 0:
		return f.alter(ctx, db, []string{"CREATE PUBLICATION " + name + " FOR TABLE " + strings.Join(add, ", ") + " WITH (" + settings + ")"}, keep)
	case exists && !right:
		return f.alter(ctx, db, []string{"ALTER PUBLICATION " + name + " SET (" + settings + ")"}, keep)
	}
	return nil
}

// publicationState returns a hash of the rows of the catalog that say which changes the
// publication sends, which tables have the names, and which columns of old rows the log has.
// PostgreSQL writes new rows at each change of the publication. Adding a partition that is like
// the others does not change the hash.
func (f *Feed) publicationState(ctx context.Context, db *pgx.Conn, version int) (state string, err error) {
	rows := "SELECT oid || ' ' || xmin AS line FROM pg_publication WHERE pubname = $3 " +
		"UNION ALL SELECT r.oid || ' ' || r.xmin FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = $3 " +
		"UNION ALL SELECT DISTINCT root || ' ' || kind || columns::text FROM member"
	if version >= columnLists { // and of schemas
		rows += " UNION ALL SELECT n.oid || ' ' || n.xmin FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid WHERE p.pubname = $3"
	}
	var schemas, names []string
	for _, t := range f.o.Tables {
		schema, name := t.split()
		schemas, names = append(schemas, schema), append(names, name)
	}
	err = db.QueryRow(ctx, members+"SELECT md5(COALESCE(string_agg(line, ',' ORDER BY line), '')) FROM ("+rows+") r", schemas, names, f.o.Publication).Scan(&state)
	if err != nil {
		return "", f.failure(ctx, "reading the publication", err)
	}
	return state, nil
}

// errTried rolls back statements that were only tried.
var errTried = errors.New("tried")

func (f *Feed) alter(ctx context.Context, db *pgx.Conn, statements []string, keep bool) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		if !keep {
			return errTried
		}
		return nil
	})
	if errors.Is(err, errTried) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w; publication %s has to be made or changed, let the owner of the tables and the database run: %s;",
			f.failure(ctx, "the publication", err), f.o.Publication, strings.Join(statements, "; "))
	}
	f.o.Logger.Info("pgfeed: the publication has been made or changed", "publication", f.o.Publication, "sql", strings.Join(statements, "; "))
	return nil
}

// A publishedTable says how a publication has a table.
type publishedTable struct {
	ok       bool // the publication has the table
	listed   bool // with a list of columns
	columns  []string
	filtered bool // with a WHERE
}

func (f *Feed) published(ctx context.Context, db *pgx.Conn, version int) (map[uint32]publishedTable, error) {
	details := "false, '{}'::text[], false"
	if version >= columnLists {
		details = `r.prattrs IS NOT NULL, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum = ANY (r.prattrs::int2[])),
			r.prqual IS NOT NULL`
	}
	rows, err := db.Query(ctx, `SELECT c.oid, `+details+`
		FROM pg_publication_tables t
		JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
		JOIN pg_publication p ON p.pubname = t.pubname LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
		WHERE t.pubname = $1`, f.o.Publication)
	if err != nil {
		return nil, f.failure(ctx, "reading pg_publication_tables", err)
	}
	found := map[uint32]publishedTable{}
	var oid uint32
	p := publishedTable{ok: true}
	if _, err = pgx.ForEachRow(rows, []any{&oid, &p.listed, &p.columns, &p.filtered}, func() error {
		found[oid] = p
		return nil
	}); err != nil {
		return nil, f.failure(ctx, "reading pg_publication_tables", err)
	}
	return found, nil
}

// needed returns the columns that the publication must have. A publication without the whole
// identity would make the writers' updates fail.
func (t *table) needed() []string {
	needed := slices.Concat(t.columns, t.identity)
	slices.Sort(needed)
	return slices.Compact(needed)
}

// published returns the table for CREATE PUBLICATION. It lists the columns if the server can do
// that, so that the server need not send wide rows; with FULL that is not allowed.
func (t *table) published(more []string, version int) string {
	name := quoted(t.schema, t.bare)
	if version < columnLists || t.full {
		return name
	}
	columns := slices.Concat(t.needed(), more)
	slices.Sort(columns)
	for i, column := range columns {
		columns[i] = quoted(column)
	}
	return name + " (" + strings.Join(slices.Compact(columns), ", ") + ")"
}

func covers(columns, all []string) bool {
	return !slices.ContainsFunc(all, func(c string) bool { return !slices.Contains(columns, c) })
}
