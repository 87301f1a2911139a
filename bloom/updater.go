package bloom

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// An updater keeps the copy of a shared filter up to date. It is one goroutine, and
// only that goroutine uses its fields.
//
// It reads the log four times in MaxLag, and at once after an announcement or when a
// caller waits for a confirmation. A read that reaches the end of the log brings
// everything that Redis held when the read began, so a no counts for MaxLag from then, and
// not from the reply:
//
//  1. The updater sends a read. Redis runs it; the newest entry is 7.
//  2. Another process adds x: entry 8.
//  3. The reply to the read arrives, 0.9 s after step 1.
//
// Counted from step 3, the copy could deny x for 1.9 s after its Add with a MaxLag of 1 s.
//
// Three things show that the copy and Redis have parted:
//
//   - the log no longer has the entry that was read last (see log.go),
//   - the log ends before an Add of this process that Redis has acknowledged,
//   - at the end of the log the copy has more or fewer bits set than Redis.
//
// The filter then forgets the record and abstains. The next step adds again what this
// process has added lately, and loads a new copy. An error of the connection has no such
// effect: the copy answers until MaxLag has passed, and again after the next good read.
type updater struct {
	filter   *shared
	record   *record   // the filter that the fields below belong to
	at       entryID   // the newest entry of the log that was read; zero: none yet
	polled   int64     // when the last read began that reached the log's end
	tried    int64     // when the last read began
	download *download // the generation that is being loaded; nil: none

	failed   string // the generation that did not load
	retryAt  int64  // when to try failed again
	backoff  time.Duration
	addAgain bool   // this process's recent adds are to be added again
	touched  int64  // when the keys in Redis were last prolonged; 0: not yet
	trouble  string // the problem that was last logged; "": none
}

const (
	// burst is how long the updater waits after an announcement, since more may follow.
	burst = 5 * time.Millisecond
	// firstBackoff and maxBackoff are the pauses after a generation did not load.
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = time.Minute
)

func newUpdater(s *shared) *updater { return &updater{filter: s} }

func (u *updater) run(ctx context.Context) {
	pause := u.filter.o.MaxLag / 4
	for ctx.Err() == nil {
		err := u.step(ctx)
		u.report(ctx, err)
		if err != nil {
			u.rest(ctx, max(pause, 100*time.Millisecond))
		} else {
			u.rest(ctx, pause)
		}
	}
	u.filter.takeConfirmation().finish(false)
}

// rest waits until it is time to read the log again.
func (u *updater) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-u.filter.asked:
	case <-u.filter.announced:
		timer.Reset(burst)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-u.filter.asked:
		}
	}
}

// step reads the log, and loads the generation in use if the copy is of another one.
func (u *updater) step(ctx context.Context) error {
	rec, err := u.filter.currentRecord(ctx)
	if err != nil {
		return err
	}
	if u.record != rec {
		u.record, u.at = rec, entryID{}
	}
	if u.addAgain {
		if err := u.filter.addRecent(ctx, rec); err != nil {
			return err
		}
		u.addAgain = false
	}
	part, err := u.readLog(ctx, nil)
	if err == nil && u.shouldLoad(part.generations.current) {
		err = u.load(ctx, part.generations.current)
	}
	if err == nil {
		u.touch(ctx, part.generations.current)
	}
	if errors.Is(err, errLost) || errors.Is(err, errGap) {
		u.filter.forget(u.record)
		u.at, u.failed, u.addAgain = entryID{}, "", true
	}
	return err
}

func (u *updater) shouldLoad(current string) bool {
	c, _ := u.filter.followed()
	if current == "" || c != nil && c.name == current {
		return false
	}
	return current != u.failed || now() >= u.retryAt
}

// readLog reads the log to its end and applies what it says. With the end come the
// checksums of d, if d is not nil.
func (u *updater) readLog(ctx context.Context, d *download) (logPart, error) {
	waiting := u.filter.takeConfirmation() // before the read begins: it has to see their adds
	part, err := u.readToEnd(ctx, d)
	waiting.finish(err == nil)
	return part, err
}

func (u *updater) readToEnd(ctx context.Context, d *download) (logPart, error) {
	for {
		c, own := u.filter.followed()
		checksumsOf := ""
		if d != nil {
			checksumsOf = d.copy.name
		} else if c != nil {
			checksumsOf = c.name
		}
		u.tried = now()
		part, err := u.filter.store.tail(ctx, u.record, u.at, checksumsOf, d != nil)
		if err != nil {
			return part, err
		}
		u.apply(part)
		if part.more {
			continue
		}
		if part.last.before(own) {
			return part, fmt.Errorf("%w: an add of this process is missing", errGap)
		}
		if c != nil && d == nil && part.generations.current == c.name && !u.agrees(c, part) {
			return part, fmt.Errorf("%w: %w", errGap, errCorrupt)
		}
		u.polled = u.tried
		if c != nil {
			c.until.Store(u.polled + int64(u.filter.o.MaxLag))
		}
		return part, nil
	}
}

// apply applies a part of the log to all copies. What it clears in the copies that Adds
// of this process go into waits until no such Add is ahead of the log: see localCopy.
func (u *updater) apply(part logPart) {
	s := u.filter
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range []*localCopy{s.copy, s.candidate} {
		if c == nil {
			continue
		}
		part.replay(c.name, c.add, c.clearLater)
		if !part.last.before(s.ownEntry) {
			c.clearNow()
		}
	}
	if d := u.download; d != nil {
		part.replay(d.copy.name, d.add, d.copy.clearLater)
		d.clearNow()
	}
	u.at = part.last
	if s.record == u.record {
		s.generations, s.applied = part.generations, part.last
	}
}

// agrees reports whether the copy has as many bits set as Redis had at the end of the
// log. While an Add of this process is ahead of the log, that cannot be said.
func (u *updater) agrees(c *localCopy, part logPart) bool {
	s := u.filter
	s.mu.Lock()
	defer s.mu.Unlock()
	if part.last.before(s.ownEntry) {
		return true
	}
	return len(part.checksums) == 2 && part.checksums[1] == strconv.FormatUint(c.generation.set.Load(), 10)
}

// touch prolongs once in touchEvery the life of the generation in use. If that fails,
// the next step tries again.
func (u *updater) touch(ctx context.Context, current string) {
	if current == "" || u.touched != 0 && now()-u.touched < int64(touchEvery) {
		return
	}
	if u.filter.store.touch(ctx, current) == nil {
		u.touched = now()
	}
}

// report logs each problem once, and its end.
func (u *updater) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	u.filter.warnFull()
	const lost = "needs a Rebuild"
	what := ""
	if copied, empty := u.filter.answersFrom(); errors.Is(err, errLost) || err == nil && empty {
		what = lost
	} else if err != nil {
		what = fmt.Sprintf("%.200v", err)
	} else if !copied {
		return // it does not answer yet, so it does not follow again
	}
	if what == u.trouble {
		return
	}
	u.trouble = what
	switch what {
	case "":
		u.filter.o.Logger.Info("bloom: filter follows redis again", "filter", u.filter.quoted)
		return
	case lost:
		u.filter.o.Logger.Warn("bloom: filter is new, or redis has lost it: it abstains until the next Rebuild", "filter", u.filter.quoted,
			"rebuild_waits_up_to", max(u.filter.o.MaxTransaction, 0))
		return
	}
	u.filter.o.Logger.Warn("bloom: filter does not follow redis and abstains when it is behind", "filter", u.filter.quoted, "error", what)
}

// answersFrom reports whether the filter has a copy to answer from and, if not, whether
// nothing but a Rebuild brings it one.
func (s *shared) answersFrom() (copied, empty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copy != nil, s.copy == nil && s.isEmpty()
}

// followed returns the copy that answers, and the log's newest entry of an Add of this
// process.
func (s *shared) followed() (*localCopy, entryID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copy, s.ownEntry
}
