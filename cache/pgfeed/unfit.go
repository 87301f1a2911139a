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

// An unfit table does not stop the others. Its changes are not known, so a stream reports that all
// of its rows may have changed: when it begins, once a minute, and at each change of the table in
// the log. When the table is fit again the stream ends, and the next one reports its rows. If the
// publication has had the table all the time, each of its changes was reported so, and the position
// is kept. Otherwise the table is added to the publication, or its old values to the log, which
// loses the position, see publicationState.

// look reads the tables and makes sure that the publication has those that are fit; without keep
// it only checks that.
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

// named returns the table with a name, or nil.
func (t tables) named(schema, bare string) *table {
	for _, t := range t {
		if t.schema == schema && t.bare == bare {
			return t
		}
	}
	return nil
}

// unfit returns the faults of the tables.
func (t tables) unfit() error {
	var wrong []error
	for _, t := range t.where(unfit) {
		wrong = append(wrong, t.unfit)
	}
	return errors.Join(wrong...)
}

// complain logs the fault of each table, once until the fault changes.
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

// clearUnfit reports, once a minute, that all rows of the unfit tables may have changed.
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

// lookAgain ends the stream when the tables are no longer as Open has read them: one is fit
// again, or has become unfit, or rows come with a column of another type. It checks only while
// some rows cannot be reported.
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

// present reads the tables as they are now and changes nothing. It uses a connection of its own,
// since the gate's must not wait.
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
