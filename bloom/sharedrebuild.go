package bloom

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// A sharedRebuild is one Rebuild of a shared filter.
//
//	begin       finds the entry of the log to read from, MaxTransaction back, and makes
//	            the next generation in this process
//	scan        puts all ids into it; meanwhile keepLease reads the log into it
//	freeze      reads the log once more; the next generation changes no more here
//	upload      writes its pieces to Redis, where nobody uses them yet
//	announce    names it in the record: every Add now sets bits in both generations
//	addMissed   adds again what was added between freeze and announce
//	makeCurrent makes it the generation in use, in one script
//
// The old generation answers all the time. addMissed is necessary because of this:
//
//  1. freeze has read the log up to entry 7.
//  2. Another process adds x: entry 8, and the bits of the old generation.
//  3. announce. The upload does not have x, and Adds from now on do not concern x.
//  4. makeCurrent. Without addMissed x would be denied.
//
// The steps from upload to makeCurrent check the lease in their scripts, and an Add checks
// it before it uses the announced generation. That is necessary because of this:
//
//  1. announce; then this process is stopped until its lease has expired.
//  2. Another process adds x. It finds no lease, so it deletes the announcement, and x
//     goes into the old generation only.
//  3. This process continues, and takes the lease again with its own token.
//  4. makeCurrent finds that its generation is not announced, and does nothing. A switch
//     would deny x.
//
// If the process dies, there is nothing to clean up: the keys that it has uploaded
// expire after orphanLife.
type sharedRebuild struct {
	filter *shared
	store  *store
	record *record
	token  string // of the lease
	name   string // of the next generation
	next   *generation
	bits   table // the set positions of next, made by freeze

	held     bool        // waitForLease got the lease
	finished atomic.Bool // this Rebuild needs the lease no more

	// mu guards the fields below, and writes to next after the scan. It is held
	// while the log is read.
	mu     sync.Mutex
	at     entryID // the newest entry of the log that was read
	frozen bool
}

const (
	sayWait     = time.Second     // from which on the wait of a Rebuild is logged
	grace       = time.Minute     // how long the old generation lives after the switch
	copyTimeout = 5 * time.Second // how long Rebuild waits at its end for this process's copy
)

// rebuild makes and runs a sharedRebuild, or waits for one in another process.
func (s *shared) rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	_, err := s.rebuildIfOlder(ctx, 0, ids)
	return err
}

// rebuildIfOlder is rebuild unless a Rebuild has ended less than age ago. It reports
// whether this call has read ids to their end.
func (s *shared) rebuildIfOlder(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (ran bool, err error) {
	ctx, cancel := untilClosed(ctx, s.life)
	defer cancel()
	s.countRebuilding(+1)
	defer s.countRebuilding(-1)
	name, ran, err := s.rebuildOrWait(ctx, age, ids)
	if err == nil {
		s.awaitCopy(ctx, name)
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

func (s *shared) countRebuilding(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rebuilding += by
}

// rebuildOrWait returns the generation that is the result, and whether it is this call's.
func (s *shared) rebuildOrWait(ctx context.Context, age time.Duration, ids iter.Seq2[string, error]) (name string, ran bool, err error) {
	var r *sharedRebuild
	done := false
	err = s.onRecord(ctx, func(rec *record) (err error) {
		r = newSharedRebuild(s, rec)
		done, err = r.waitForLease(ctx, age)
		return err
	})
	if r == nil {
		return "", false, err
	}
	defer r.finish()
	if done || err != nil {
		return r.name, false, err
	}
	if err := r.run(ctx, ids); err != nil {
		return "", false, err
	}
	s.counts.rebuilds.Add(1)
	return r.name, true, nil
}

// A scanError is the error in which the caller's ids ended.
type scanError struct{ cause error }

func (e *scanError) Error() string { return e.cause.Error() }

func (r *sharedRebuild) run(ctx context.Context, ids iter.Seq2[string, error]) error {
	patience, err := r.begin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel(nil)
	keeping.Go(func() { r.keepLease(ctx, cancel) })

	if patience >= sayWait {
		r.filter.o.Logger.Info("bloom: Rebuild waits before it reads the ids, as rows whose ids were added before the log begins may not have committed",
			"filter", r.filter.quoted, "wait", patience)
	}
	err = pause(ctx, patience)
	if err == nil {
		err = r.scan(ctx, ids)
	}
	for _, step := range []func(context.Context) error{r.freeze, r.upload, r.announce, r.addMissed, r.makeCurrent} {
		if err == nil {
			err = step(ctx)
		}
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errLeaseLost) {
		return cause // why keepLease has ended ctx, not what that has led to
	}
	return err
}

// begin finds where in the log to begin, and how long to wait before the scan: as long as
// the log does not reach back MaxTransaction, the row of an add that is not in the log may
// still be uncommitted.
func (r *sharedRebuild) begin(ctx context.Context) (patience time.Duration, err error) {
	back := max(r.filter.o.MaxTransaction, 0)
	reply, err := r.store.eval(ctx, logStartScript, []string{r.store.names.Log()}, back.Milliseconds()).List()
	if err != nil {
		return 0, err
	}
	at, patience, err := parseLogStart(reply)
	if err != nil {
		return 0, err
	}
	r.at, r.next = at, r.record.newGeneration(r.filter.o, r.name)
	return min(patience, back), nil
}

func parseLogStart(reply []any) (at entryID, patience time.Duration, err error) {
	if len(reply) != 2 {
		return entryID{}, 0, errGap
	}
	text, ok1 := reply[0].(string)
	ms, ok2 := reply[1].(int64)
	if !ok1 || !ok2 || ms < 0 {
		return entryID{}, 0, errReply(reply)
	}
	at, err = decodeEntryID(text)
	return at, time.Duration(ms) * time.Millisecond, err
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

// followLog reads the log into the next generation, until freeze. Removals in it are
// ignored: nobody knows whether the scan has seen their rows.
func (r *sharedRebuild) followLog(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen {
		return nil
	}
	return r.readLog(ctx, func(hashes []hash) {
		for _, h := range hashes {
			r.next.add(h)
		}
	})
}

// readLog reads the log to its end. The caller holds mu.
func (r *sharedRebuild) readLog(ctx context.Context, added func([]hash)) error {
	for {
		part, err := r.store.tail(ctx, r.record, r.at, r.name, false)
		if err != nil {
			return err
		}
		added(part.hashes)
		if r.at = part.last; !part.more {
			return nil
		}
	}
}

func (r *sharedRebuild) freeze(ctx context.Context) error {
	if err := r.followLog(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen, r.bits = true, r.next.table.bits()
	return nil
}

func (r *sharedRebuild) upload(ctx context.Context) error {
	names := r.store.names
	for piece := range pieces(r.next.spread.size) {
		if err := r.uploadWords(ctx, names.Piece(r.name, piece), r.bits.piece(piece), encodeWords); err != nil {
			return err
		}
		if !r.filter.o.Counting {
			continue
		}
		if err := r.uploadWords(ctx, names.Counters(r.name, piece), r.next.table.counters(piece), encodeCounters); err != nil {
			return err
		}
	}
	return nil
}

func (r *sharedRebuild) uploadWords(ctx context.Context, name string, words []uint64, encode func([]byte, []uint64) []byte) error {
	at := 0
	for part := range slices.Chunk(words, rangeBytes/8) {
		bytes := encode(make([]byte, 0, len(part)*8), part) // not reused: a call that was left behind may still read it
		err := r.evalIfHeld(ctx, uploadScript, []string{r.store.names.Rebuild(), name}, r.token, at, bytes, orphanLife.Milliseconds())
		if err != nil {
			return err
		}
		at += len(bytes)
	}
	return nil
}

func (r *sharedRebuild) announce(ctx context.Context) error {
	names := r.store.names
	args := append([]any{r.record.header, r.token, r.name, orphanLife.Milliseconds()}, encodeChecksums(checksumsOf(&r.bits))...)
	return r.evalIfHeld(ctx, announceScript, []string{names.Record(), names.Rebuild(), names.Sums(r.name)}, args...)
}

// evalIfHeld runs a script that gives 0 and does nothing without the lease.
func (r *sharedRebuild) evalIfHeld(ctx context.Context, script *redisconn.Script, keys []string, args ...any) error {
	held, err := r.store.eval(ctx, script, keys, args...).Int()
	if err == nil && held == 0 {
		err = errLeaseLost
	}
	return err
}

// addMissed adds what was added since freeze. Most of it gets a second entry in the log,
// which does no harm.
func (r *sharedRebuild) addMissed(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var missed []hash
	if err := r.readLog(ctx, func(hashes []hash) { missed = append(missed, hashes...) }); err != nil {
		return err
	}
	for chunk := range slices.Chunk(missed, r.filter.o.chunk()) {
		if err := r.filter.addHashes(ctx, r.record, chunk); err != nil {
			return err
		}
	}
	return nil
}

// makeCurrent gives the script the keys of the old generation, which it lets expire. If
// another generation is in use than this process thinks, the script does nothing and
// returns that.
func (r *sharedRebuild) makeCurrent(ctx context.Context) error {
	names := r.store.names
	next := r.store.keysOf(r.name)
	r.filter.mu.Lock()
	current := r.filter.generations.current
	r.filter.mu.Unlock()
	for range attempts {
		var old []string
		if current != "" {
			old = r.store.keysOf(current)
		}
		keys := slices.Concat([]string{names.Record(), names.Log(), names.Rebuild()}, next, old)
		reply, err := r.store.eval(ctx, switchScript, keys, r.record.header, r.token, r.name, current, len(next),
			life.Milliseconds(), grace.Milliseconds(), names.Channel(), r.token).List()
		if err != nil {
			return err
		}
		switch {
		case len(reply) == 1 && reply[0] == "ok":
			return nil
		case len(reply) == 2 && reply[0] == "stale":
			current, _ = reply[1].(string)
		default:
			return errLeaseLost
		}
	}
	return errLeaseLost
}

// awaitCopy waits until this process answers from the generation name. It does not wait
// longer than copyTimeout, since Redis may fail at any time, and the filter then abstains.
func (s *shared) awaitCopy(ctx context.Context, name string) {
	timer := time.NewTimer(copyTimeout)
	defer timer.Stop()
	wait.Wake(s.asked)
	for {
		s.mu.Lock()
		c, changed := s.copy, s.changed
		s.mu.Unlock()
		if c != nil && c.name == name {
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
