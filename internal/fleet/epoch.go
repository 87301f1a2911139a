package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Clearing
//
// A Clear ends everything, a ClearTags what has one of some tags. The tags of a group share
// 65,536 counters, each of which holds the time of its last clear; so what a clear of tags
// costs does not grow with their number, and it ends by chance one tag in 65,536 too many.
// Times are those of the server's clock, in microseconds, and each clear of a group is later
// than all before it.
//
// The epoch of a value is the latest clear of anything that its process knew before the load
// began. The value counts only where no Clear is known that is later than that, nor a clear
// of one of its tags. So a clear writes one key, however many values there are, and they end
// by their TTL.
//
// A hit takes one round trip, so it cannot ask for the clears too: on a cluster they
// stand on another node. A process knows them as it knows of invalidations:
//
//   - The process that clears knows it when its call returns.
//   - The others are told by message, and read what has changed then. Until a message arrives, they
//     may answer with what they find in Redis, as with their local tiers.
//   - While messages do not arrive, a process reads them every half second, and what it
//     has read counts for a second. Without them no value counts, and every process loads for
//     itself. So a process that is cut off from messages alone is a second behind at most, from
//     the moment that it notices (three heartbeats).
//   - They are read once more before messages are relied on: at the start and after each gap.
//
// Redis may lose the key, by eviction or in a failover. Every process reads it now and then,
// however many messages name what has changed meanwhile, and puts back what it knows. A key
// that nobody can put back whole has a floor, the time from which on it is complete: what has
// tags and an earlier epoch does not count, since one of them may have been cleared. Epochs are
// times, so that one that begins after such a
// loss is still higher than those that values carry.

const (
	pollEpoch  = 500 * time.Millisecond // between two reads of the clears while messages do not arrive
	epochFresh = time.Second            // for how long what was read then counts
	touchEpoch = 30 * time.Second       // between two reads while they do, and as long again for each touchSize counters
	touchSize  = 1000                   // so that a large hash takes Redis little more time than a small one
	// maxLife is the longest life of a key in Redis. A clear has to outlive every
	// value from before it.
	maxLife = 366 * 24 * time.Hour
)

// errEpoch reports that a value was read and may be from before a Clear.
var errEpoch = errors.New("levee: what was cleared of the cache cannot be read")

// tagCounters is how many counters the tags of a group share.
const tagCounters = 1 << 16

// counterOf is the number of the counter of a tag, whose digest is given.
func counterOf(tag uint32) uint16 { return uint16(tag) }

// An epoch is what a process knows of the clears of a group.
type epoch struct {
	read    func(complete uint64, wanted []uint16) (clears, error) // from Redis; nil without Redis
	cleared func()                                                 // called when a Clear is learned of
	lag     time.Duration                                          // Keyspace.ReplicaLag
	closing context.Context
	work    sync.WaitGroup

	known     atomic.Uint64 // the last Clear
	floor     atomic.Uint64 // what has tags and an earlier epoch does not count
	latest    atomic.Uint64 // clear of anything
	tagged    atomic.Uint64 // the latest clear of tags, 0 if there was none
	tagClears atomic.Uint64 // how often tagged, floor or a counter has risen
	tags      atomic.Pointer[[tagCounters]atomic.Uint64]
	heard     atomic.Bool // messages arrive, and all clears were read since they do

	mu         sync.Mutex // guards what follows
	recent     []learned  // of the last lag, oldest first
	subscribed bool
	live       bool
	gaps       int             // how often messages may have been missed
	clears     int             // how often a message has told of a Clear
	complete   uint64          // every clear up to this one is known
	changed    map[uint16]bool // counters of which a message has told, and which have not been read since
	began      time.Time       // when the last read that was answered began
	until      time.Time       // what is known counts until then, if it is not heard
	done       chan struct{}   // closed when the clears have been read, or could not be
	kick       chan struct{}   // wakes the reading goroutine
	running    bool            // the reading goroutine
	touch      *time.Timer     // starts it again
	size       int             // how many counters Redis had when all were read
	due        time.Time       // when all are to be read again, however many messages come meanwhile
}

// A learned is that this process has learned of clears: one, or several at once.
type learned struct {
	before uint64 // the latest clear that it knew until then
	at     time.Time
}

// clears is what Redis knows.
type clears struct {
	clear, floor, latest uint64
	complete             uint64    // the latest when the counters were read
	counters             []counter // those that were asked for, or all
}

// A counter is the last clear of the tags that share it.
type counter struct {
	number uint16
	clear  uint64
}

func newEpoch(closing context.Context, lag time.Duration, cleared func()) *epoch {
	return &epoch{closing: closing, lag: lag, cleared: cleared, changed: map[uint16]bool{}, done: make(chan struct{}), kick: make(chan struct{}, 1)}
}

// ofLoad is the epoch of a load that begins now. While replicas of the source may lag behind
// a clear, a loaded value must not outlive it. The value gets what this process knew before it
// learned of that clear, and not the time of the clear less one: a process may learn of several
// at once, or of the later one first, and the value may have the tag of an earlier one.
func (e *epoch) ofLoad() uint64 {
	if e.lag == 0 {
		return e.latest.Load()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetRecent()
	if len(e.recent) > 0 {
		return e.recent[0].before
	}
	return e.latest.Load()
}

// forgetRecent forgets the clears that lagging replicas have by now. The caller holds e.mu.
func (e *epoch) forgetRecent() {
	e.recent = slices.DeleteFunc(e.recent, func(l learned) bool { return time.Since(l.at) >= e.lag })
}

// ends reports whether a clear that is known ends what has this epoch and tags.
func (e *epoch) ends(epoch uint64, tags []uint32) bool {
	if epoch < e.known.Load() || len(tags) > 0 && epoch < e.floor.Load() {
		return true
	}
	if epoch >= e.tagged.Load() {
		return false
	}
	all := e.tags.Load()
	return slices.ContainsFunc(tags, func(tag uint32) bool { return epoch < all[counterOf(tag)].Load() })
}

// learn takes note of clears that Redis knows or knew.
func (e *epoch) learn(c clears) { e.note(func() clears { return c }) }

// note takes note of clears. It calls what with e.mu held.
func (e *epoch) note(what func() clears) {
	e.mu.Lock()
	c, was, tags := what(), e.floor.Load(), false
	for _, counter := range c.counters {
		tags = e.learnCounter(counter) || tags
	}
	if raise(&e.floor, c.floor) && was > 0 { // what is in the local tier may have to be looked at
		e.allCounters()
		raise(&e.tagged, c.floor)
		tags = true
	}
	if tags {
		e.tagClears.Add(1) // after the counters: whoever sees it finds them
	}
	risen := c.clear > e.known.Load()
	if latest := e.latest.Load(); e.lag > 0 && c.latest > max(latest, c.floor) { // one in which nothing was cleared begins with its floor
		e.forgetRecent() // else a process that never loads would remember them all
		e.recent = append(e.recent, learned{latest, time.Now()})
	}
	raise(&e.latest, c.latest)
	raise(&e.known, c.clear) // last: whoever sees it finds the rest
	e.mu.Unlock()
	if risen && e.cleared != nil {
		e.cleared() // after known: what is read from now on is judged by it
	}
}

// clearHere clears without Redis: everything or, if there are any, the counters of numbers.
func (e *epoch) clearHere(numbers ...uint16) {
	e.note(func() clears {
		now := clears{latest: e.latest.Load() + 1}
		if len(numbers) == 0 {
			now.clear = now.latest
		}
		for _, n := range numbers {
			now.counters = append(now.counters, counter{n, now.latest})
		}
		return now
	})
}

// learnCounter reports whether the counter is news. The caller holds e.mu.
func (e *epoch) learnCounter(c counter) bool {
	if c.clear == 0 || !raise(&e.allCounters()[c.number], c.clear) {
		return false
	}
	raise(&e.tagged, c.clear)
	return true
}

// allCounters makes the counters if there are none. The caller holds e.mu.
func (e *epoch) allCounters() *[tagCounters]atomic.Uint64 {
	if e.tags.Load() == nil {
		e.tags.Store(new([tagCounters]atomic.Uint64))
	}
	return e.tags.Load()
}

// raise stores n if it is more, and reports whether it is. The caller holds e.mu.
func raise(to *atomic.Uint64, n uint64) bool {
	if n <= to.Load() {
		return false
	}
	to.Store(n)
	return true
}

// sure waits until the clears are known well enough to judge what was just read from
// Redis, or reports that they cannot be known.
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

// readSince reports whether the clears are known well enough, or were read since. If not,
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

// tagsCleared handles a message that tells of a clear of tags. Unlike after a Clear, values
// go on to be served meanwhile, as they were until the message came.
func (e *epoch) tagsCleared(numbers []uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range numbers {
		e.changed[n] = true
	}
	e.start()
	wait.Wake(e.kick)
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

// change notes something about the messages, after which the clears have to be read.
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

// begin has the clears read for the first time.
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

// follow reads the clears again and again, until messages tell of their changes.
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

// look reads the clears and reports whether that is enough for now.
func (e *epoch) look() (enough bool) {
	e.mu.Lock()
	gaps, told, complete, began := e.gaps, e.clears, e.complete, time.Now()
	wanted := slices.Collect(maps.Keys(e.changed))
	clear(e.changed)
	part := e.heard.Load() && len(wanted) > 0 && began.Before(e.due)
	if part { // messages name all that has changed
		complete = math.MaxInt64
	}
	e.mu.Unlock()
	present, err := e.read(complete, wanted)
	if err == nil {
		e.learn(present)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.began = began
		if !part && present.complete > e.complete {
			e.complete, e.size = present.complete, len(present.counters)
		}
		if told == e.clears {
			e.until = began.Add(epochFresh)
		}
		e.heard.Store(gaps == e.gaps && e.subscribed && e.live)
	} else if len(wanted) > 0 {
		e.heard.Store(false)
		for _, n := range wanted {
			e.changed[n] = true
		}
	}
	if !part {
		e.due = began.Add(touchEpoch * time.Duration(1+e.size/touchSize))
	}
	close(e.done)
	e.done = make(chan struct{})
	e.running = (!e.heard.Load() || len(e.changed) > 0) && e.closing.Err() == nil
	if !e.running && e.closing.Err() == nil {
		e.touch = time.AfterFunc(time.Until(e.due), func() {
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

// readEpoch reads what has been cleared, all counters if there were clears after complete, and
// puts back what this process knows if Redis has lost it.
func (s *store) readEpoch(complete uint64, wanted []uint16) (clears, error) {
	more := make([]any, len(wanted))
	for i, n := range wanted {
		more[i] = int(n)
	}
	present, err := s.evalEpoch(s.closing, "look", complete, "", more...)
	if errors.Is(err, errForeign) { // it is lost, and cannot be put back
		return clears{}, nil
	}
	if err != nil {
		return present, err
	}
	present.complete = present.latest
	lost := s.epoch.lost(present, present.latest > complete)
	if present.floor > 0 && present.clear >= s.epoch.known.Load() && present.latest >= s.epoch.latest.Load() && len(lost) == 0 {
		return present, nil
	}
	floor := uint64(0)
	if s.epoch.heard.Load() && len(wanted) == 0 { // else there may be clears that this process does not know
		floor = s.epoch.floor.Load()
	}
	return s.keepEpoch(present, floor, lost)
}

// lost are the counters, each with its time, that this process knows and Redis, which has present,
// does not. If those of present are not all that Redis has, they are the ones that are later than
// whatever it has.
//
//	the old server          a process             the new server
//	clears a, at 5          knows of it
//	fails                                         has the clears up to 4
//	                                              clears b, at 6, for another process
//	                        reads: the latest is later than 5, and yet a is lost
func (e *epoch) lost(present clears, whole bool) (more []any) {
	all := e.tags.Load()
	whole = whole || present.floor == 0
	if all == nil || !whole && present.latest >= e.latest.Load() { // no counter is later than that: 65,536 looks less for each message
		return nil
	}
	there, least := map[uint16]uint64{}, present.latest
	if whole {
		least = 0
		for _, c := range present.counters {
			there[c.number] = c.clear
		}
	}
	for n := range all {
		if at := all[n].Load(); at > least && at > there[uint16(n)] {
			more = append(more, n, at)
		}
	}
	return more
}

// keepEpoch puts back what Redis, which has present, has lost. From floor on the knowledge of this
// process is complete; 0: it may have missed clears.
func (s *store) keepEpoch(present clears, floor uint64, lost []any) (clears, error) {
	kept, err := s.evalEpoch(s.closing, "keep", floor, s.message(cleared, ""), lost...)
	kept.complete = present.complete // what others have cleared since then is in kept.latest alone
	kept.counters = append(kept.counters, present.counters...)
	return kept, err
}

// evalEpoch runs epoch.lua. Reading needs no replica's word.
func (s *store) evalEpoch(ctx context.Context, how string, complete uint64, message string, more ...any) (present clears, err error) {
	call := redisconn.Call{
		Keys: []string{s.names.Clears()},
		Args: append([]any{how, s.epoch.latest.Load(), s.epoch.known.Load(), complete, maxLife.Milliseconds(), s.channel, message}, more...),
	}
	var replies []redisconn.Reply
	errs := []error{nil}
	if how == "look" {
		replies = s.conn.Eval(ctx, epochScript, []redisconn.Call{call}, nil)
	} else if replies, errs = s.evalConfirmed(ctx, epochScript, call); !done(errs[0]) {
		return clears{}, errs[0]
	}
	reply, err := replies[0].List()
	s.logSurvived(ctx, err)
	if err == nil {
		present, err = s.parseEpoch(reply)
	}
	return present, errors.Join(errs[0], err)
}

// parseEpoch reads a reply of epoch.lua.
func (s *store) parseEpoch(reply []any) (present clears, err error) {
	if len(reply) == 0 {
		s.foreign.Add(1)
		s.log.Error("the key of a cache's clears is of another type; it is not touched, and Clear and ClearTags do not work", "key", s.names.Clears())
		return clears{}, fmt.Errorf("%w at %q", errForeign, s.names.Clears())
	}
	fields := make([]uint64, len(reply))
	for i := range reply {
		text, _ := reply[i].(string)
		if fields[i], err = strconv.ParseUint(text, 10, 53); err != nil && (i < 3 || i%2 == 0) {
			return clears{}, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
		}
	}
	if len(fields) < 3 || len(fields)%2 == 0 {
		return clears{}, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
	}
	present = clears{clear: fields[0], floor: fields[1], latest: fields[2]}
	for i := 3; i < len(fields); i += 2 {
		name, _ := reply[i].(string)
		if n, err := strconv.ParseUint(name, 10, 16); err == nil { // else one of c, f and l
			present.counters = append(present.counters, counter{uint16(n), fields[i+1]})
		}
	}
	return present, nil
}

// clear ends everything, or what has one of the tags of numbers. What is not confirmed is
// tried again in the background, and until then this process leaves Redis alone.
func (s *store) clear(ctx context.Context, what string, targets ...target) error {
	began := s.pending.now()
	err := s.clearOnce(ctx, targets)
	errs := slices.Repeat([]error{err}, len(targets))
	s.pending.settle(targets, began, errs)
	s.pending.add(targets, errs)
	return s.unavailable(ctx, what, nil, err)
}

// clearOnce clears everything, which is one target, or the tags of several.
func (s *store) clearOnce(ctx context.Context, targets []target) error {
	how, more, numbers := "clear", []any(nil), ""
	if targets[0].id != "" {
		how = "tags"
		names := make([]string, len(targets))
		for i, t := range targets {
			names[i], more = t.id, append(more, t.id)
		}
		numbers = strings.Join(names, ",")
	}
	present, err := s.evalEpoch(ctx, how, 0, s.message(cleared, numbers), more...)
	if present.latest > 0 {
		s.epoch.learn(present)
	}
	return err
}

// retry tries invalidations and clears again that Redis has not confirmed.
func (s *store) retry(ctx context.Context, targets []target) []error {
	if i := slices.IndexFunc(targets, func(t target) bool { return t.clear }); i >= 0 {
		errs := []error{s.clearOnce(ctx, targets[i:i+1])}
		errs = append(s.retry(ctx, targets[:i]), errs...)
		return append(errs, s.retry(ctx, targets[i+1:])...)
	}
	if len(targets) == 0 {
		return nil
	}
	return s.drop(ctx, targets, s.withReplicaLag(holds{}))
}
