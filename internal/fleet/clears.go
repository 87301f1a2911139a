package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/levee-go/levee/internal/redisconn"
)

// readEpoch reads the clears from Redis: the counters of wanted, or all if there were clears after
// complete. If Redis has lost clears that this process knows, it puts them back.
func (s *store) readEpoch(complete uint64, wanted []uint32) (clears, error) {
	more := make([]any, len(wanted))
	for i, n := range wanted {
		more[i] = int(n)
	}
	present, err := s.evalEpoch(s.closing, "look", nil, complete, "", more...)
	if errors.Is(err, errForeign) { // the clears are lost, and cannot be put back
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
	if s.epoch.heard.Load() && len(wanted) == 0 { // otherwise there may be clears that this process does not know
		floor = s.epoch.floor.Load()
	}
	return s.keepEpoch(present, floor, lost)
}

// lost returns the counters, each with its time, that this process knows and Redis has lost. present
// is what Redis has, and whole reports that it includes all counters. If it does not, lost returns
// only counters that are later than the latest clear in Redis.
//
//	the old server          a process             the new server
//	clears a, at 5          knows of it
//	fails                                         has the clears up to 4
//	                                              clears b, at 6, for another process
//	                        reads: the latest is later than 5, and yet a is lost
func (e *epoch) lost(present clears, whole bool) (more []any) {
	whole = whole || present.floor == 0
	if !whole && present.latest >= e.latest.Load() { // no counter is later: saves 131,072 comparisons a message
		return nil
	}
	there, least := map[uint32]uint64{}, present.latest
	if whole {
		least = 0
		for _, c := range present.counters {
			there[c.number] = c.clear
		}
	}
	for kind := range e.tags {
		all := e.tags[kind].Load()
		if all == nil {
			continue
		}
		for i := range all {
			n := uint32(kind*tagCounters + i)
			if at := all[i].Load(); at > least && at > there[n] {
				more = append(more, n, at)
			}
		}
	}
	return more
}

// keepEpoch puts back the clears that Redis has lost. present is what Redis has. This process knows
// every clear from the time floor on; 0: it may have missed some.
func (s *store) keepEpoch(present clears, floor uint64, lost []any) (clears, error) {
	kept, err := s.evalEpoch(s.closing, "keep", s.replicas(), floor, s.message(cleared, ""), lost...)
	kept.complete = present.complete // clears by others since then are in kept.latest, but not in kept.counters
	kept.counters = append(kept.counters, present.counters...)
	return kept, err
}

// evalEpoch runs epoch.lua. Replicas confirm all but "look"; for unasked see evalConfirmed.
func (s *store) evalEpoch(ctx context.Context, how string, unasked error, complete uint64, message string, more ...any) (present clears, err error) {
	call := redisconn.Call{
		Keys: []string{s.names.Clears()},
		Args: append([]any{how, s.epoch.latest.Load(), s.epoch.known.Load(), complete, maxLife.Milliseconds(), s.channel, message}, more...),
	}
	var replies []redisconn.Reply
	errs := []error{nil}
	if how == "look" {
		replies = s.conn.Eval(ctx, epochScript, []redisconn.Call{call}, nil)
	} else if replies, errs = s.evalConfirmed(ctx, epochScript, unasked, call); !answered(errs[0]) {
		return clears{}, errs[0]
	}
	reply, err := replies[0].List()
	s.logSurvived(ctx, err)
	if err == nil {
		present, err = s.parseEpoch(reply)
	}
	return present, errors.Join(errs[0], err)
}

// parseEpoch returns the clears in a reply of epoch.lua.
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
			return clears{}, unexpected(reply)
		}
	}
	if len(fields) < 3 || len(fields)%2 == 0 {
		return clears{}, unexpected(reply)
	}
	present = clears{clear: fields[0], floor: fields[1], latest: fields[2]}
	for i := 3; i < len(fields); i += 2 {
		name, _ := reply[i].(string)
		if n, err := strconv.ParseUint(name, 10, 32); err == nil && n < allCounters { // the others are c, f and l
			present.counters = append(present.counters, counter{uint32(n), fields[i+1]})
		}
	}
	return present, nil
}

// clear runs a Clear or a clear of tags. If Redis does not confirm it, it is tried again in the
// background, and until then this process does not use Redis.
func (s *store) clear(ctx context.Context, what string, targets ...target) error {
	began := s.pending.now()
	err := s.clearOnce(ctx, targets, s.replicas())
	errs := slices.Repeat([]error{err}, len(targets))
	s.pending.settle(targets, began, errs)
	s.pending.add(targets, errs)
	return s.unavailable(ctx, what, nil, err)
}

// clearOnce tries once to clear everything, if targets is that one target, or the tags of targets.
func (s *store) clearOnce(ctx context.Context, targets []target, unasked error) error {
	how, more, numbers := "clear", []any(nil), ""
	if targets[0].id != "" {
		how = "tags"
		names := make([]string, len(targets))
		for i, t := range targets {
			names[i], more = t.id, append(more, t.id)
		}
		numbers = strings.Join(names, ",")
	}
	present, err := s.evalEpoch(ctx, how, unasked, 0, s.message(cleared, numbers), more...)
	if present.latest > 0 {
		s.epoch.learn(present)
	}
	return err
}

// retry implements pendingRedis: it repeats invalidations and clears.
func (s *store) retry(ctx context.Context, targets []target, replicas bool) (errs []error) {
	var unasked error
	if s.waitFor > 0 && !replicas {
		unasked = errUnasked
	}
	if i := slices.IndexFunc(targets, func(t target) bool { return t.clear }); i >= 0 {
		errs = append(s.retry(ctx, targets[:i], replicas), s.clearOnce(ctx, targets[i:i+1], unasked))
		return append(errs, s.retry(ctx, targets[i+1:], replicas)...)
	}
	if len(targets) == 0 {
		return nil
	}
	return s.drop(ctx, targets, s.withReplicaLag(holds{}), unasked)
}
