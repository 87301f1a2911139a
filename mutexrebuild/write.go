package mutexrebuild

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Set publishes data that the source already holds, and ends every lease of id: no
// rebuild that is under way can overwrite it. With empty data, or a ttl under a
// millisecond, it publishes that there is no value. It returns ErrUnavailable if
// Redis did not confirm; then id is invalidated as soon as that can be done.
func (g *Group) Set(ctx context.Context, id string, data []byte, ttl time.Duration) error {
	defer g.flights.Forget(id) // at the end: an error from before it must not be held
	if !g.Storable(data, ttl) {
		return g.leases.invalidate(ctx, []string{id}, holds{})
	}
	return g.leases.set(ctx, id, Publication{Data: data, TTL: ttl})
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
// value back for the second or so until the next attempt.
func (g *Group) Invalidate(ctx context.Context, ids ...string) error {
	return g.invalidate(ctx, ids, holds{})
}

// Hold drops the values of ids and keeps anybody from publishing new ones until
// the returned function is called, which invalidates them again. A process that
// dies in between leaves a hold that ends after Options.Hold. If Redis does not
// confirm the end, the error is ErrUnavailable and the end is tried again as that of
// Invalidate is.
func (g *Group) Hold(ctx context.Context, ids ...string) (end func(context.Context) error, err error) {
	token := newToken()
	err = g.invalidate(ctx, ids, holds{place: token, life: g.o.Hold})
	return func(ctx context.Context) error { return g.invalidate(ctx, ids, holds{lift: token}) }, err
}

func (g *Group) invalidate(ctx context.Context, ids []string, h holds) error {
	err := g.leases.invalidate(ctx, ids, h)
	for _, id := range ids {
		g.flights.Forget(id)
	}
	return err
}

// holds says what an invalidation does about writers.
type holds struct {
	place string        // the hold to place
	life  time.Duration // of the hold to place
	lift  string        // the hold to lift
}

// withReplicaLag adds to h the hold that follows an invalidation.
func (s *store) withReplicaLag(h holds) holds {
	if s.space.ReplicaLag > 0 {
		h.place, h.life = newToken(), s.space.ReplicaLag
	}
	return h
}

// noMemory is what set.lua gives when the server has none. That the Set has been
// overtaken is no error: the other writer came a moment later.
const noMemory = 0

// set publishes whatever lease there is, and ends it. It takes two steps: a command
// that its caller left behind at a timeout may reach the server at any time, and one
// that does must not publish its value over a later invalidation. A value that Redis
// did not confirm is dropped, as soon as that can be done.
func (s *store) set(ctx context.Context, id string, p Publication) error {
	targets, began := []target{{id: id}}, s.pending.now()
	outcome, err := s.claimAndSet(ctx, id, p)
	if err != nil {
		s.pending.add(targets, err)
		return unavailable(ctx, "set", err)
	}
	s.pending.settle(targets, began, nil)
	if outcome == noMemory {
		return unavailable(ctx, "set", errors.New("out of memory"))
	}
	return nil
}

func (s *store) claimAndSet(ctx context.Context, id string, p Publication) (outcome int, err error) {
	token := newToken()
	_, err = redisconn.Do(ctx, s.writes, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, claimScript.Run(ctx, s.conn.Client, s.keys(id), token, s.lease.Milliseconds()).Err()
	}, nil)
	if err != nil {
		return 0, err
	}
	failpoint.At("claimed")
	return redisconn.Do(ctx, s.writes, func(ctx context.Context) (int, error) {
		replies, err := s.evalConfirmed(ctx, setScript, redisconn.Call{Keys: s.keys(id),
			Args: []any{token, p.Data, p.TTL.Milliseconds(), s.channel, s.message(invalidated, id)}})
		if err != nil {
			return 0, err
		}
		return replies[0].Int()
	}, nil)
}

// evalConfirmed runs a script, and has replicas confirm it if Options.WaitReplicas asks
// for that.
func (s *store) evalConfirmed(ctx context.Context, script *redis.Script, calls ...redisconn.Call) ([]*redis.Cmd, error) {
	if s.waitFor == 0 {
		replies := redisconn.Eval(ctx, s.conn.Client, script, calls...)
		return replies, redisconn.FirstError(replies)
	}
	replies, confirmed, err := redisconn.EvalAndWait(ctx, s.conn.Client, script, calls, s.waitFor, s.space.RedisTimeout)
	if first := redisconn.FirstError(replies); first != nil {
		return replies, first
	}
	if err == nil && confirmed < s.waitFor {
		err = redisconn.TooFew(confirmed, s.waitFor)
	}
	return replies, err
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
		targets[i] = target{id, h.lift}
	}
	var failed error
	for len(targets) > 0 {
		chunk := targets[:min(maxTargets, len(targets))]
		began := s.pending.now()
		err := s.drop(ctx, chunk, h)
		switch {
		case err == nil:
			s.pending.settle(chunk, began, nil)
		case errors.Is(err, redisconn.ErrTooFewReplicas):
			failed = err
			s.pending.settle(chunk, began, err)
		default:
			failed, chunk = err, targets // later chunks would fare no better
		}
		if err != nil && !begins {
			s.pending.add(chunk, err)
		}
		targets = targets[len(chunk):]
	}
	return unavailable(ctx, "invalidate", failed)
}

// drop invalidates targets in one round trip per node. It lifts their holds, and
// places that of h.
func (s *store) drop(ctx context.Context, targets []target, h holds) error {
	_, err := redisconn.Do(ctx, s.writes, func(ctx context.Context) ([]*redis.Cmd, error) {
		calls := make([]redisconn.Call, len(targets))
		for i, t := range targets {
			calls[i] = redisconn.Call{Keys: s.keys(t.id),
				Args: []any{h.place, h.life.Milliseconds(), t.lift, s.channel, s.message(invalidated, t.id)}}
		}
		return s.evalConfirmed(ctx, invalidateScript, calls...)
	}, nil)
	return err
}

// unavailable keeps go-redis' errors inside the package; the text stays.
func unavailable(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, wait.Ended(ctx))
	}
	return fmt.Errorf("%w: %s: %v", ErrUnavailable, what, err)
}
