package mysqlfeed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/pump"
	"github.com/levee-go/levee/cache/mysqlfeed/internal/statement"
)

// silence is how long the server may send nothing before the stream ends. It sends a heartbeat
// three times as often.
const silence = 30 * time.Second

// A stream reads the server's log, as a replica does.
type stream struct {
	*pump.Pump[mark]

	f      *Feed
	server serverInfo
	db     *conn // the gate's
	syncer *replication.BinlogSyncer
	events *replication.BinlogStreamer

	// State of read.
	tables tables
	at     position // after the reported transactions, including the present one
	file   uint64   // the number of the log's file
	mapped tables   // tables with cascades that this statement has open for writing, without a row so far
	inside bool     // a transaction is being read
	block  bool     // a COMMIT of its own ends it
	mark   mark     // mark of the transaction
	held   bool     // Idle has not passed on the position yet

	logs []logFile // the gate's: files at the last watch; empty if not known
}

// A mark identifies a transaction, by the place in the log where it or a part of it ends, and in
// MySQL by its id.
type mark struct {
	place place
	id    string
}

type logFile struct{ number, size uint64 }

func newStream(ctx context.Context, f *Feed, db *conn, server serverInfo, tables tables, begin position, fresh bool) (*stream, error) {
	s := &stream{f: f, server: server, db: db, tables: tables, at: begin, file: uint64(begin.place) >> 32}
	followed := map[[2]string]bool{}
	for _, t := range tables {
		followed[[2]string{t.schema, t.bare}] = true
	}
	s.syncer = f.syncer(server.flavor, func(schema, bare string) bool { return followed[[2]string{schema, bare}] })
	started := make(chan error, 1)
	go func() {
		var err error
		s.events, err = s.syncer.StartSyncGTID(begin.gtids.set())
		started <- err
	}()
	select {
	case err := <-started:
		if err != nil {
			s.syncer.Close()
			return nil, f.failure(ctx, "beginning to read the log", err)
		}
	case <-ctx.Done():
		go func() { // StartSyncGTID has timeouts of its own
			<-started //nolint:errcheck // it failed, or is of no use now
			s.syncer.Close()
		}()
		return nil, fmt.Errorf("mysqlfeed: beginning to read the log: %w", ctx.Err())
	}
	s.Pump = pump.New(f.o.MaxBatch, pump.Gate[mark]{UntilVisible: s.untilVisible, Watch: s.watch, Behind: s.behind})
	if fresh { // so that its follower has a position at once
		s.Idle(s.position(), true)
	}
	s.Run(s.read)
	return s, nil
}

// Close ends the stream.
func (s *stream) Close() error {
	s.Stop()
	s.syncer.Close()
	s.db.close()
	return nil
}

// Confirm does nothing: the server keeps its log for as long as it is configured to, whoever
// reads it.
func (s *stream) Confirm(ctx context.Context, _ feed.Position) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Err()
}

func (s *stream) read() error {
	for {
		e, err := s.events.GetEvent(s.Ctx)
		if err != nil {
			return s.f.failure(s.Ctx, "reading the log", err)
		}
		if err := s.take(e.Header, e.Event); err != nil {
			return err
		}
	}
}

func (s *stream) take(h *replication.EventHeader, e replication.Event) error {
	s.move(h)
	switch e := e.(type) {
	case *replication.RotateEvent:
		at, err := placeOf(string(e.NextLogName), e.Position)
		if err != nil {
			return err
		}
		s.file, s.at.place = uint64(at)>>32, at
	case *replication.MariadbGTIDEvent:
		s.begin(h, e)
		s.block = !e.IsStandalone()
	case *replication.GTIDEvent:
		s.begin(h, e)
		s.block = false // until BEGIN
	case *replication.GtidTaggedLogEvent:
		return errors.New("mysqlfeed: a transaction has a tag in its global transaction id, which the feed cannot read: leave gtid_next as AUTOMATIC, without a tag")
	case *replication.TransactionPayloadEvent: // a compressed transaction
		for _, inner := range e.Events {
			if err := s.take(&replication.EventHeader{Timestamp: h.Timestamp, LogPos: h.LogPos, EventType: inner.Header.EventType}, inner.Event); err != nil {
				return err
			}
		}
	case *replication.TableMapEvent:
		s.tableMap(e)
	case *replication.RowsEvent:
		err := s.rows(h.EventType, e)
		if e.Flags&replication.RowsEventStmtEndFlag != 0 {
			s.cascade()
		}
		return err
	case *replication.XIDEvent:
		s.commit()
	case *replication.QueryEvent:
		if err := s.statement(string(e.Schema), string(e.Query)); err != nil {
			return err
		}
	case *replication.ExecuteLoadQueryEvent: // LOAD DATA of a session that has set binlog_format to STATEMENT
		s.touch(s.tables)
	default:
		switch h.EventType {
		case replication.XA_PREPARE_LOG_EVENT:
			s.commit()
		case replication.INCIDENT_EVENT:
			return fmt.Errorf("mysqlfeed: the server says that its log lacks changes: %w", feed.ErrPositionLost)
		}
	}
	if !s.inside && s.held {
		s.held = !s.Idle(s.position(), false)
	}
	return nil
}

func (s *stream) begin(h *replication.EventHeader, e replication.Event) {
	s.inside, s.mapped = true, nil
	s.mark = mark{s.at.place, s.at.gtids.add(e)}
	s.Begin(s.mark, time.Unix(int64(h.Timestamp), 0))
}

// move notes where an event ends.
func (s *stream) move(h *replication.EventHeader) {
	switch {
	case h.Flags&replication.LOG_EVENT_ARTIFICIAL_F != 0:
		return
	case h.LogPos != 0:
		s.at.place = place(s.file<<32 | uint64(h.LogPos))
	case s.inside: // as MariaDB 11.4 leaves it
		s.at.place += place(h.EventSize)
	}
	if s.inside {
		s.mark.place = s.at.place
		s.Mark(s.mark)
	}
}

// tableMap records a table that a statement has open for writing. MariaDB logs the table once for the
// statement's own rows and once more for a foreign key: then it may have changes beside the rows that
// the log shows.
func (s *stream) tableMap(e *replication.TableMapEvent) {
	t := s.tables.find(string(e.Schema), string(e.Table))
	switch {
	case t == nil || !t.cascades:
	case slices.Contains(s.mapped, t):
		s.Add(feed.Change{Table: t.name, Kind: feed.Truncated, Key: t.key})
	default:
		s.mapped = append(s.mapped, t)
	}
}

// cascade ends a statement. The statement may have changed rows by a foreign key's ON DELETE
// CASCADE, which the log does not show; but it shows that the table was open for writing.
func (s *stream) cascade() {
	for _, t := range s.mapped {
		s.Add(feed.Change{Table: t.name, Kind: feed.Truncated, Key: t.key})
	}
	s.mapped = nil
}

// rows reports the rows of an event. If it cannot read them, it reports that the whole table has
// changed.
func (s *stream) rows(kind replication.EventType, e *replication.RowsEvent) error {
	t := s.tables.find(string(e.Table.Schema), string(e.Table.Table))
	if t == nil {
		return nil
	}
	s.mapped = slices.DeleteFunc(s.mapped, func(m *table) bool { return m == t })
	columns := t.layout(e.Table, s.at.place)
	if columns == nil || len(e.Rows) == 0 {
		s.truncate(t)
		if s.at.place > t.end && time.Since(t.looked) > again { // altered without an entry in the log, or fixed
			return s.lookAgain(tables{t})
		}
		return nil
	}
	step := 1
	change := feed.Change{Table: t.name, Key: t.key}
	switch kind {
	case replication.WRITE_ROWS_EVENTv0, replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2, replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		change.Kind = feed.Inserted
	case replication.DELETE_ROWS_EVENTv0, replication.DELETE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv2, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		change.Kind = feed.Deleted
	default:
		change.Kind, step = feed.Updated, 2
	}
	for i := 0; i+step <= len(e.Rows); i += step {
		c, ok := change, true
		if c.Kind != feed.Inserted {
			c.Old, ok = row(columns, e.Rows[i], e.SkippedColumns[i], nil)
		}
		if ok && c.Kind != feed.Deleted {
			last := i + step - 1
			c.New, ok = row(columns, e.Rows[last], e.SkippedColumns[last], c.Old)
		}
		if !ok {
			s.truncate(t)
			return nil
		}
		s.Add(c)
	}
	return nil
}

// truncate reports that all rows of a table may have changed, because one cannot be read.
func (s *stream) truncate(t *table) {
	s.f.log.Warn("a row does not fit what the table is now, or is not whole in the log: the whole table counts as changed", "table", t.name)
	s.Add(feed.Change{Table: t.name, Kind: feed.Truncated, Key: t.key})
}

// lookAgain reads the columns of tables that may have been altered.
func (s *stream) lookAgain(altered tables) error {
	var options []Table
	for _, t := range altered {
		i := slices.IndexFunc(s.f.o.Tables, func(o Table) bool { return o.Name == t.name })
		options = append(options, s.f.o.Tables[i])
	}
	now, err := s.f.look(s.Ctx, s.server, options, nil)
	if err != nil {
		return err
	}
	for i, t := range altered {
		*t = *now[i]
	}
	s.f.complain(now)
	return nil
}

// row reads a row. Columns that the log leaves out of a new row are as in the old one.
func row(columns []column, values []any, skipped []int, old feed.Row) (feed.Row, bool) {
	row := feed.Row{}
	for i, c := range columns {
		if !c.wanted {
			continue
		}
		v, ok := old[c.name]
		if !slices.Contains(skipped, i) {
			v, ok = c.value(values[i])
		}
		if !ok {
			return nil, false
		}
		row[c.name] = v
	}
	return row, true
}

func (s *stream) statement(schema, query string) error {
	words := append(statement.Words(query, true), "", "")
	switch verb, second := words[0], words[1]; {
	case verb == "", verb == "BEGIN", verb == "XA" && (second == "START" || second == "END"):
		s.block = true
		return nil
	case second == "" && (verb == "COMMIT" || verb == "ROLLBACK"), verb == "XA":
		s.block = false // also of tables without transactions
	}
	names := make([]statement.Table, len(s.tables))
	for i, t := range s.tables {
		names[i] = statement.Table{Schema: t.schema, Name: t.bare}
	}
	found, altered := statement.Touched(schema, query, names)
	var touched tables
	for _, i := range found {
		touched = append(touched, s.tables[i])
	}
	if altered {
		if err := s.alter(touched); err != nil {
			return err
		}
	}
	s.touch(touched)
	return nil
}

// alter records that a statement may have altered tables. If their columns were read before the
// statement, it reads them again; and those of a table that is unfit, whose look no lock protected:
// the statement may have made the table between that look and its end of the log.
func (s *stream) alter(altered tables) error {
	var later tables
	for _, t := range altered {
		t.since, t.known = max(t.since, t.end), nil
		if t.end < s.at.place || t.unfit != nil {
			later = append(later, t)
		}
	}
	if len(later) == 0 {
		return nil
	}
	return s.lookAgain(later)
}

// touch reports that a statement may have changed all rows of tables.
func (s *stream) touch(touched tables) {
	for _, t := range touched {
		s.Add(feed.Change{Table: t.name, Kind: feed.Truncated, Key: t.key})
	}
	if !s.block {
		s.commit()
	}
}

// commit ends a transaction.
func (s *stream) commit() {
	s.cascade()
	s.inside = false
	s.held = !s.Commit(s.position())
}

// position returns the position after the reported transactions.
func (s *stream) position() feed.Position {
	s.at.digests = s.tables.digests(s.at.place)
	return s.at.public()
}

// untilVisible waits until transactions are visible to others.
func (s *stream) untilVisible(marks []mark) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		seen, err := s.visible(marks)
		if err != nil || seen {
			return err
		}
		select {
		case <-time.After(pause):
		case <-s.Ctx.Done():
			return nil
		}
	}
}

func (s *stream) visible(marks []mark) (bool, error) {
	last := marks[len(marks)-1]
	if s.server.flavor == mysql.MariaDBFlavor {
		file, pos, err := s.f.seen(s.Ctx, s.db)
		if err != nil {
			return false, err
		}
		seen, err := placeOf(file, pos)
		return seen >= last.place, err
	}
	ids := make([]string, len(marks))
	for i, m := range marks {
		ids[i] = m.id
	}
	row, err := s.db.row(s.Ctx, "SELECT GTID_SUBSET('"+strings.Join(ids, ",")+"', @@global.gtid_executed)")
	return err == nil && row[0] == "1", err
}

// watch reads how long the server's log is.
func (s *stream) watch() error {
	s.logs = nil
	rows, err := s.db.rows(s.Ctx, "SHOW BINARY LOGS")
	if err != nil { // read or untilVisible will find the same fault
		return nil
	}
	for _, row := range rows {
		at, err := placeOf(row[0], 0)
		size, sizeErr := strconv.ParseUint(row[1], 10, 64)
		if err != nil || sizeErr != nil {
			s.logs = nil
			return nil
		}
		s.logs = append(s.logs, logFile{uint64(at) >> 32, size})
	}
	return nil
}

func (s *stream) behind(p feed.Position) int64 {
	if len(s.logs) == 0 || p.Order == 0 {
		return -1
	}
	var behind uint64
	for _, log := range s.logs {
		switch {
		case log.number > p.Order>>32:
			behind += log.size
		case log.number == p.Order>>32:
			behind += max(log.size, p.Order&(1<<32-1)) - p.Order&(1<<32-1)
		}
	}
	return int64(behind)
}
