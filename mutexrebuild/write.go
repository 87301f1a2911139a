package mutexrebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/bounded"
	"github.com/levee-go/levee/internal/failpoint"
)

// batch is how many keys are invalidated in one round trip.
const batch = 128

// noMemory is what the script of a Set gives when there is none. That it has been
// overtaken is no error: the other writer came a moment later.
const noMemory = 0

// set publishes data whatever lease there is, and voids it. It takes two steps:
// what is left behind at a timeout may reach the server at any time, and a value
// that does must not be published over a later invalidation. One that Redis did not
// confirm is dropped, as soon as that can be done.
func (s *store) set(ctx context.Context, id string, data []byte, ttl time.Duration) error {
	targets, began := []target{{id: id}}, s.queue.now()
	outcome, err := s.claimAndSet(ctx, id, data, ttl)
	if err != nil {
		s.queue.add(targets, err)
		return unavailable(ctx, "set", err)
	}
	s.queue.settle(targets, began, nil)
	if outcome == noMemory {
		return unavailable(ctx, "set", errors.New("out of memory"))
	}
	return nil
}

func (s *store) claimAndSet(ctx context.Context, id string, data []byte, ttl time.Duration) (outcome int, err error) {
	token := newToken()
	_, err = confirm(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, claimScript.Run(ctx, s.rdb, s.pair(id), token, s.lease.Milliseconds()).Err()
	})
	if err != nil {
		return 0, err
	}
	failpoint.At("claimed")
	return confirm(ctx, s, func(ctx context.Context) (int, error) {
		replies, err := s.eval(ctx, setScript, []call{{s.pair(id),
			[]any{token, data, ttl.Milliseconds(), s.channel, s.message(invalidated, id)}}})
		if err != nil {
			return 0, err
		}
		return replies[0].(*redis.Cmd).Int()
	})
}

// holds says what an invalidation does about writers.
type holds struct {
	place string        // the hold to place
	life  time.Duration // of the hold to place
	lift  string        // the hold to lift
}

// lagging adds to h the hold that follows an invalidation.
func (s *store) lagging(h holds) holds {
	if s.lag > 0 {
		h.place, h.life = newToken(), s.lag
	}
	return h
}

// invalidate drops the values of ids, in as few round trips as the nodes they
// are on allow. What is not confirmed is tried again, but for the invalidation
// with which a hold begins: the one at its end will do.
func (s *store) invalidate(ctx context.Context, ids []string, h holds) error {
	begins := h.place != ""
	if !begins {
		h = s.lagging(h)
	}
	targets := make([]target, len(ids))
	for i, id := range ids {
		targets[i] = target{id, h.lift}
	}
	var missed error
	for len(targets) > 0 {
		chunk := targets[:min(batch, len(targets))]
		began := s.queue.now()
		err := s.drop(ctx, chunk, h)
		switch {
		case err == nil:
			s.queue.settle(chunk, began, nil)
		case errors.Is(err, errTooFew):
			missed = err
			s.queue.settle(chunk, began, err)
		default:
			missed, chunk = err, targets // what comes later would fare no better
		}
		if err != nil && !begins {
			s.queue.add(chunk, err)
		}
		targets = targets[len(chunk):]
	}
	return unavailable(ctx, "invalidate", missed)
}

// drop invalidates targets in one round trip. Their holds are lifted; that of h
// is placed.
func (s *store) drop(ctx context.Context, targets []target, h holds) error {
	_, err := confirm(ctx, s, func(ctx context.Context) ([]redis.Cmder, error) {
		if failpoint.PlainCommit {
			return nil, s.rdb.Del(ctx, s.value(targets[0].id)).Err()
		}
		calls := make([]call, len(targets))
		for i, t := range targets {
			calls[i] = call{s.pair(t.id),
				[]any{h.place, h.life.Milliseconds(), t.lift, s.channel, s.message(invalidated, t.id)}}
		}
		return s.eval(ctx, invalidateScript, calls)
	})
	return err
}

// confirm is ask for an operation that replicas may have to acknowledge.
func confirm[R any](ctx context.Context, s *store, op func(context.Context) (R, error)) (R, error) {
	if s.gate.shut() {
		var none R
		return none, errShut
	}
	return bounded.Do(ctx, s.writes, op, nil)
}

// A call is the keys and arguments of one run of a script.
type call struct {
	keys []string
	args []any
}

// eval runs script for each of calls and has the replicas acknowledge it, all in
// one round trip.
func (s *store) eval(ctx context.Context, script *redis.Script, calls []call) ([]redis.Cmder, error) {
	if len(calls) == 1 && s.waitFor == 0 {
		reply := script.Run(ctx, s.rdb, calls[0].keys, calls[0].args...)
		return []redis.Cmder{reply}, reply.Err()
	}
	replies, err := s.pipeline(ctx, script.EvalSha, calls)
	if anyNoScript(replies) { // a pipeline has no fallback of its own for a server that lost its scripts
		replies, err = s.pipeline(ctx, script.Eval, calls)
	}
	if err != nil || s.waitFor == 0 {
		return replies, err
	}
	acknowledged, err := replies[len(calls)].(*redis.Cmd).Int()
	if err == nil && acknowledged < s.waitFor {
		err = fmt.Errorf("%w: %d of %d acknowledged", errTooFew, acknowledged, s.waitFor)
	}
	return replies, err
}

type evaluate func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func (s *store) pipeline(ctx context.Context, eval evaluate, calls []call) ([]redis.Cmder, error) {
	return s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, c := range calls {
			eval(ctx, p, c.keys, c.args...)
		}
		if s.waitFor > 0 {
			p.Do(ctx, "wait", s.waitFor, max(s.timeout.Milliseconds(), 1)) // 0 would be for ever
		}
		return nil
	})
}

func anyNoScript(replies []redis.Cmder) bool {
	return slices.ContainsFunc(replies, func(reply redis.Cmder) bool {
		return redis.HasErrorPrefix(reply.Err(), "NOSCRIPT")
	})
}

// unavailable keeps go-redis' errors inside the package; the text stays.
func unavailable(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, ended(ctx))
	}
	return fmt.Errorf("%w: %s: %v", ErrUnavailable, what, err)
}
