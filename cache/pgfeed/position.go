package pgfeed

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/levee-go/levee/cache/feed"
)

// A position is a place in the write-ahead log of a server: all changes committed before it have
// been reported. The zero position is none.
type position struct {
	lsn      pglogrepl.LSN
	system   string // identifies the server and its standbys
	timeline int32  // grows when a standby is promoted
	// publication is the state of the publication, which each change of it or of its tables'
	// identities changes. Changes that commit while the publication lacks a table are not sent,
	// and from PostgreSQL 18 on no error says so; nor does one if another table has taken the
	// name of a table.
	publication string
}

func (p position) public() feed.Position {
	return feed.Position{Text: fmt.Sprintf("%s system %s timeline %d publication %s", p.lsn, p.system, p.timeline, p.publication), Order: uint64(p.lsn)}
}

func parsePosition(from feed.Position) (p position, err error) {
	if from == (feed.Position{}) {
		return position{}, nil
	}
	var lsn string
	if _, err = fmt.Sscanf(from.Text, "%s system %s timeline %d publication %s", &lsn, &p.system, &p.timeline, &p.publication); err == nil {
		p.lsn, err = pglogrepl.ParseLSN(lsn)
	}
	if err != nil || p.public().Text != from.Text {
		return position{}, fmt.Errorf("pgfeed: %q is no position of PostgreSQL: %w", from.Text, feed.ErrPositionLost)
	}
	return p, nil
}

// sameServer checks that a position is in the past of the server that the feed reads now. The
// server may have been restored from a backup, or be a standby that was promoted before it had
// everything that the old primary sent.
func (f *Feed) sameServer(ctx context.Context, conn *pgconn.PgConn, p position, now pglogrepl.IdentifySystemResult) error {
	if p.system != now.SystemID {
		return fmt.Errorf("pgfeed: the position is of server %s, and this is %s: %w", p.system, now.SystemID, feed.ErrPositionLost)
	}
	if p.timeline == now.Timeline {
		return nil
	}
	history, err := pglogrepl.TimelineHistory(ctx, conn, now.Timeline)
	if err != nil {
		return f.failure(ctx, "TIMELINE_HISTORY", err)
	}
	left, ok := leftTimeline(string(history.Content), p.timeline)
	if !ok || p.lsn > left {
		return fmt.Errorf("pgfeed: the position %s of timeline %d is not in the past of timeline %d, which left it at %s: %w",
			p.lsn, p.timeline, now.Timeline, left, feed.ErrPositionLost)
	}
	return nil
}

// leftTimeline returns the place at which a timeline's history has left another one.
func leftTimeline(history string, timeline int32) (pglogrepl.LSN, bool) {
	for line := range strings.Lines(history) {
		var parent int32
		var at string
		if _, err := fmt.Sscan(line, &parent, &at); err != nil || parent != timeline {
			continue
		}
		lsn, err := pglogrepl.ParseLSN(at)
		return lsn, err == nil
	}
	return 0, false
}
