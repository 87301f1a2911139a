package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/cache/outbox"
	"github.com/levee-go/levee/examples/internal/servers"
)

// A scale says how large everything is, and how long it takes.
type scale struct {
	products int
	every    time.Duration // from one change to the next
	ttl      time.Duration
	grace    time.Duration // an answer is out of date when a newer price was committed longer ago than this
	patience time.Duration // for the readers to serve what has changed

	followed, killed, without, back time.Duration // how long each phase lasts
}

var fullScale = scale{
	products: 5, every: 200 * time.Millisecond, ttl: 5 * time.Second, grace: 500 * time.Millisecond, patience: 10 * time.Second,
	followed: 3 * time.Second, killed: 4 * time.Second, without: 7 * time.Second, back: 3 * time.Second,
}

const readers = 3

// A theatre has what the phases share.
type theatre struct {
	scale
	report  *report
	server  *servers.Redis
	db      *servers.Database
	writer  *writer
	readers []*reader // nil: killed
	rows    []row
}

// play runs all phases, and returns a row for each reader in each of them.
func (s settings) play(ctx context.Context, r *report) (rows []row, err error) {
	began, mark := time.Now(), fmt.Sprintf("%08x", rand.Uint32()) // so that two of these on the same server do not meet
	server, err := servers.OpenRedis(ctx, s.redis, "levee-feed-"+mark)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	db, err := servers.OpenDatabase(ctx, "", "levee-feed-"+mark)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	t := &theatre{scale: s.size, report: r, server: server, db: db, readers: make([]*reader, readers)}
	t.writer = &writer{db: db.DB, ledger: newLedger(t.products)}
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r.opening(s.size, db.Name, server.Name)
	if err := t.phases(ctx); err != nil {
		return t.rows, err
	}
	r.closing(time.Since(began))
	return t.rows, nil
}

// prepare fills the database. The outbox is a table as any other.
func (t *theatre) prepare(ctx context.Context) error {
	for _, statement := range []string{
		"CREATE TABLE product (id INTEGER PRIMARY KEY, price INTEGER NOT NULL)",
		fmt.Sprintf(`INSERT INTO product (id, price)
			WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < %d) SELECT id, 0 FROM n`, t.products),
		outbox.SQLite.Schema("levee_outbox"),
	} {
		if _, err := t.db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("filling the database: %w", err)
		}
	}
	return nil
}

// phases is what happens.
func (t *theatre) phases(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	t.follow(ctx)
	if _, err := t.follower(ctx); err != nil {
		return err
	}
	if err := t.phase(ctx, "with the feed", t.followed, (*tally).upToDate); err != nil {
		return err
	}

	follower, err := t.follower(ctx)
	if err != nil {
		return err
	}
	dead := t.readers[follower]
	t.readers[follower] = nil
	var killing sync.WaitGroup
	killing.Go(dead.kill)
	err = t.phase(ctx, "the reader that follows is killed", t.killed, (*tally).upToDate)
	killing.Wait()
	if err != nil {
		return err
	}

	if err := errors.Join(t.unfollow(), t.start(ctx)); err != nil {
		return err
	}
	if err := t.phase(ctx, "nobody follows", t.without, (*tally).outOfDate); err != nil {
		return err
	}

	var missed int // no row stays that was dealt with
	if err := t.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM levee_outbox").Scan(&missed); err != nil {
		return err
	}
	told, began := t.told(), time.Now()
	t.follow(ctx)
	if err := t.settle(ctx, (*tally).upToDate); err != nil {
		return err
	}
	took := time.Since(began)
	if err := t.await(ctx, func() bool { return t.told() >= told+uint64(missed) }); err != nil {
		return fmt.Errorf("of %d missed changes the feed has told %d: %w", missed, t.told()-told, err)
	}
	t.report.note("they follow again: %d changes were missed, and all readers serve them after %d ms", missed, took.Milliseconds())
	return t.phase(ctx, "the feed is back", t.back, (*tally).upToDate)
}

// start starts the readers that do not run.
func (t *theatre) start(ctx context.Context) (err error) {
	for i, r := range t.readers {
		if r != nil {
			continue
		}
		name := fmt.Sprintf("reader %d", i+1)
		t.readers[i], err = openReader(ctx, name, t.server, t.db.Source, t.ttl, newTally(t.writer.ledger, t.grace))
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *theatre) follow(ctx context.Context) {
	for _, r := range t.readers {
		r.follow(ctx)
	}
}

func (t *theatre) unfollow() (err error) {
	for _, r := range t.readers {
		if r != nil {
			err = errors.Join(err, r.unfollow())
		}
	}
	return err
}

// follower waits until one of the readers reads the feed, and returns which.
func (t *theatre) follower(ctx context.Context) (which int, err error) {
	err = t.await(ctx, func() bool {
		which = slices.IndexFunc(t.readers, (*reader).follows)
		return which >= 0
	})
	if err != nil {
		return 0, fmt.Errorf("until a reader follows the feed: %w", err)
	}
	return which, nil
}

// told returns how many changes the feed has told the readers.
func (t *theatre) told() (n uint64) {
	for _, r := range t.readers {
		n += r.prices.Stats().Follow.Changes
	}
	return n
}

// phase lets the writer work for some time, and then gives the readers the time that they need to get there.
func (t *theatre) phase(ctx context.Context, name string, lasts time.Duration, there func(*tally) bool) error {
	for _, r := range t.readers {
		if r != nil {
			r.tally.begin()
		}
	}
	working, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	if err := errors.Join(t.writer.work(working, t.every), ctx.Err()); err != nil {
		return err
	}
	if err := t.settle(ctx, there); err != nil {
		return err
	}
	t.report.phase(name)
	for i, r := range t.readers {
		result := row{killed: true}
		if r != nil {
			var err error
			if result, err = r.tally.end(); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			result.follows = r.follows()
		}
		result.phase, result.reader = name, fmt.Sprintf("reader %d", i+1)
		t.report.row(result)
		t.rows = append(t.rows, result)
	}
	return nil
}

// settle waits until the readers are there. That they do not get there is for the table to tell.
func (t *theatre) settle(ctx context.Context, there func(*tally) bool) error {
	err := t.await(ctx, func() bool {
		for _, r := range t.readers {
			if r != nil && !there(r.tally) {
				return false
			}
		}
		return true
	})
	if errors.Is(err, errImpatient) {
		return nil
	}
	return err
}

var errImpatient = errors.New("it takes too long")

// await waits for something to become true.
func (t *theatre) await(ctx context.Context, happened func() bool) error {
	end := time.Now().Add(t.patience)
	for !happened() {
		if time.Now().After(end) {
			return errImpatient
		}
		time.Sleep(2 * time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func (t *theatre) close() (err error) {
	for _, r := range t.readers {
		if r != nil {
			err = errors.Join(err, r.close())
		}
	}
	return err
}
