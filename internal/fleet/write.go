package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Set publishes values that are already in the source, in two round trips per node for every
// 128 values, and ends the leases of their ids, so that no rebuild under way can overwrite them.
// With empty Data, Data over Keyspace.MaxBytes, or a TTL under a millisecond, it invalidates the
// id. It returns ErrUnavailable if Redis did not confirm all values; the unconfirmed ids are
// invalidated as soon as possible.
func (g *Group) Set(ctx context.Context, values ...Publication) error {
	storable, dropped := make([]Publication, 0, len(values)), []string(nil)
	for _, v := range values {
		if g.Storable(v.Data, v.TTL) {
			storable = append(storable, v)
		} else {
			dropped = append(dropped, v.Lease.ID)
		}
	}
	var err error
	if len(dropped) > 0 {
		err = g.leases.invalidate(ctx, dropped, holds{})
	}
	if len(storable) > 0 {
		err = errors.Join(err, g.leases.set(ctx, storable))
	}
	return err
}

// Claim takes the leases of ids, also from other holders, in one round trip per node. The
// values stay in Redis and are served meanwhile: the caller loads, and then calls Replace or
// Abort. A load under way elsewhere can no longer be published. If a writer holds an id,
// Claim changes nothing of it and returns Held. Unknown means that Redis did not reply.
func (g *Group) Claim(ctx context.Context, ids ...string) []Grant { return g.leases.claim(ctx, ids) }

// Replace publishes values under leases of Claim, in place of the ones in Redis, in one
// round trip per node, and notifies all processes. If the id was claimed, set or invalidated
// since, or if Redis has no memory for the value, the value is not published and there is
// no error.
func (g *Group) Replace(ctx context.Context, values ...Publication) []Outcome {
	return g.leases.replace(ctx, values)
}

// Storable reports whether data may be stored in Redis for ttl.
func (g *Group) Storable(data []byte, ttl time.Duration) bool {
	return ttl >= time.Millisecond && len(data) > 0 && len(data) <= g.space.MaxBytes
}

// Invalidate drops the values of ids and ends their leases, in all processes. When it
// returns nil, no later call returns the old values. It returns ErrUnavailable if Redis did
// not confirm all ids. It goes on to invalidate the unconfirmed ones in the background
// until Redis confirms them, and until then no later call in this process returns their old
// values. If only replicas are missing (Options.WaitReplicas), Redis is still used; a
// failover at this time may bring the old value back until the next attempt: when the
// replicas are there, or a second or so after Redis has failed to reply.
func (g *Group) Invalidate(ctx context.Context, ids ...string) error {
	return g.leases.invalidate(ctx, ids, holds{})
}

// Expire invalidates ids but leaves their values in Redis for at most life, with a mark in the header
// of package cache. It drops values without that header. Ids that Redis does not confirm are
// invalidated in the background.
func (g *Group) Expire(ctx context.Context, life time.Duration, ids ...string) error {
	return g.leases.invalidate(ctx, ids, holds{soft: life})
}

// Clear ends the values of all ids, in all processes. It writes one key of Redis; the ended
// values stay in Redis until their TTL. It has an effect only for owners who put
// [Group.LoadEpoch] into their values and check them with [Group.Cleared].
//
// When Clear returns nil, no value that this process reads afterwards counts, wherever it comes
// from, if its load began before. Other processes follow when the message arrives, or within a
// second after they notice that messages do not arrive. After ErrUnavailable Clear is tried again
// until Redis confirms it, and until then this process does not use Redis, unless the key of the
// clears belongs to another application: then Clear has no effect until that key is gone.
func (g *Group) Clear(ctx context.Context) error {
	if g.redis == nil {
		g.epoch.clearHere()
		return nil
	}
	return g.redis.clear(ctx, "clear", target{clear: true})
}

// ClearTags ends the values that have one of tags, given by their digests, as Clear ends all. It
// writes one key, however many values it ends. By chance it also ends the values of one other tag
// in 65,536.
func (g *Group) ClearTags(ctx context.Context, tags ...uint32) error {
	return g.raiseTags(ctx, clearing, tags)
}

// ExpireTags expires the values that have one of tags, as ClearTags ends them: they may still be
// served if their load fails. Owners check values with [Group.Expired].
func (g *Group) ExpireTags(ctx context.Context, tags ...uint32) error {
	return g.raiseTags(ctx, expiring, tags)
}

// raiseTags raises the counters of a kind for tags.
func (g *Group) raiseTags(ctx context.Context, kind uint32, tags []uint32) error {
	numbers := make([]uint32, len(tags))
	for i, tag := range tags {
		numbers[i] = counterOf(tag, kind)
	}
	slices.Sort(numbers)
	switch numbers = slices.Compact(numbers); {
	case len(numbers) == 0:
		return nil
	case g.redis == nil:
		g.epoch.clearHere(numbers...)
		return nil
	}
	targets := make([]target, len(numbers))
	for i, n := range numbers {
		targets[i] = target{id: strconv.Itoa(int(n)), clear: true}
	}
	return g.redis.clear(ctx, "clear tags", targets...)
}

// Cleared reports whether a known clear is newer than a value with this epoch and tags.
func (g *Group) Cleared(epoch uint64, tags []uint32) bool { return g.epoch.ends(epoch, tags) }

// Expired reports whether a known ExpireTags is newer than a value with this epoch and tags.
func (g *Group) Expired(epoch uint64, tags []uint32) bool {
	return g.epoch.risenSince(epoch, tags, expiring)
}

// ClearedSince reports whether any known clear is later than epoch. For Keyspace.ReplicaLag after a
// clear that is true even for the epoch of [Group.LoadEpoch].
func (g *Group) ClearedSince(epoch uint64) bool { return epoch < g.epoch.latest.Load() }

// TagClears returns a counter of how often this process has learned of clears and expiries of tags. While
// it stays the same, the results of Cleared and Expired change only by a Clear.
func (g *Group) TagClears() *atomic.Uint64 { return &g.epoch.tagClears }

// LoadEpoch returns the epoch for a value whose load begins now. For Keyspace.ReplicaLag after
// a clear it returns the epoch from before the clear, so that the value does not count.
func (g *Group) LoadEpoch() uint64 { return g.epoch.ofLoad() }

// SetEpoch returns the epoch for a value that a writer says the source has now: it comes from no
// replica, so it counts although a clear is younger than Keyspace.ReplicaLag.
func (g *Group) SetEpoch() uint64 { return g.epoch.latest.Load() }

// LearnClears waits until this process knows all clears from before the call, even if their messages have
// not arrived yet. It costs a round trip, which concurrent callers share.
func (g *Group) LearnClears(ctx context.Context) error { return g.epoch.afresh(ctx) }

// Hold expires the values of ids as Expire does, or drops them if life is 0, and prevents the
// publication of new ones until end is called. end lifts the hold: it drops the values if invalidate
// is true, and expires them again otherwise. If the process dies in between, the hold ends after
// Options.Hold. If Redis does not confirm the end, the error of end is ErrUnavailable, and the ids are
// invalidated in the background.
func (g *Group) Hold(ctx context.Context, life time.Duration, ids ...string) (end func(ctx context.Context, invalidate bool) error, err error) {
	token, sent := newToken(), false
	err = g.leases.invalidate(ctx, ids, holds{place: token, life: g.o.Hold, soft: life, sent: &sent})
	switch {
	case !sent: // during an outage: nothing to lift, or each Write would add a lift to the pending ones
		token = ""
	case !answered(err): // the hold may arrive after the lift, also once more, see invalidate.lua
		token = "?" + token
	}
	return func(ctx context.Context, invalidate bool) error {
		h := holds{lift: token, soft: life}
		if invalidate {
			h.soft = 0
		}
		return g.leases.invalidate(ctx, ids, h)
	}, err
}

// holds says which holds an invalidation places and lifts, and whether values stay.
type holds struct {
	place string        // the hold to place
	life  time.Duration // of the hold to place
	sent  *bool         // set to true if the hold may have been placed; may be nil
	lift  string        // the hold to lift, see invalidate.lua
	soft  time.Duration // values are marked and stay for at most this long; 0: they are dropped
}

// withReplicaLag adds to h the hold of Keyspace.ReplicaLag that follows an invalidation.
func (s *store) withReplicaLag(h holds) holds {
	if s.space.ReplicaLag > 0 {
		h.place, h.life = newToken(), s.space.ReplicaLag
	}
	return h
}

// set publishes values regardless of other leases, and ends those. It takes two steps: a
// command that its caller left behind at a timeout may reach the server at any time, and
// must not publish its value over a later invalidation then. A value that Redis did not
// confirm is invalidated as soon as possible. It is no error if another writer has
// overtaken the Set, since that write was later. Nor is a key of another type: readers load
// the value then.
func (s *store) set(ctx context.Context, values []Publication) error {
	var failed error
	var ids []string // of the values that failed
	for part := range slices.Chunk(values, maxTargets) {
		targets, began := make([]target, len(part)), s.pending.now()
		for i, v := range part {
			targets[i].id = v.Lease.ID
		}
		outcomes, errs := s.claimAndSet(ctx, part)
		s.pending.settle(targets, began, errs)
		s.pending.add(targets, errs)
		for i, t := range targets {
			switch {
			case errs[i] != nil:
				ids, failed = append(ids, t.id), worse(failed, errs[i])
			case outcomes[i] == notTaken:
				ids, failed = append(ids, t.id), errors.New("out of memory")
			}
		}
	}
	return s.unavailable(ctx, "set", ids, failed)
}

func (s *store) claimAndSet(ctx context.Context, values []Publication) (outcomes []int64, errs []error) {
	asks := make([]Ask, len(values))
	for i, v := range values {
		asks[i].ID = v.Lease.ID
	}
	grants, errs := s.take(ctx, drop, asks)
	outcomes = make([]int64, len(values))
	var claimed []Publication
	var at []int
	for i, v := range values {
		if errs[i] == nil {
			v.Lease = grants[i].Lease
			claimed, at = append(claimed, v), append(at, i)
		}
	}
	if len(claimed) == 0 {
		return outcomes, errs
	}
	failpoint.At("claimed")
	set, setErrs := s.setClaimed(ctx, claimed)
	for n, i := range at {
		outcomes[i], errs[i] = set[n], setErrs[n]
	}
	return outcomes, errs
}

// setClaimed publishes values whose leases have been taken, and notifies all processes. It
// returns the reply of commit.lua, or an error, for each value.
func (s *store) setClaimed(ctx context.Context, values []Publication) (outcomes []int64, errs []error) {
	calls := make([]redisconn.Call, len(values))
	for i, v := range values {
		calls[i] = s.publication(v, invalidated)
	}
	replies, errs := s.evalConfirmed(ctx, commitScript, s.replicas(), calls...)
	outcomes = make([]int64, len(values))
	for i := range values {
		if errs[i] == nil {
			outcomes[i], errs[i] = replies[i].Int()
		}
	}
	return outcomes, errs
}

func (s *store) claim(ctx context.Context, ids []string) []Grant {
	asks := make([]Ask, len(ids))
	for i, id := range ids {
		asks[i].ID = id
	}
	grants, errs := s.take(ctx, keep, asks)
	for i := range grants {
		if grants[i].Verdict == Unknown && errs[i] == nil { // the key is of another type
			grants[i].Verdict = Held
		}
	}
	s.giveUpUnknown(ctx, grants, errs)
	return grants
}

func (s *store) replace(ctx context.Context, values []Publication) []Outcome {
	outcomes := make([]Outcome, len(values))
	set, errs := s.setClaimed(ctx, values)
	for i, err := range errs {
		outcomes[i] = Outcome{Published: err == nil && set[i] == published, Err: err}
	}
	s.giveUpFailed(ctx, errs, func(i int) Lease { return values[i].Lease })
	return outcomes
}

// evalConfirmed runs a script, and waits for the replicas of Options.WaitReplicas to confirm it. If
// unasked is not nil, it does not wait, and unasked is the error of each call. It returns an error for
// each call that is not confirmed, and a reply for each that ran, even if too few replicas confirmed it.
func (s *store) evalConfirmed(ctx context.Context, script *redisconn.Script, unasked error, calls ...redisconn.Call) (replies []redisconn.Reply, errs []error) {
	all := unasked
	if s.waitFor > 0 && unasked == nil {
		replies, all = s.evalAndWait(ctx, script, calls)
	} else {
		replies = s.conn.Eval(ctx, script, calls, nil)
	}
	errs = slices.Repeat([]error{all}, len(calls))
	for i, reply := range replies {
		if err := reply.Err(); err != nil {
			errs[i] = err
		}
	}
	return replies, errs
}

// evalAndWait runs a script and waits for replicas to confirm it. They have a RedisTimeout of their own.
func (s *store) evalAndWait(ctx context.Context, script *redisconn.Script, calls []redisconn.Call) ([]redisconn.Reply, error) {
	if s.conn.Outage().Down() {
		return nil, redisconn.ErrOutage
	}
	return redisconn.Do(ctx, s.conn, 2*s.space.RedisTimeout, func(ctx context.Context) ([]redisconn.Reply, error) {
		replies, confirmed, err := s.conn.EvalAndWait(ctx, script, calls, redisconn.Confirm{Replicas: s.waitFor, Within: s.space.RedisTimeout})
		if err == nil && confirmed < s.waitFor {
			err = redisconn.TooFew(confirmed, s.waitFor)
		}
		return replies, err
	}, nil)
}

// errUnasked reports that replicas are to confirm a change later, see pendingRedis.
var errUnasked = fmt.Errorf("%w: none was waited for", redisconn.ErrTooFewReplicas)

// replicas returns why writers must not wait for replicas, nil if they may. While replicas are
// known to be missing, only pending.round waits for them, now and then.
func (s *store) replicas() error {
	if missing := s.pending.missing.Load(); missing != nil {
		return *missing
	}
	return nil
}

// maxTargets is how many ids are invalidated in one round trip.
const maxTargets = 128

// invalidate drops or marks the values of ids. Ids that Redis does not confirm are tried
// again in the background, except for the invalidation with which a hold begins: the one
// at its end is enough.
func (s *store) invalidate(ctx context.Context, ids []string, h holds) error {
	begins := h.place != ""
	if !begins {
		h = s.withReplicaLag(h)
	}
	targets := make([]target, len(ids))
	for i, id := range ids {
		targets[i] = target{id: id, lift: h.lift}
	}
	var failed error
	ids = nil // from here on the unconfirmed ids
	// All chunks are tried, even if one fails: other nodes of a cluster may reply.
	for chunk := range slices.Chunk(targets, maxTargets) {
		began := s.pending.now()
		errs := s.drop(ctx, chunk, h, s.replicas())
		if h.soft == 0 { // marking a value does not do a pending Invalidate, whose value stays in Redis
			s.pending.settle(chunk, began, errs)
		}
		if !begins {
			s.pending.add(chunk, errs)
		}
		for i, err := range errs {
			if h.sent != nil && !errors.Is(err, redisconn.ErrOutage) {
				*h.sent = true
			}
			if err != nil {
				ids, failed = append(ids, chunk[i].id), worse(failed, err)
			}
		}
	}
	return s.unavailable(ctx, "invalidate", ids, failed)
}

// drop invalidates targets in one round trip per node, lifts their holds, and places the hold
// of h. It returns an error for each that is not confirmed. For unasked see evalConfirmed.
func (s *store) drop(ctx context.Context, targets []target, h holds, unasked error) []error {
	calls := make([]redisconn.Call, len(targets))
	for i, t := range targets {
		calls[i] = redisconn.Call{
			Keys: s.allKeys(t.id),
			Args: []any{h.place, h.life.Milliseconds(), t.lift, s.channel, s.message(invalidated, t.id), inRedis(h.soft), s.maxLate().Milliseconds()},
		}
	}
	replies, errs := s.evalConfirmed(ctx, invalidateScript, unasked, calls...)
	for i, reply := range replies {
		foreign, _ := reply.Int() // an error is in errs too
		s.foundForeign(targets[i].id, foreign)
	}
	return errs
}

// maxLate returns for how long invalidate.lua notes a lift whose hold has not arrived: Options.Lease, or
// as long as the trip of the hold may go on, if that is longer.
func (s *store) maxLate() time.Duration { return max(s.lease, s.conn.LongestTrip()) }

// worse returns err, the later error, unless err only reports missing replicas and was does not.
func worse(was, err error) error {
	if was != nil && tooFew(err) {
		return was
	}
	return err
}

// ErrTooFewReplicas reports that Redis has made a change, but that too few replicas have confirmed it.
var ErrTooFewReplicas = redisconn.ErrTooFewReplicas

// unavailable returns the error of a change that Redis did not confirm, nil if err is nil. It
// has the text of go-redis' errors but does not wrap them, so that they stay inside the package.
func (s *store) unavailable(ctx context.Context, what string, ids []string, err error) error {
	if err == nil {
		return nil
	}
	if len(ids) > 0 {
		what += fmt.Sprintf(" %.100q", ids[0])
	}
	if len(ids) > 1 {
		what += fmt.Sprintf(" and %d more", len(ids)-1)
	}
	what += fmt.Sprintf(" of %q", s.space.Name)
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, wait.Ended(ctx))
	}
	if tooFew(err) {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
	}
	return fmt.Errorf("%w: %s: %s", ErrUnavailable, what, s.explained(err))
}

// explained returns the text of err. During an outage it adds the last error of Redis: "does not
// reply" is not the whole truth of a server that replies WRONGPASS.
func (s *store) explained(err error) string {
	text := strings.TrimPrefix(err.Error(), logPrefix)
	if last := s.survived.Load(); last != nil && errors.Is(err, redisconn.ErrOutage) {
		text += ": " + strings.TrimPrefix((*last).Error(), logPrefix)
	}
	return text
}
