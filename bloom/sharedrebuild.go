package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/wait"
)

// A sharedRebuild is one Rebuild of a shared filter.
//
//	begin   makes a table, and finds the entry of the log to read from, Options.back ago
//	scan    puts all ids into it; meanwhile keepLease reads the log into it
//	save    writes it to Redis as the snapshot that includes the log up to the newest entry
//	        that was read, and puts it in use
//
// The old copies answer all the time. What is added after that entry is in the log, from
// which every process reads it, whichever snapshot it has. If the process dies, there is
// nothing to clean up: the pieces that it has written expire after orphanLife.
type sharedRebuild struct {
	filter *shared
	record *record
	lease  *lease
	next   *table

	mu    sync.Mutex // guards the fields below, and is held while the log is read
	at    entryID    // the newest entry of the log that was read
	begun int64      // when the last read began
}

const (
	sayWait     = time.Second     // a wait of a Rebuild is logged if it is at least this long
	copyTimeout = 5 * time.Second // how long Rebuild waits at its end for this process's copy
)

// rebuildIfOlder runs a sharedRebuild, or waits for one in another process, unless one has ended
// less than age ago. It reports whether this call has read ids to their end.
func (s *shared) rebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error) {
	ctx, cancel := untilClosed(ctx, s.life)
	defer cancel()
	s.rebuilding.Add(1)
	defer s.rebuilding.Add(-1)
	shape, ran, err := s.rebuildOrWait(ctx, age, ids)
	if err == nil {
		s.awaitCopy(ctx, shape)
		return ran, nil
	}
	if ctx.Err() != nil {
		return false, ended(ctx)
	}
	if scan, ok := errors.AsType[*scanError](err); ok {
		return false, scan.cause
	}
	return false, unavailable(ctx, "Rebuild", err)
}

// rebuildOrWait is rebuildIfOlder, but does not wait for the copy. It returns the shape of the
// result, and whether this call has made that.
func (s *shared) rebuildOrWait(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (shape string, ran bool, err error) {
	var r *sharedRebuild
	err = s.onRecord(ctx, func(rec *record) (err error) {
		r = &sharedRebuild{filter: s, record: rec, lease: s.newLease(rec, s.store.names.Rebuild())}
		shape, err = r.waitForLease(ctx, age)
		return err
	})
	if r == nil {
		return "", false, err
	}
	defer r.lease.release()
	if shape != "" || err != nil {
		return shape, false, err
	}
	if shape, err = r.run(ctx, ids); err != nil {
		return "", false, err
	}
	s.counts.rebuilds.Add(1)
	return shape, true, nil
}

// waitForLease waits until this Rebuild has the lease. If another Rebuild has succeeded
// meanwhile, or less than age before, it returns the shape of the other's result.
func (r *sharedRebuild) waitForLease(ctx context.Context, age time.Duration) (done string, err error) {
	before := ""
	for first := true; ; first = false {
		mine, fresh, shape, err := r.lease.acquire(ctx, age)
		if err != nil {
			return "", err
		}
		if first {
			before = shape
		}
		switch {
		case fresh, shape != before && shape != "":
			return shape, nil
		case mine:
			return "", nil
		}
		if err := pause(ctx, leasePoll); err != nil {
			return "", err
		}
	}
}

// A scanError wraps the error with which the caller's ids ended.
type scanError struct{ cause error }

func (e *scanError) Error() string { return e.cause.Error() }

func (r *sharedRebuild) run(ctx context.Context, ids iter.Seq2[string, error]) (shape string, err error) {
	s := r.filter
	patience, err := r.begin(ctx)
	if err != nil {
		return "", err
	}
	s.feed(r.next)
	defer s.starve(r.next)
	if s.o.back() > 0 { // else the scan finds their rows
		r.next.addAll(s.lately(r.record))
	}

	ctx, cancel := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel(nil)
	keeping.Go(func() { r.keepLease(ctx, cancel) })

	if patience >= sayWait {
		s.o.Logger.Info("bloom: Rebuild waits before it reads the ids, as other processes may have to add again what they have added lately",
			"filter", s.quoted, "wait", patience)
	}
	if err = pause(ctx, patience); err == nil {
		err = r.scan(ctx, ids)
	}
	if err == nil {
		shape, err = r.save(ctx)
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errLeaseLost) {
		return "", cause // the reason why keepLease has ended ctx, not its consequence
	}
	return shape, err
}

// begin finds where in the log to begin, and how long to wait before the scan: the row of an
// add that is not in the log may still be uncommitted.
//
// A log that does not reach back as far as Options.back has lost older entries. If it still has
// its first entry, the filter is new, or Redis has lost everything. Every process that still
// follows the filter then notices, and adds again the ids that it has added lately, so the scan
// can begin when all of them have had time to do so. Otherwise the wait is Options.back.
func (r *sharedRebuild) begin(ctx context.Context) (patience time.Duration, err error) {
	s := r.filter
	shape := s.ownShape
	shape.seed = newSeed()
	r.next = newTable(shape, r.record.key, s.o.MaxFalsePositiveRate, false)
	back := s.o.back()
	reply, err := s.store.eval(ctx, logStartScript, []string{s.store.names.Log()}, back.Milliseconds()).List()
	if err != nil {
		return 0, err
	}
	var age time.Duration
	var field string
	if r.at, age, field, err = parseLogStart(reply); err != nil || back == 0 {
		return 0, err
	}
	switch {
	case field == "":
		return 0, nil
	case field == "begin":
		back = s.o.settle()
	}
	return max(back-age, 0), nil
}

func parseLogStart(reply []any) (at entryID, age time.Duration, field string, err error) {
	if len(reply) != 4 {
		return entryID{}, 0, "", errGap
	}
	text, ok1 := reply[0].(string)
	ms, ok2 := reply[1].(int64)
	field, ok3 := reply[2].(string)
	holds, ok4 := reply[3].(string)
	if !ok1 || !ok2 || !ok3 || !ok4 || ms < 0 {
		return entryID{}, 0, "", errReply(reply)
	}
	at, err = decodeEntryID(text)
	at.hash = holds
	return at, time.Duration(ms) * time.Millisecond, field, err
}

func (r *sharedRebuild) scan(ctx context.Context, ids iter.Seq2[string, error]) error {
	err := <-contain.Go(func() error {
		return scan(ctx, ids, r.filter.o.Progress, func(id string) { r.next.add(r.record.key.sum(id)) })
	})
	if err != nil {
		return &scanError{err}
	}
	return nil
}

// keepLease renews the lease and reads the log into the table until ctx ends. If the lease or
// the log is lost, it ends ctx. Any other error may pass: the scripts that matter check the
// lease themselves.
func (r *sharedRebuild) keepLease(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(leaseRenew)
	defer ticker.Stop()
	for {
		mine, _, _, err := r.lease.acquire(ctx, 0)
		if err == nil && !mine {
			cancel(fmt.Errorf("%w: another process has it, or the filter was invalidated, as Follow does when it begins", errLeaseLost))
			return
		}
		if err == nil {
			err = r.readLog(ctx)
		}
		if errors.Is(err, errGap) || errors.Is(err, errLost) {
			cancel(fmt.Errorf("%w: %w", errLeaseLost, err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// readLog reads the log into the table, to its end.
func (r *sharedRebuild) readLog(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _, begun, err := r.filter.readLog(ctx, r.record, r.at, func(part logPart) error {
		r.next.addAll(part.hashes)
		r.at = part.entry
		return nil
	})
	if err == nil {
		r.begun = begun
	}
	return err
}

// save puts the table in use, for other processes and for this one.
func (r *sharedRebuild) save(ctx context.Context) (shape string, err error) {
	if err := insist(ctx, func() error { return r.readLog(ctx) }); err != nil {
		return "", err
	}
	r.mu.Lock()
	at := r.at
	r.mu.Unlock()
	snap, err := r.filter.save(ctx, r.record, r.next, at, r.lease, true)
	if err != nil {
		return "", err
	}
	if r.readLog(ctx) == nil { // newer entries are in the log, but not yet in the table
		r.mu.Lock()
		defer r.mu.Unlock()
		snap.invalid, _ = strconv.ParseInt(r.lease.invalid, 10, 64)
		_ = r.filter.install(r.record, r.next, snap, r.begun, func(*localCopy) bool { return true })
	}
	return snap.shape, nil // it is in use all the same, and is loaded like any other
}

// awaitCopy waits until this process answers from the result of a Rebuild. It does not wait
// longer than copyTimeout, since Redis may fail at any time, and the filter then abstains.
func (s *shared) awaitCopy(ctx context.Context, shape string) {
	timer := time.NewTimer(copyTimeout)
	defer timer.Stop()
	wait.Wake(s.announced)
	for {
		s.mu.Lock()
		c, changed := s.answering.Load(), s.changed
		s.mu.Unlock()
		if c != nil && c.shape == shape {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
