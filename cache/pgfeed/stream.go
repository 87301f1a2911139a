package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/levee-go/levee/cache"
)

const (
	// patience is how long the server keeps the slot for a follower that says nothing. It
	// hears of us three times as often, and is asked for an answer.
	patience   = 10 * time.Second
	silence    = 30 * time.Second       // after so long without a word of the server's the stream ends
	idleEvery  = 500 * time.Millisecond // how often a position without changes is told at the most
	watchEvery = 5 * time.Second        // how often the slot is looked at
)

// A stream is three goroutines. read takes apart what the server sends, gate holds it back
// until it can be seen by readers of the database, and beat keeps the connection.
//
// gate is needed since the server sends a transaction when its commit is in the log. Others
// see it a moment later; with synchronous replication, when the standbys have confirmed. Who
// loads a row in between finds what was there before, and would fill the cache with it after
// the invalidation.
type stream struct {
	f      *Feed
	conn   *pgconn.PgConn // read's, and its writing side is guarded by sending
	db     *pgx.Conn      // gate's
	origin position       // system and timeline of all positions
	tables map[[2]string]*table

	ctx    context.Context // ends with the stream
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	sending   sync.Mutex
	confirmed pglogrepl.LSN // guarded by sending

	mu    sync.Mutex
	ready batch         // guarded by mu: what gate has not taken yet
	more  chan struct{} // signals that gate should
	space chan struct{} // signals that it has

	batches chan cache.Batch
	end     atomic.Uint64 // of the server's log when it was last looked at; 0: not known
}

// A batch is a cache.Batch on its way.
type batch struct {
	changes   []cache.Change
	lsn       pglogrepl.LSN // 0 in the middle of a transaction
	committed time.Time
	xids      []uint32 // of its transactions
}

func newStream(f *Feed, db *pgx.Conn, conn *pgconn.PgConn, tables map[[2]string]*table, start position, fresh bool) *stream {
	s := &stream{
		f: f, conn: conn, db: db, origin: start, tables: tables, confirmed: start.lsn,
		more: make(chan struct{}, 1), space: make(chan struct{}, 1), batches: make(chan cache.Batch),
	}
	if fresh { // so that its follower has a position at once
		s.ready.lsn = start.lsn
		s.more <- struct{}{}
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	for _, task := range []func() error{s.read, s.gate, s.beat} {
		s.tasks.Go(func() {
			if err := task(); err != nil {
				s.cancel(err)
			}
		})
	}
	s.tasks.Go(func() { // read waits for the network; and a server that shuts down, for us
		<-s.ctx.Done()
		_ = conn.Conn().Close()
	})
	return s
}

var errClosed = errors.New("pgfeed: the stream is closed")

// Close ends the stream.
func (s *stream) Close() error {
	s.cancel(errClosed)
	s.tasks.Wait()
	return errors.Join(closeConn(s.conn), closeConn(s.db))
}

// Next waits for changes, see [cache.Stream].
func (s *stream) Next(ctx context.Context) (cache.Batch, error) {
	if err := ctx.Err(); err != nil {
		return cache.Batch{}, err
	}
	select {
	case b := <-s.batches:
		return b, nil
	case <-ctx.Done():
		return cache.Batch{}, ctx.Err()
	case <-s.ctx.Done():
		return cache.Batch{}, context.Cause(s.ctx)
	}
}

// Confirm lets the server forget what came before p. Nothing else does.
func (s *stream) Confirm(ctx context.Context, p cache.Position) error {
	at, err := parsePosition(p)
	switch {
	case err != nil:
		return err
	case at == position{}:
		return errors.New("pgfeed: the zero Position cannot be confirmed")
	case ctx.Err() != nil:
		return ctx.Err()
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	}
	return s.status(at.lsn, false)
}

// status tells the server how far we are.
func (s *stream) status(confirmed pglogrepl.LSN, reply bool) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.confirmed = max(s.confirmed, confirmed)
	err := pglogrepl.SendStandbyStatusUpdate(s.ctx, s.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: s.confirmed, ReplyRequested: reply})
	if err != nil {
		return fmt.Errorf("pgfeed: telling the server the position: %v", err)
	}
	return nil
}

// beat tells the server that we are there, also while read waits for the follower. The
// answers tell of positions while nothing changes.
func (s *stream) beat() error {
	tick := time.NewTicker(s.f.patience / 3)
	defer tick.Stop()
	for {
		if err := s.status(0, true); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// A reader is the state of read.
type reader struct {
	*stream
	relations map[uint32]*relation
	open      batch         // the transaction that is being told
	inside    bool          // there is one
	told      pglogrepl.LSN // the last position
	idle      time.Time     // when one without changes was told last
}

func (s *stream) read() error {
	r := &reader{stream: s, relations: map[uint32]*relation{}, told: s.origin.lsn}
	for {
		_ = s.conn.Conn().SetReadDeadline(time.Now().Add(silence))
		message, err := s.conn.ReceiveMessage(context.Background())
		var timeout net.Error
		switch {
		case s.ctx.Err() != nil:
			return nil
		case errors.As(err, &timeout) && timeout.Timeout():
			return fmt.Errorf("pgfeed: the server has not answered for %v", silence)
		case err != nil:
			return s.f.failure(s.ctx, "reading the log", err)
		}
		switch m := message.(type) {
		case *pgproto3.CopyData:
			if err := r.take(m.Data); err != nil {
				return err
			}
		case *pgproto3.ErrorResponse:
			return s.f.failure(s.ctx, "reading the log", pgconn.ErrorResponseToPgError(m))
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		default:
			return errors.New("pgfeed: the server has ended the stream")
		}
	}
}

func (r *reader) take(data []byte) error {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		m, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("pgfeed: %v", err)
		}
		r.keepalive(m)
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("pgfeed: %v", err)
		}
		m, err := pglogrepl.Parse(x.WALData)
		if err != nil {
			return fmt.Errorf("pgfeed: %v", err)
		}
		return r.message(m)
	}
	return nil
}

// keepalive tells that all that was committed before a place has been sent. A server that
// asks for an answer is about to give us up, or waits for us to shut down.
func (r *reader) keepalive(m pglogrepl.PrimaryKeepaliveMessage) {
	if r.inside {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.ServerWALEnd <= r.told {
		return
	}
	r.told, r.ready.lsn = m.ServerWALEnd, m.ServerWALEnd
	if m.ReplyRequested || time.Since(r.idle) >= idleEvery {
		r.idle = time.Now()
		signal(r.more)
	}
}

func (r *reader) message(m pglogrepl.Message) (err error) {
	var c cache.Change
	switch m := m.(type) {
	case *pglogrepl.BeginMessage:
		r.inside = true
		r.open = batch{committed: m.CommitTime, xids: []uint32{m.Xid}}
		return nil
	case *pglogrepl.CommitMessage:
		r.inside = false
		r.open.lsn, r.told = m.TransactionEndLSN, m.TransactionEndLSN
		r.pass()
		return nil
	case *pglogrepl.RelationMessage:
		r.relations[m.RelationID], err = newRelation(r.tables, m)
		return err
	case *pglogrepl.TruncateMessage:
		for _, id := range m.RelationIDs {
			rel, err := r.relation(id)
			if err != nil {
				return err
			}
			if rel.table != nil {
				r.add(cache.Change{Table: rel.table.name, Kind: cache.Truncated, Key: rel.table.key})
			}
		}
		return nil
	case *pglogrepl.InsertMessage:
		c, err = r.change(m.RelationID, cache.Inserted, nil, 0, m.Tuple)
	case *pglogrepl.UpdateMessage:
		c, err = r.change(m.RelationID, cache.Updated, m.OldTuple, m.OldTupleType, m.NewTuple)
	case *pglogrepl.DeleteMessage:
		c, err = r.change(m.RelationID, cache.Deleted, m.OldTuple, m.OldTupleType, nil)
	default:
		return nil
	}
	if err == nil && c.Kind != 0 {
		r.add(c)
	}
	return err
}

func (r *reader) relation(id uint32) (*relation, error) {
	if rel := r.relations[id]; rel != nil {
		return rel, nil
	}
	return nil, fmt.Errorf("pgfeed: a change of table %d, of which the server has not told", id)
}

// change is of Kind 0 if the table is not one of ours.
func (r *reader) change(id uint32, kind cache.ChangeKind, before *pglogrepl.TupleData, beforeType uint8, after *pglogrepl.TupleData) (cache.Change, error) {
	rel, err := r.relation(id)
	if err != nil || rel.table == nil {
		return cache.Change{}, err
	}
	return rel.change(kind, before, beforeType == pglogrepl.UpdateMessageTupleTypeKey, after)
}

// add takes a change into the open transaction, and passes a part of that if it grows long.
func (r *reader) add(c cache.Change) {
	r.open.changes = append(r.open.changes, c)
	if len(r.open.changes) >= r.f.o.MaxBatch {
		r.pass()
	}
}

// pass hands what is open to gate, together with what gate has not taken yet. It waits while
// that would be too much, so that neither a long transaction nor a slow follower fills memory.
func (r *reader) pass() {
	for {
		r.mu.Lock()
		// The end of a transaction may follow what came before; a part of one would take away its position.
		if len(r.ready.changes) == 0 || r.open.lsn != 0 && len(r.ready.changes)+len(r.open.changes) <= r.f.o.MaxBatch {
			r.ready.changes = append(r.ready.changes, r.open.changes...)
			r.ready.xids = append(r.ready.xids, r.open.xids...)
			r.ready.lsn, r.ready.committed = r.open.lsn, r.open.committed
			r.open.changes, r.open.lsn = nil, 0
			r.mu.Unlock()
			signal(r.more)
			return
		}
		r.mu.Unlock()
		select {
		case <-r.space:
		case <-r.ctx.Done():
			return
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// gate hands batches to Next when others see their transactions.
func (s *stream) gate() error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	s.watch()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-tick.C:
			s.watch()
			continue
		case <-s.more:
		}
		s.mu.Lock()
		b := s.ready
		s.ready = batch{}
		s.mu.Unlock()
		signal(s.space)
		if len(b.changes) == 0 && b.lsn == 0 {
			continue
		}
		if err := s.untilVisible(b.xids); err != nil {
			return err
		}
		for handed := false; !handed; {
			select {
			case <-s.ctx.Done():
				return nil
			case <-tick.C:
				s.watch()
			case s.batches <- s.public(b):
				handed = true
			}
		}
	}
}

func (s *stream) public(b batch) cache.Batch {
	p := cache.Batch{Changes: b.changes, Committed: b.committed, Behind: -1}
	if b.lsn != 0 {
		p.Position = position{lsn: b.lsn, system: s.origin.system, timeline: s.origin.timeline}.public()
	}
	if end := s.end.Load(); end != 0 && b.lsn != 0 {
		p.Behind = max(0, int64(end-uint64(b.lsn)))
	}
	return p
}

// untilVisible waits until transactions, which have been committed in the log, are not under
// way any more for those who read the database.
func (s *stream) untilVisible(xids []uint32) error {
	for pause := 100 * time.Microsecond; len(xids) > 0; pause = min(2*pause, 20*time.Millisecond) {
		var snapshot string
		if err := s.db.QueryRow(s.ctx, "SELECT pg_current_snapshot()::text").Scan(&snapshot); err != nil {
			return s.f.failure(s.ctx, "asking for a snapshot", err)
		}
		var err error
		if xids, err = underWay(snapshot, xids); err != nil || len(xids) == 0 {
			return err
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return nil
		}
	}
	return nil
}

// underWay returns those of xids that a snapshot, "xmin:xmax:xip,xip…", does not see. The
// stream tells the lower 32 bits of a transaction's number.
func underWay(snapshot string, xids []uint32) ([]uint32, error) {
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("pgfeed: a snapshot of unknown form %q", snapshot)
	}
	next, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("pgfeed: a snapshot of unknown form %q", snapshot)
	}
	running := map[uint32]bool{}
	for text := range strings.SplitSeq(parts[2], ",") {
		if xid, err := strconv.ParseUint(text, 10, 64); err == nil {
			running[uint32(xid)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(xids), func(xid uint32) bool {
		return !running[xid] && int32(xid-uint32(next)) < 0
	}), nil
}

// watch looks at what the server keeps for the slot.
func (s *stream) watch() {
	slot, err := s.f.slot(s.ctx, s.db)
	if err != nil || slot == nil { // what is wrong, read or untilVisible will find out too
		s.end.Store(0)
		return
	}
	s.end.Store(uint64(slot.now))
	stats := slot.stats()
	if limit := s.f.o.MaxRetained; limit > 0 && stats.Retained > limit || stats.Status == "unreserved" {
		s.f.log.Warn("the database keeps much of its log for the slot: the feed is followed too slowly, or a transaction has been open for long",
			"slot", s.f.o.Slot, "retained", stats.Retained, "unconfirmed", stats.Unconfirmed, "limit", limit, "status", stats.Status)
	}
}
