package bloom

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// An updater keeps a shared filter up to date. It is one goroutine, and only that goroutine
// uses its fields.
//
// It reads the log four times in MaxLag, and at once after an announcement. A read that
// reaches the end of the log brings everything that Redis held when the read began, so a no
// counts for MaxLag from then, and not from the reply:
//
//  1. The updater sends a read. Redis runs it; the newest entry is 7.
//  2. Another process adds x: entry 8.
//  3. The reply to the read arrives, 0.9 s after step 1.
//
// Counted from step 3, the copy could deny x for 1.9 s after its Add with a MaxLag of 1 s.
//
// It reads the log whether or not the process has a copy, to check this process's own adds.
// Redis has lost something if the log does not continue after the entry that was read last
// (log.go), or lacks an add that Redis has acknowledged to this process, or if the filter was
// invalidated later than Redis says, which the updater then repeats. The filter then
// forgets the record and abstains. The next step adds again the ids that this process has
// added lately, and loads a copy. An error of the connection has no such effect: the copy
// answers until MaxLag has passed, and again after the next good read.
type updater struct {
	filter *shared

	job     chan error // the result of the load or compaction that runs; nil: none runs
	retryAt time.Time  // when the next job may begin
	retries wait.Backoff
	pieces  string    // of the snapshot that retryAt and retries are about
	touched time.Time // when the keys in Redis were last prolonged
	trouble string    // the problem that was last logged; "": none
	warned  string    // the shape that was reported as full
}

const (
	// burst is how long the updater waits after an announcement, since more may follow.
	burst = 5 * time.Millisecond
	// firstRetry and maxRetry are the pauses after a load or a compaction failed.
	firstRetry = 250 * time.Millisecond
	maxRetry   = time.Minute
)

func newUpdater(s *shared) *updater {
	return &updater{filter: s, retries: wait.Backoff{First: firstRetry, Max: maxRetry}}
}

func (u *updater) run(ctx context.Context) {
	pause := u.filter.o.MaxLag / 4
	for ctx.Err() == nil {
		err := u.step(ctx)
		u.report(ctx, err)
		if err != nil {
			pause = max(pause, 100*time.Millisecond)
		}
		if err := u.rest(ctx, pause); err != nil {
			u.report(ctx, err)
		}
		pause = u.filter.o.MaxLag / 4
	}
}

// rest waits until it is time to read the log again. It returns the error of a job that
// has ended.
func (u *updater) rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case err := <-u.job:
		return u.ended(err)
	case <-u.filter.announced:
		timer.Reset(burst)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return nil
}

// step reads the log. It begins to load the snapshot in use if the copy is of another one, or to
// write a new snapshot if the log has grown long.
func (u *updater) step(ctx context.Context) error {
	s := u.filter
	rec, err := s.currentRecord(ctx)
	if err != nil {
		return err
	}
	owing := s.payOff(ctx) // before the read moves the clock of recent on
	snap, at, err := s.update(ctx, rec)
	if errors.Is(err, errLost) || errors.Is(err, errGap) {
		s.forget(rec)
	}
	if err != nil {
		return err
	}
	if snap.pieces != u.pieces { // a failure with another snapshot does not count
		u.pieces, u.retryAt = snap.pieces, time.Time{}
		u.retries.Reset()
	}
	if u.job == nil && !time.Now().Before(u.retryAt) {
		u.begin(ctx, rec, snap, at)
	}
	if time.Since(u.touched) > touchEvery {
		if s.store.touch(ctx, snap.pieces) == nil {
			u.touched = time.Now()
		}
	}
	return owing
}

// update reads the log to its end. The copy that answers then has everything that Redis held
// when the read began, so its no is valid for MaxLag from then. If no snapshot is in use any
// more, update makes the filter abstain.
func (s *shared) update(ctx context.Context, rec *record) (snapshot, entryID, error) {
	s.mu.Lock()
	c, at, acknowledged, invalid := s.answering.Load(), s.at, s.newest, s.invalid[rec.header]
	s.mu.Unlock()
	snap, at, begun, err := s.readLog(ctx, rec, at, func(part logPart) error { return s.read(rec, part) })
	if err != nil {
		return snap, at, err
	}
	if at.number < acknowledged {
		return snap, at, fmt.Errorf("%w: an add of this process is missing", errGap)
	}
	if snap.invalid < invalid {
		_, err := s.store.invalidate(ctx, rec, invalid) // the next update tries again what fails here
		return snap, at, errors.Join(fmt.Errorf("%w: an Invalidate is missing", errGap), err)
	}
	s.noteRead()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.record != rec:
		return snap, at, errLost
	case c == nil || c != s.answering.Load(): // another copy answers by now, and may lack a part of the read
	case snap.shape == "":
		s.abstain()
	default:
		c.until.Store(begun + int64(s.o.MaxLag))
	}
	return snap, at, nil
}

// begin starts a load or a compaction, if one is due.
func (u *updater) begin(ctx context.Context, rec *record, snap snapshot, at entryID) {
	s := u.filter
	c := s.answering.Load()
	switch {
	case snap.shape == "":
	case c == nil || c.shape != snap.shape:
		if s.feeds(snap.shape) {
			return // a Rebuild of this process is about to let its table answer
		}
		u.start(func() error { return s.load(ctx, rec, snap) })
	case snap.damaged || snap.since() > c.table.compactAfter():
		u.start(func() error { return s.compact(ctx, rec, c, at) })
	}
}

func (u *updater) start(job func() error) {
	u.job = make(chan error, 1)
	u.filter.running.Go(func() { u.job <- job() })
}

// ended notes the end of a job. A job that failed is tried again, later each time. After one that
// succeeded there is a pause too, since it may have left a compaction to another process.
func (u *updater) ended(err error) error {
	u.job = nil
	switch {
	case err == nil:
		u.retries.Reset()
		u.retryAt = time.Now().Add(wait.Jitter(firstRetry, 0.5))
	case errors.Is(err, errOvertaken):
		err = nil
	default:
		u.retryAt = time.Now().Add(u.retries.Next())
	}
	return err
}

// report logs each problem once, and its end.
func (u *updater) report(ctx context.Context, err error) {
	s := u.filter
	if ctx.Err() != nil {
		return
	}
	u.warnFull()
	const lost, refused = "needs a Rebuild", "is refused"
	s.mu.Lock()
	copied, empty := s.answering.Load() != nil, s.needsRebuild()
	s.mu.Unlock()
	what := ""
	switch {
	case empty:
		what = lost
	case redisconn.Refused(err): // its text may have arguments, which change
		what = refused
	case err != nil:
		what = fmt.Sprintf("%.200v", err)
	case !copied:
		return // it does not answer yet, so it does not follow again
	}
	if what == u.trouble {
		return
	}
	u.trouble = what
	switch what {
	case "":
		s.o.Logger.Info("bloom: filter follows redis again", "filter", s.quoted)
	case lost:
		s.o.Logger.Warn("bloom: filter is new, or redis has lost it: it abstains until the next Rebuild", "filter", s.quoted,
			"rebuild_waits_up_to", s.o.settle())
	case refused:
		s.o.Logger.Error("bloom: redis refuses what a filter needs", "filter", s.quoted, "error", err)
	default:
		s.o.Logger.Warn("bloom: filter does not follow redis and abstains when it is behind", "filter", s.quoted, "error", what)
	}
}

// warnFull reports once for each Rebuild that its result holds more ids than Capacity. The
// number of ids is an estimate, in small filters off by a percent or two. Without
// some slack half of the filters with exactly Capacity ids would be reported.
func (u *updater) warnFull() {
	s := u.filter
	c := s.answering.Load()
	if c == nil || u.warned == c.shape || c.table.ids() <= c.table.capacity+c.table.capacity/20+10 {
		return
	}
	u.warned = c.shape
	s.o.Logger.Warn("bloom: filter holds more ids than its Capacity", "filter", s.quoted,
		"capacity", c.table.capacity, "ids", c.table.ids(), "false_positive_rate", c.table.rate())
}
