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

// Set publishes values that the source already holds, in two round trips per node for every
// 128 of them, and ends every lease of their ids: no rebuild that is under way can overwrite
// them. With empty Data, or a TTL under a millisecond, it publishes that there is no value. It
// returns ErrUnavailable if Redis did not confirm all of them; those that it did not are
// invalidated as soon as that can be done.
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

// Claim takes the leases of ids from whoever has them, in one round trip per node, and
// leaves their values to answer meanwhile: whoever claims loads, and then calls Replace or
// Abort. A load under way elsewhere cannot be published any more. An id that a writer
// holds is Held, and nothing is done to it; Unknown: Redis gave no answer.
func (g *Group) Claim(ctx context.Context, ids ...string) []Grant { return g.leases.claim(ctx, ids) }

// Replace publishes values under leases of Claim, in place of those that stand there, in
// one round trip per node, and tells all processes. A value is not published, without an
// error, if somebody has claimed, set or invalidated the id since, or if Redis has no
// memory for it.
func (g *Group) Replace(ctx context.Context, values ...Publication) []Outcome {
	return g.leases.replace(ctx, values)
}

// Storable reports whether Redis may hold data for ttl.
func (g *Group) Storable(data []byte, ttl time.Duration) bool {
	return ttl >= time.Millisecond && len(data) > 0 && len(data) <= g.space.MaxBytes
}

// Invalidate drops the values of ids and ends every lease of them, in all processes.
// When it returns nil, nobody who asks afterwards gets what was there before. It
// returns ErrUnavailable if Redis did not confirm all of them. Those it goes on to
// invalidate in the background until Redis does, and until then nobody who asks in
// this process gets what was there before. If only replicas are missing
// (Options.WaitReplicas), Redis answers; a failover at this time may bring the old
// value back until the next attempt: when the replicas are there, or a second or so after Redis
// has failed to answer.
func (g *Group) Invalidate(ctx context.Context, ids ...string) error {
	return g.leases.invalidate(ctx, ids, holds{})
}

// Expire is Invalidate that leaves values in Redis for life at the most, with a mark in the header
// of package cache. Values without that header it drops. What Redis does not confirm is
// invalidated in the background.
func (g *Group) Expire(ctx context.Context, life time.Duration, ids ...string) error {
	return g.leases.invalidate(ctx, ids, holds{soft: life})
}

// Clear ends what is known of every id, in all processes. It writes one key of Redis, and
// what it ends stays there until its TTL. That is for owners who put [Group.LoadEpoch] into
// their values and ask [Group.Cleared].
//
// When Clear returns nil, no value that this process reads afterwards counts, from
// wherever it comes, if its load began before. Other processes follow when the message
// arrives, or within a second of having noticed that messages do not. After ErrUnavailable Clear
// is tried again until Redis confirms it, and until then this process leaves Redis alone,
// unless somebody else's key stands where clears belong: then Clear does nothing until it is gone.
func (g *Group) Clear(ctx context.Context) error {
	if g.redis == nil {
		g.epoch.clearHere()
		return nil
	}
	return g.redis.clear(ctx, "clear", target{clear: true})
}

// ClearTags is Clear of what has one of tags, which are given by their digests. It
// writes one key, whatever it ends. By chance it ends what has one other tag in 65,536.
func (g *Group) ClearTags(ctx context.Context, tags ...uint32) error {
	return g.raiseTags(ctx, clearing, tags)
}

// ExpireTags is ClearTags after which a value that has one of tags still may answer if its load
// fails: ask [Group.Expired].
func (g *Group) ExpireTags(ctx context.Context, tags ...uint32) error {
	return g.raiseTags(ctx, expiring, tags)
}

// raiseTags raises the counters of tags, of a kind.
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

// Cleared reports whether a clear that this process knows ends a value that has this epoch
// and these tags.
func (g *Group) Cleared(epoch uint64, tags []uint32) bool { return g.epoch.ends(epoch, tags) }

// Expired reports whether an ExpireTags that this process knows has expired a value that has this epoch
// and these tags.
func (g *Group) Expired(epoch uint64, tags []uint32) bool {
	return g.epoch.risenSince(epoch, tags, expiring)
}

// ClearedSince reports whether a clear of anything is known that is later than epoch: for
// Keyspace.ReplicaLag after one that is so of [Group.LoadEpoch].
func (g *Group) ClearedSince(epoch uint64) bool { return epoch < g.epoch.latest.Load() }

// TagClears counts how often this process has learned of clears and expiries of tags: while it stays,
// Cleared and Expired say the same of a value unless there is a Clear.
func (g *Group) TagClears() *atomic.Uint64 { return &g.epoch.tagClears }

// LoadEpoch returns the epoch that a value carries whose load begins now. For
// Keyspace.ReplicaLag after a clear that is one that does not count.
func (g *Group) LoadEpoch() uint64 { return g.epoch.ofLoad() }

// LearnClears waits until this process knows all clears from before the call, also those of which no
// message has arrived yet. It costs a round trip, which callers at one moment share.
func (g *Group) LearnClears(ctx context.Context) error { return g.epoch.afresh(ctx) }

// Hold expires the values of ids as Expire does, with the same life, or drops them if that is 0, and
// keeps anybody from publishing new ones until end is called. End opens the ids: it drops
// their values if they are to be invalidated, and else expires them again. A process that dies in
// between leaves a hold that ends after Options.Hold. If Redis does not confirm the end, the error is
// ErrUnavailable, and the ids are invalidated in the background.
func (g *Group) Hold(ctx context.Context, life time.Duration, ids ...string) (end func(ctx context.Context, invalidate bool) error, err error) {
	token, sent := newToken(), false
	err = g.leases.invalidate(ctx, ids, holds{place: token, life: g.o.Hold, soft: life, sent: &sent})
	if !sent { // as during an outage, when each Write would leave another one to lift
		token = ""
	}
	return func(ctx context.Context, invalidate bool) error {
		h := holds{lift: token, soft: life}
		if invalidate {
			h.soft = 0
		}
		return g.leases.invalidate(ctx, ids, h)
	}, err
}

// holds says what an invalidation does about writers.
type holds struct {
	place string        // the hold to place
	life  time.Duration // of the hold to place
	sent  *bool         // set if the hold may have been placed; may be nil
	lift  string        // the hold to lift
	soft  time.Duration // values are marked, and stay for so long at the most; 0: they are dropped
}

// withReplicaLag adds to h the hold that follows an invalidation.
func (s *store) withReplicaLag(h holds) holds {
	if s.space.ReplicaLag > 0 {
		h.place, h.life = newToken(), s.space.ReplicaLag
	}
	return h
}

// set publishes whatever leases there are, and ends them. It takes two steps: a command
// that its caller left behind at a timeout may reach the server at any time, and one
// that does must not publish its value over a later invalidation. A value that Redis
// did not confirm is dropped, as soon as that can be done. That a Set has been overtaken is no
// error: the other writer came a moment later. Nor is a key of another type that stands
// there: readers ask the source.
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

// setClaimed publishes values whose leases have been taken, and tells everybody. The
// outcomes are those of commit.lua, where there is no error.
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
		if grants[i].Verdict == Unknown && errs[i] == nil { // a key of another type
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

// evalConfirmed runs a script, and has replicas confirm it if Options.WaitReplicas asks for that,
// unless the error unasked says why not. It returns an error for each call that is not confirmed; the
// others have their replies, also those that lack nothing but replicas.
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

// evalAndWait runs a script, and has replicas confirm it. Their answer has a time of its own.
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

// errUnasked is that of what replicas are to confirm later, see pendingRedis.
var errUnasked = fmt.Errorf("%w: none was waited for", redisconn.ErrTooFewReplicas)

// replicas returns why replicas are not to be asked, nil if they are. While they are known to be
// missing nobody waits for them but a look at them now and then.
func (s *store) replicas() error {
	if missing := s.pending.missing.Load(); missing != nil {
		return *missing
	}
	return nil
}

// maxTargets is how many ids are invalidated in one round trip.
const maxTargets = 128

// invalidate drops the values of ids. What is not confirmed is tried again in the
// background, except for the invalidation with which a hold begins: the one at its
// end will do.
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
	ids = nil // from here on those that are not confirmed
	// Each chunk is tried, though one fails: other nodes of a cluster may answer.
	for chunk := range slices.Chunk(targets, maxTargets) {
		began := s.pending.now()
		errs := s.drop(ctx, chunk, h, s.replicas())
		if h.soft == 0 { // else an Invalidate that is pending is not done: its value is still there, marked
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

// drop invalidates targets in one round trip per node, lifts their holds, places that
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

// maxLate is how long after its lift a hold may arrive: a trip lasts RedisTimeout, and twice that if it waits
// for a connection. While the life of a lease is longer, the note of a lift lasts no longer than a lease does.
func (s *store) maxLate() time.Duration { return max(s.lease, 2*s.space.RedisTimeout) }

// worse is the later of two errors, unless that only lacks replicas.
func worse(was, err error) error {
	if was != nil && tooFew(err) {
		return was
	}
	return err
}

// ErrTooFewReplicas is matched by the error of a change that Redis has made, and too few replicas have
// confirmed.
var ErrTooFewReplicas = redisconn.ErrTooFewReplicas

// unavailable makes the error of a change that Redis did not confirm. It keeps go-redis'
// errors inside the package; the text stays.
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

// explained is the text of an error. During an outage it ends with what was last heard of
// Redis: that it "does not answer" is not the whole truth of one that answers WRONGPASS.
func (s *store) explained(err error) string {
	text := strings.TrimPrefix(err.Error(), logPrefix)
	if last := s.survived.Load(); last != nil && errors.Is(err, redisconn.ErrOutage) {
		text += ": " + strings.TrimPrefix((*last).Error(), logPrefix)
	}
	return text
}
