package pgfeed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache/feed"
)

// A table that is unfit does not stop the others. Its changes are not known, so a stream tells that all
// of its rows may have changed: when it begins, once a minute, and at each change of it that the log has.
// When the table is fit again the stream ends, and the next one tells its rows. If the publication has had
// the table all the while, each of its changes was told so, and the position is kept. Otherwise it comes into
// the publication, or into the log, and that loses the position, see publicationState.

// look reads the tables and sees to it that the publication has those that are fit, or only tries that it can.
func (f *Feed) look(ctx context.Context, db *pgx.Conn, version int, keep bool) (tables, error) {
	found, err := f.checkTables(ctx, db)
	if err != nil {
		return nil, err
	}
	return found, f.publish(ctx, db, version, found, keep)
}

func fit(t *table) bool   { return t.unfit == nil }
func unfit(t *table) bool { return t.unfit != nil }

func (t tables) where(is func(*table) bool) (found tables) {
	for _, t := range t {
		if is(t) {
			found = append(found, t)
		}
	}
	return found
}

// named returns the table of a name, or nil.
func (t tables) named(schema, bare string) *table {
	for _, t := range t {
		if t.schema == schema && t.bare == bare {
			return t
		}
	}
	return nil
}

// unfit returns what is wrong with the tables.
func (t tables) unfit() error {
	var wrong []error
	for _, t := range t.where(unfit) {
		wrong = append(wrong, t.unfit)
	}
	return errors.Join(wrong...)
}

// complain logs what is wrong with tables, once until it is something else.
func (f *Feed) complain(all tables) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range all {
		wrong := ""
		if t.unfit != nil {
			wrong = t.unfit.Error()
		}
		if wrong != "" && wrong != f.complained[t.name] {
			f.o.Logger.Error("pgfeed: a table cannot be followed: its caches are cleared once a minute and at each change until it can; the other tables are followed",
				"table", t.name, "error", wrong)
		}
		f.complained[t.name] = wrong
	}
}

// clearUnfit tells that all rows of the tables that are unfit may have changed, if it is time to.
func (r *reader) clearUnfit() {
	if len(r.unfit) == 0 || r.inside || time.Since(r.cleared) < r.f.again {
		return
	}
	r.cleared = time.Now()
	r.Begin(0, time.Time{})
	for _, t := range r.unfit {
		r.Add(feed.Change{Table: t.name, Kind: feed.Truncated, Key: t.key})
	}
	r.held = !r.Commit(r.at(r.told))
}

// lookAgain ends the stream when what Open has read of the tables is no longer so: one is fit again, or not any
// more, or rows come with a column of another type. While all rows can be told it does not look.
func (s *stream) lookAgain() error {
	for {
		select {
		case <-time.After(s.f.again):
		case <-s.Ctx.Done():
			return nil
		}
		if !s.untold.Load() {
			continue
		}
		now, err := s.f.present(s.Ctx, s.version)
		if s.Ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.f.log.Warn("the tables that cannot be followed could not be looked at again", "error", err)
			continue
		}
		for i, t := range now {
			if !reflect.DeepEqual(t, s.tables[i]) {
				return fmt.Errorf("pgfeed: table %s was altered, or can be followed again: the stream begins anew", t.name)
			}
		}
	}
}

// present reads the tables on a connection of its own, since the gate's must not wait, and changes nothing.
func (f *Feed) present(ctx context.Context, version int) (tables, error) {
	ctx, cancel := context.WithTimeout(ctx, f.silence)
	defer cancel()
	db, err := f.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer closeConns(db)
	return f.look(ctx, db, version, false)
}
