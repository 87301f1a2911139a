package pgfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/pump"
)

const (
	// patience is how long the server keeps the slot for a follower that sends nothing. The
	// stream sends a status three times as often, and requests a reply.
	patience = 10 * time.Second
	silence  = 30 * time.Second // the stream ends if the server sends nothing, or leaves a question unanswered, for so long
	again    = time.Minute      // how often unfit tables are reported, and checked again
)

// A stream reads with one goroutine and keeps the connection alive with another.
type stream struct {
	*pump.Pump[uint32] // the marks are numbers of transactions

	f     *Feed
	conn  *pgconn.PgConn // read's; its writing side is guarded by sending
	db    *pgx.Conn      // the gate's
	start position       // all positions equal it, except for lsn
	publication

	sending   sync.Mutex
	confirmed pglogrepl.LSN // guarded by sending

	end    uint64      // the gate's: end of the server's log at the last check; 0: not known
	untold atomic.Bool // a table is unfit, or rows did not fit the table that Open has read
}

func newStream(f *Feed, db *pgx.Conn, conn *pgconn.PgConn, published publication, start position, fresh bool) *stream {
	s := &stream{f: f, conn: conn, db: db, start: start, publication: published, confirmed: start.lsn}
	s.Pump = pump.New(f.o.MaxBatch, pump.Gate[uint32]{UntilVisible: s.untilVisible, Watch: s.watch, Behind: s.behind})
	if fresh { // so that its follower has a position at once
		s.Idle(start.public(), true)
	}
	s.untold.Store(len(s.tables.where(fit)) < len(s.tables))
	s.Run(s.read, s.beat, s.lookAgain, func() error { // read waits for the network; and a server that shuts down waits for the stream
		<-s.Ctx.Done()
		_ = conn.Conn().Close()
		return nil
	})
	return s
}

// Close ends the stream.
func (s *stream) Close() error {
	s.Stop()
	closeConns(s.conn, s.db)
	return nil
}

func (s *stream) at(lsn pglogrepl.LSN) feed.Position {
	at := s.start
	at.lsn = lsn
	return at.public()
}

// Confirm lets the server remove its log before p. No other call does.
func (s *stream) Confirm(ctx context.Context, p feed.Position) error {
	at, err := parsePosition(p)
	switch {
	case err != nil:
		return err
	case at == position{}:
		return errors.New("pgfeed: the zero Position cannot be confirmed")
	case ctx.Err() != nil:
		return ctx.Err()
	case s.Err() != nil:
		return s.Err()
	}
	return s.status(at.lsn, false)
}

// status sends the confirmed position to the server.
func (s *stream) status(confirmed pglogrepl.LSN, reply bool) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.confirmed = max(s.confirmed, confirmed)
	message, err := statusUpdate(s.confirmed, time.Now(), reply)
	if err == nil {
		_, err = s.conn.Conn().Write(message)
	}
	if err != nil {
		return fmt.Errorf("pgfeed: telling the server the position: %v", err)
	}
	return nil
}

// statusUpdate returns a Standby status update of the replication protocol. The stream writes it
// to the connection directly: pglogrepl would send it through the buffer that pgconn, on a
// goroutine of its own, writes a farewell to when the reader's connection has failed.
func statusUpdate(lsn pglogrepl.LSN, now time.Time, reply bool) ([]byte, error) {
	epoch := time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)
	data := []byte{pglogrepl.StandbyStatusUpdateByteID}
	for range 3 { // written, flushed, applied
		data = binary.BigEndian.AppendUint64(data, uint64(lsn))
	}
	data = binary.BigEndian.AppendUint64(data, uint64(now.Sub(epoch).Microseconds()))
	if reply {
		data = append(data, 1)
	} else {
		data = append(data, 0)
	}
	return (&pgproto3.CopyData{Data: data}).Encode(nil)
}

// beat sends a status regularly, even while read waits for the follower. The server's replies
// bring positions while nothing changes.
func (s *stream) beat() error {
	tick := time.NewTicker(s.f.patience / 3)
	defer tick.Stop()
	for {
		if err := s.status(0, true); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.Ctx.Done():
			return nil
		}
	}
}

// A reader is the state of read.
type reader struct {
	*stream
	relations map[uint32]*relation
	inside    bool          // a transaction is being read
	told      pglogrepl.LSN // the last position
	held      bool          // Idle has not passed on told yet
	unfit     tables
	cleared   time.Time // when the tables of unfit were reported last
}

func (s *stream) read() error {
	r := &reader{stream: s, relations: map[uint32]*relation{}, told: s.start.lsn, unfit: s.tables.where(unfit)}
	for {
		r.clearUnfit()
		_ = s.conn.Conn().SetReadDeadline(time.Now().Add(silence))
		message, err := s.conn.ReceiveMessage(context.Background())
		var timeout net.Error
		switch {
		case s.Ctx.Err() != nil:
			return nil
		case errors.As(err, &timeout) && timeout.Timeout():
			return fmt.Errorf("pgfeed: the server has not answered for %v", silence)
		case err != nil:
			return s.f.failure(s.Ctx, "reading the log", err)
		}
		switch m := message.(type) {
		case *pgproto3.CopyData:
			if err := r.take(m.Data); err != nil {
				return err
			}
		case *pgproto3.ErrorResponse:
			return s.f.failure(s.Ctx, "reading the log", pgconn.ErrorResponseToPgError(m))
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

// keepalive takes a message by which the server says that it has sent all changes before a place.
// A server that requests a reply is about to end the connection, or waits for the stream to shut
// down.
func (r *reader) keepalive(m pglogrepl.PrimaryKeepaliveMessage) {
	if !r.inside && (m.ServerWALEnd > r.told || r.held) {
		r.told = max(r.told, m.ServerWALEnd)
		r.held = !r.Idle(r.at(r.told), m.ReplyRequested)
	}
}

func (r *reader) message(m pglogrepl.Message) (err error) {
	var c feed.Change
	switch m := m.(type) {
	case *pglogrepl.BeginMessage:
		r.inside = true
		r.Begin(m.Xid, m.CommitTime)
		return nil
	case *pglogrepl.CommitMessage:
		r.inside = false
		r.told = m.TransactionEndLSN
		r.held = !r.Commit(r.at(r.told))
		return nil
	case *pglogrepl.RelationMessage:
		rel, err := newRelation(r.tables, m)
		if errors.Is(err, feed.ErrPositionLost) {
			return err
		}
		if err != nil { // the other tables are reported
			r.f.log.Error("the rows of a table cannot be told: each change of it clears its caches", "error", err)
			r.untold.Store(true)
			rel = &relation{table: r.tables.named(m.Namespace, m.RelationName), untold: true}
		}
		r.relations[m.RelationID] = rel
		return nil
	case *pglogrepl.TruncateMessage:
		for _, id := range m.RelationIDs {
			rel, err := r.relation(id)
			if err != nil {
				return err
			}
			if rel.table != nil {
				r.Add(feed.Change{Table: rel.table.name, Kind: feed.Truncated, Key: rel.table.key})
			}
		}
		return nil
	case *pglogrepl.InsertMessage:
		c, err = r.change(m.RelationID, feed.Inserted, nil, 0, m.Tuple)
	case *pglogrepl.UpdateMessage:
		c, err = r.change(m.RelationID, feed.Updated, m.OldTuple, m.OldTupleType, m.NewTuple)
	case *pglogrepl.DeleteMessage:
		c, err = r.change(m.RelationID, feed.Deleted, m.OldTuple, m.OldTupleType, nil)
	default:
		return nil
	}
	if err == nil && c.Kind != 0 {
		r.Add(c)
	}
	return err
}

func (r *reader) relation(id uint32) (*relation, error) {
	if rel := r.relations[id]; rel != nil {
		return rel, nil
	}
	return nil, fmt.Errorf("pgfeed: a change of table %d, of which the server has not told", id)
}

// change returns a change of Kind 0 if the table is not one of the feed's.
func (r *reader) change(id uint32, kind feed.ChangeKind, before *pglogrepl.TupleData, beforeType uint8, after *pglogrepl.TupleData) (feed.Change, error) {
	rel, err := r.relation(id)
	if err != nil || rel.table == nil {
		return feed.Change{}, err
	}
	return rel.change(kind, before, beforeType == pglogrepl.UpdateMessageTupleTypeKey, after)
}

// watch checks how much log the server keeps for the slot, and whether the publication has
// changed. It ends the stream if it cannot check: no changes come from a publication without the
// table, so nothing else would show that.
func (s *stream) watch() error {
	ctx, cancel := context.WithTimeout(s.Ctx, s.f.silence)
	defer cancel()
	s.end = 0
	state, err := s.f.publicationState(ctx, s.db, s.publication.version)
	switch {
	case err != nil:
		return err
	case state != s.start.publication:
		return s.f.altered()
	}
	slot, err := s.f.slot(ctx, s.db)
	if err != nil || slot == nil { // without the slot, read fails too
		return err
	}
	s.end = uint64(slot.now)
	stats := slot.stats()
	if limit := s.f.o.MaxRetained; limit > 0 && stats.Retained > limit || stats.Status == "unreserved" {
		s.f.log.Warn("the database keeps much of its log for the slot: the feed is followed too slowly, or a transaction has been open for long",
			"slot", s.f.o.Slot, "retained", stats.Retained, "unconfirmed", stats.Unconfirmed, "limit", limit, "status", stats.Status)
	}
	return nil
}

func (s *stream) behind(p feed.Position) int64 {
	if s.end == 0 || p == (feed.Position{}) {
		return -1
	}
	return max(0, int64(s.end-p.Order))
}
