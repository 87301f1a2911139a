package pgfeed

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// untilVisible waits until transactions, whose commits are in the log, are visible to readers of
// the database.
func (s *stream) untilVisible(xids []uint32) error { return s.f.untilEnded(s.Ctx, s.db, xids) }

func (f *Feed) untilEnded(ctx context.Context, db *pgx.Conn, xids []uint32) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		now, err := f.snapshot(ctx, db)
		if err != nil {
			return err
		}
		if xids = slices.DeleteFunc(xids, now.sees); len(xids) == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// settleWait is how long a first Open waits for running transactions, which may be at the end of
// their commit.
const settleWait = time.Second

// settle waits for transactions whose commit is in the log before the start of the stream, but
// which others do not see yet: the stream does not report them, so they must not become visible
// after Open has returned. The server does not say which transactions these are. So settle waits
// for all running ones, and after settleWait only for commits that wait for a standby, however
// long that takes.
func (f *Feed) settle(ctx context.Context, db *pgx.Conn) error {
	slow := time.AfterFunc(5*time.Second, func() { f.log.Warn("the feed begins when the commits that wait for a standby have ended") })
	defer slow.Stop()
	var ours, oldest, commits int64 // transactions with numbers above ours began after the stream
	var now time.Time
	err := db.QueryRow(ctx, "SELECT pg_current_xact_id()::text::bigint, clock_timestamp()").Scan(&ours, &now)
	for end := time.Now().Add(settleWait); err == nil && oldest <= ours; time.Sleep(time.Millisecond) {
		switch {
		case commits > 0: // the last of them becomes visible a moment after its standby has answered
			end = time.Now().Add(settleWait)
			time.Sleep(20 * time.Millisecond)
		case time.Now().After(end):
			return f.unsettled(ctx, db)
		}
		err = db.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
			(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < $1)`, now).Scan(&oldest, &commits)
	}
	if err != nil {
		return f.failure(ctx, "asking for a snapshot", err)
	}
	return nil
}

// unsettled logs a warning if this user may not see which commits wait for a standby.
func (f *Feed) unsettled(ctx context.Context, db *pgx.Conn) error {
	var blind bool
	err := db.QueryRow(ctx, "SELECT current_setting('synchronous_standby_names') <> '' AND NOT pg_has_role('pg_read_all_stats', 'USAGE')").Scan(&blind)
	if err != nil {
		return f.failure(ctx, "asking for rights", err)
	}
	if blind {
		f.log.Warn("a commit that waits for a standby just now would be missed: the feed's user may not see it; GRANT pg_read_all_stats to it")
	}
	return nil
}

// A snapshot says which transactions are visible. It has the lower 32 bits of their numbers,
// because the stream has no more.
type snapshot struct {
	next    uint32
	running []uint32 // before next
}

// sees reports whether a transaction is visible. It is true for 0, which is no transaction.
func (s snapshot) sees(xid uint32) bool {
	return xid == 0 || int32(xid-s.next) < 0 && !slices.Contains(s.running, xid)
}

func (f *Feed) snapshot(ctx context.Context, db *pgx.Conn) (snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, f.silence)
	defer cancel()
	var text string
	if err := db.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
		return snapshot{}, f.failure(ctx, "asking for a snapshot", err)
	}
	return parseSnapshot(text)
}

// parseSnapshot parses "xmin:xmax:xip,xip…".
func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("pgfeed: a snapshot of unknown form %q", text)
	}
	for i, number := range append([]string{parts[1]}, strings.Split(parts[2], ",")...) {
		if i > 0 && number == "" {
			continue
		}
		xid, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return s, fmt.Errorf("pgfeed: a snapshot of unknown form %q", text)
		}
		if i == 0 {
			s.next = uint32(xid)
		} else {
			s.running = append(s.running, uint32(xid))
		}
	}
	return s, nil
}
