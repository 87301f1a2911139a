package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/levee-go/levee/cache/feed"
)

// releaseWait is how long Open waits for a slot that is in use: the server needs a moment to
// notice that the connection of the previous follower has ended.
const releaseWait = time.Second

// Stats says how much log the database keeps for the slot of a feed.
type Stats struct {
	// Status is wal_status of pg_replication_slots: "reserved" is normal, "extended" is more than
	// max_wal_size, "unreserved" is about to become "lost". Empty: there is no slot.
	Status string
	// Active reports whether a process reads the slot.
	Active bool
	// Retained is how many bytes of its log the database keeps for the slot.
	Retained int64
	// Unconfirmed is how many bytes of the log follow the last confirmed position.
	Unconfirmed int64
	// Safe is how many more bytes may be written to the log before max_slot_wal_keep_size makes
	// the slot lose its place. Negative: there is no such limit, and Retained may fill the disk.
	Safe int64
}

// Stats queries the database about the slot, on a connection of its own. The figures grow while
// nobody follows the feed, so call Stats for monitoring even in a process that does not follow
// it.
func (f *Feed) Stats(ctx context.Context) (Stats, error) {
	db, err := f.connect(ctx)
	if err != nil {
		return Stats{}, err
	}
	defer closeConns(db)
	s, err := f.slot(ctx, db)
	if err != nil || s == nil {
		return Stats{}, err
	}
	return s.stats(), nil
}

// A slot is a row of pg_replication_slots.
type slot struct {
	kind, plugin, database string
	here                   bool // in the database that the feed reads
	status                 string
	pid                    int32 // process of the reader; 0: none
	user, application      string
	client                 string
	restart, confirmed     pglogrepl.LSN
	now                    pglogrepl.LSN // the end of the server's log
	safe                   int64
}

// slot reads the feed's slot. It returns nil if there is none.
func (f *Feed) slot(ctx context.Context, db *pgx.Conn) (*slot, error) {
	s := &slot{}
	err := db.QueryRow(ctx, `
		SELECT s.slot_type, COALESCE(s.plugin, ''), COALESCE(s.database, ''), COALESCE(s.database = current_database(), false), COALESCE(s.wal_status, 'lost'),
			COALESCE(s.active_pid, 0), COALESCE(a.usename, ''), COALESCE(a.application_name, ''), COALESCE(a.client_addr::text, 'a local socket'),
			COALESCE(s.restart_lsn, '0/0'), COALESCE(s.confirmed_flush_lsn, '0/0'), pg_current_wal_flush_lsn(), COALESCE(s.safe_wal_size, -1)
		FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
		WHERE s.slot_name = $1`, f.o.Slot).
		Scan(&s.kind, &s.plugin, &s.database, &s.here, &s.status, &s.pid, &s.user, &s.application, &s.client, &s.restart, &s.confirmed, &s.now, &s.safe)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, f.failure(ctx, "reading pg_replication_slots", err)
	}
	return s, nil
}

func (s *slot) stats() Stats {
	stats := Stats{Status: s.status, Active: s.pid != 0, Safe: s.safe}
	if s.restart != 0 {
		stats.Retained = max(0, int64(s.now-s.restart))
	}
	if s.confirmed != 0 {
		stats.Unconfirmed = max(0, int64(s.now-s.confirmed))
	}
	return stats
}

// seeToSlot makes or checks the slot and returns where to begin.
func (f *Feed) seeToSlot(ctx context.Context, db *pgx.Conn, conn *pgconn.PgConn, version int, begin position) (pglogrepl.LSN, error) {
	s, err := f.freeSlot(ctx, db)
	if err != nil {
		return 0, err
	}
	if s != nil {
		if err := f.ours(s); err != nil {
			return 0, err
		}
	}
	switch {
	case begin == position{} && s == nil:
		return f.createSlot(ctx, conn, version)
	case begin == position{} && s.status == "lost": // it cannot be used any more
		if err := pglogrepl.DropReplicationSlot(ctx, conn, f.o.Slot, pglogrepl.DropReplicationSlotOptions{}); err != nil {
			return 0, f.failure(ctx, "dropping slot "+f.o.Slot+", which is lost", err)
		}
		return f.createSlot(ctx, conn, version)
	case begin == position{}:
		return s.now, nil
	case s == nil:
		return 0, fmt.Errorf("pgfeed: there is no slot %s any more: %w", f.o.Slot, feed.ErrPositionLost)
	case s.status == "lost":
		return 0, fmt.Errorf("pgfeed: slot %s fell behind by more than max_slot_wal_keep_size: %w", f.o.Slot, feed.ErrPositionLost)
	case begin.lsn < s.confirmed:
		return 0, fmt.Errorf("pgfeed: the database has been told that it need not keep what comes before %s, and the position is %s: %w",
			s.confirmed, begin.lsn, feed.ErrPositionLost)
	case begin.lsn > s.now:
		return 0, fmt.Errorf("pgfeed: the position %s lies beyond %s, the end of the database's log: %w", begin.lsn, s.now, feed.ErrPositionLost)
	}
	return begin.lsn, nil
}

// ours returns an error if a slot cannot be the feed's.
func (f *Feed) ours(s *slot) error {
	if s.kind != "logical" || s.plugin != "pgoutput" || !s.here {
		return fmt.Errorf("pgfeed: slot %s is a %s slot of plugin %q in database %q, not one of this feed: name another one in Options.Slot",
			f.o.Slot, s.kind, s.plugin, s.database)
	}
	return nil
}

// freeSlot returns the slot when it is not in use, for which it waits a moment.
func (f *Feed) freeSlot(ctx context.Context, db *pgx.Conn) (*slot, error) {
	for end := time.Now().Add(releaseWait); ; {
		s, err := f.slot(ctx, db)
		if err != nil || s == nil || s.pid == 0 {
			return s, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("pgfeed: slot %s is in use: process %d of the server reads it for user %q, application %q, from %s; "+
				"a feed needs a slot of its own", f.o.Slot, s.pid, s.user, s.application, s.client)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("pgfeed: waiting for slot %s: %w", f.o.Slot, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// createSlot makes the slot. The server waits for the running transactions. From PostgreSQL 17
// on, a standby with sync_replication_slots keeps a copy of the slot, which survives a failover.
func (f *Feed) createSlot(ctx context.Context, conn *pgconn.PgConn, version int) (pglogrepl.LSN, error) {
	slow := time.AfterFunc(5*time.Second, func() {
		f.log.Warn("the making of the slot waits for the transactions that are under way in the database", "slot", f.o.Slot)
	})
	defer slow.Stop()
	how := "NOEXPORT_SNAPSHOT"
	if version >= 170000 {
		how = "(SNAPSHOT 'nothing', FAILOVER)"
	}
	made, err := pglogrepl.CreateReplicationSlot(ctx, conn, f.o.Slot, "pgoutput", pglogrepl.CreateReplicationSlotOptions{
		Mode: pglogrepl.LogicalReplication, SnapshotAction: how,
	})
	if err != nil {
		return 0, f.failure(ctx, "making slot "+f.o.Slot, err)
	}
	lsn, err := pglogrepl.ParseLSN(made.ConsistentPoint)
	if err != nil {
		return 0, fmt.Errorf("pgfeed: the place of the new slot: %v", err)
	}
	return lsn, nil
}
