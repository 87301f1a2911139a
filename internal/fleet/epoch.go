package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Clearing
//
// The epoch of a group is the time of its last Clear, by the server's clock in
// microseconds; 0 if there was none. Redis has it under a key of its own. A value carries
// the epoch that its process knew before its load began, and counts only where no later one
// is known. So a Clear writes one key, however many values there are, and they end by
// their TTL.
//
// A hit takes one round trip, so it cannot ask for the epoch too: on a cluster that
// stands on another node. A process knows it as it knows of invalidations:
//
//   - The process that clears knows it when Clear returns.
//   - The others are told by message, and read it then. Until a message arrives, they may
//     answer with what they find in Redis, as with their local tiers.
//   - While messages do not arrive, a process reads it every half second, and what it
//     has read counts for a second. Without it no value counts, and every process loads for
//     itself. So a process that is cut off from messages alone is a second behind at most, from
//     the moment that it notices (three heartbeats).
//   - It is read once more before messages are relied on: at the start and after each gap.
//
// Redis may lose the key, by eviction or in a failover. Every process reads it now and then,
// and puts the epoch that it knows back if that is higher. Epochs are times, so that
// one that begins after such a loss is still higher than those that values carry.

const (
	pollEpoch  = 500 * time.Millisecond // between two reads of the epoch while messages do not arrive
	epochFresh = time.Second            // for how long one that was read then counts
	touchEpoch = 30 * time.Second       // between two reads while they do
	// maxLife is the longest life of a key in Redis. The epoch has to outlive every
	// value from before it.
	maxLife = 366 * 24 * time.Hour
)

// errEpoch reports that a value was read and may be from before a Clear.
var errEpoch = errors.New("levee: the epoch of the cache cannot be read")

// An epoch is what a process knows of the epoch of a group.
type epoch struct {
	read    func() (uint64, error) // from Redis; nil without Redis
	cleared func()                 // called when the epoch has risen
	lag     time.Duration          // Keyspace.ReplicaLag
	closing context.Context
	work    sync.WaitGroup
	made    time.Time

	known atomic.Uint64
	since atomic.Int64 // when known was learned, in nanoseconds since made
	heard atomic.Bool  // messages arrive, and known was read since they do

	mu         sync.Mutex // guards what follows
	subscribed bool
	live       bool
	gaps       int           // how often messages may have been missed
	clears     int           // how often a message has told of a Clear
	began      time.Time     // when the last read that was answered began
	until      time.Time     // known counts until then, if it is not heard
	done       chan struct{} // closed when the epoch has been read, or could not be
	kick       chan struct{} // wakes the reading goroutine
	running    bool          // the reading goroutine
	touch      *time.Timer   // starts it again
}

func newEpoch(closing context.Context, lag time.Duration, cleared func()) *epoch {
	return &epoch{closing: closing, lag: lag, cleared: cleared, made: time.Now(), done: make(chan struct{}), kick: make(chan struct{}, 1)}
}

// ofLoad is the epoch of a load that begins now. While replicas of the source may lag
// behind a Clear, what is loaded must not outlive it.
func (e *epoch) ofLoad() uint64 {
	known := e.known.Load()
	if e.lag > 0 && known > 0 && time.Since(e.made)-time.Duration(e.since.Load()) < e.lag {
		return known - 1
	}
	return known
}

// learn takes note of an epoch that is or was the present one.
func (e *epoch) learn(present uint64) {
	e.mu.Lock()
	risen := present > e.known.Load()
	if risen {
		e.since.Store(int64(time.Since(e.made))) // before known, which others read without the lock
		e.known.Store(present)
	}
	e.mu.Unlock()
	if risen && e.cleared != nil {
		e.cleared() // after known: what is read from now on is judged by it
	}
}

// sure waits until the epoch is known well enough to judge what was just read from
// Redis, or reports that it cannot be known.
func (e *epoch) sure(ctx context.Context) error {
	if e.heard.Load() || e.read == nil {
		return nil
	}
	asked := time.Now()
	for range 2 { // the read that is under way, and the one after it
		ok, done := e.readSince(asked)
		if ok {
			return nil
		}
		wait.Wake(e.kick)
		select {
		case <-done:
		case <-ctx.Done():
			return wait.Ended(ctx)
		case <-e.closing.Done():
			return errClosed
		}
	}
	if ok, _ := e.readSince(asked); ok {
		return nil
	}
	return errEpoch
}

// readSince reports whether the epoch is known well enough, or was read since. If not,
// the channel is closed at the end of the next read.
func (e *epoch) readSince(since time.Time) (bool, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard.Load() || time.Now().Before(e.until) || !e.began.Before(since), e.done
}

// risen handles a message that tells of a Clear.
func (e *epoch) risen() {
	e.change(func() {
		e.clears++
		e.until = time.Time{}
	})
}

// missed handles a gap in the messages, with which a subscription begins.
func (e *epoch) missed() { e.change(func() { e.subscribed = true }) }

// setLive handles a change of the link's liveness.
func (e *epoch) setLive(live bool) {
	e.change(func() {
		e.live = live
		e.subscribed = e.subscribed && live // a link that is not live any more opens another connection
	})
}

// failed handles the end of a connection: the next one has to subscribe again.
func (e *epoch) failed() { e.change(func() { e.subscribed = false }) }

// change notes something about the messages, after which the epoch has to be read.
func (e *epoch) change(note func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	note()
	e.gaps++
	e.heard.Store(false)
	e.start()
	if e.subscribed && e.live {
		wait.Wake(e.kick)
	}
}

// begin has the epoch read for the first time.
func (e *epoch) begin() { e.change(func() {}) }

// start starts the reading goroutine. The caller holds e.mu.
func (e *epoch) start() {
	if e.running || e.closing.Err() != nil {
		return
	}
	if e.touch != nil {
		e.touch.Stop() // look makes the next one, or each Clear would leave one more behind
	}
	e.running = true
	e.work.Go(e.follow)
}

// follow reads the epoch again and again, until messages tell of its changes.
func (e *epoch) follow() {
	for !e.look() {
		timer := time.NewTimer(pollEpoch)
		select {
		case <-e.kick:
		case <-timer.C:
		case <-e.closing.Done():
		}
		timer.Stop()
	}
}

// look reads the epoch and reports whether that is enough for now.
func (e *epoch) look() (enough bool) {
	e.mu.Lock()
	gaps, clears, began := e.gaps, e.clears, time.Now()
	e.mu.Unlock()
	present, err := e.read()
	if err == nil {
		e.learn(present)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.began = began
		if clears == e.clears {
			e.until = began.Add(epochFresh)
		}
		e.heard.Store(gaps == e.gaps && e.subscribed && e.live)
	}
	close(e.done)
	e.done = make(chan struct{})
	e.running = !e.heard.Load() && e.closing.Err() == nil
	if !e.running && e.closing.Err() == nil {
		e.touch = time.AfterFunc(touchEpoch, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.start()
		})
	}
	return !e.running
}

// close waits for the reading goroutine, after closing has ended.
func (e *epoch) close() {
	e.mu.Lock()
	if e.touch != nil {
		e.touch.Stop()
	}
	e.mu.Unlock()
	e.work.Wait()
}

// readEpoch reads the epoch, and puts the one that this process knows back if Redis has
// lost it.
func (s *store) readEpoch() (uint64, error) {
	text, err := s.conn.Read(s.closing, s.names.Epoch(), 31)
	s.logSurvived(s.closing, err)
	if err != nil {
		return 0, err
	}
	present, err := strconv.ParseUint(string(text), 10, 53)
	if err != nil {
		present = 0 // there is none, or it was overwritten, and so is lost
	}
	known := s.epoch.known.Load()
	if present >= known {
		return present, nil
	}
	present, err = s.raiseEpoch(s.closing, "keep")
	if errors.Is(err, errForeign) { // it is lost, and cannot be put back
		return known, nil
	}
	return present, err
}

// raiseEpoch begins another epoch ("clear"), or puts back the one that is known ("keep").
func (s *store) raiseEpoch(ctx context.Context, how string) (uint64, error) {
	replies, errs := s.evalConfirmed(ctx, epochScript, redisconn.Call{
		Keys: []string{s.names.Epoch()},
		Args: []any{s.epoch.known.Load(), how, maxLife.Milliseconds(), s.channel, s.message(cleared, "")},
	})
	if !done(errs[0]) {
		return 0, errs[0]
	}
	present, err := s.parseEpoch(replies[0].Text())
	return present, errors.Join(errs[0], err)
}

// parseEpoch reads a reply of epoch.lua.
func (s *store) parseEpoch(text string, err error) (uint64, error) {
	switch {
	case err != nil:
		return 0, err
	case text == "":
		s.foreign.Add(1)
		s.log.Error("a key of another type stands where the epoch of a cache belongs, and is left alone: Clear does not work", "key", s.names.Epoch())
		return 0, fmt.Errorf("%w stands at %q", errForeign, s.names.Epoch())
	}
	return strconv.ParseUint(text, 10, 64)
}

// clear begins another epoch. One that is not confirmed is tried again in the background,
// and until then this process leaves Redis alone.
func (s *store) clear(ctx context.Context) error {
	targets, began := []target{{clear: true}}, s.pending.now()
	err := s.clearOnce(ctx)
	s.pending.settle(targets, began, []error{err})
	s.pending.add(targets, []error{err})
	return s.unavailable(ctx, "clear", nil, err)
}

func (s *store) clearOnce(ctx context.Context) error {
	present, err := s.raiseEpoch(ctx, "clear")
	if present > 0 {
		s.epoch.learn(present)
	}
	return err
}

// retry tries invalidations and Clears again that Redis has not confirmed.
func (s *store) retry(ctx context.Context, targets []target) []error {
	if i := slices.IndexFunc(targets, func(t target) bool { return t.clear }); i >= 0 {
		errs := []error{s.clearOnce(ctx)} // the only one: all Clears are one target
		errs = append(s.retry(ctx, targets[:i]), errs...)
		return append(errs, s.retry(ctx, targets[i+1:])...)
	}
	if len(targets) == 0 {
		return nil
	}
	return s.drop(ctx, targets, s.withReplicaLag(holds{}))
}
