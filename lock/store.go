package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

const (
	patience = 5 * time.Second        // for one script, whatever the client's own options are
	prompt   = 100 * time.Millisecond // for one on the caller's own goroutine
	limit    = 1 << 16                // scripts without an answer
)

// A store is one Redis. Each method is one round trip, two after the server has
// lost its scripts.
type store struct {
	rdb     redis.UniversalClient
	direct  *redis.Client // rdb's connections with prompt as their timeout; nil if it has none
	run     *redisconn.Runner
	process any // a string
}

func newStore(rdb redis.UniversalClient, process string) *store {
	s := &store{rdb: rdb, run: redisconn.NewRunner(patience, limit), process: process}
	if client, ok := rdb.(*redis.Client); ok {
		s.direct = client.WithTimeout(prompt)
	}
	return s
}

func (s *store) acquire(ctx context.Context, t *target, b bid, late func(reply, error)) (reply, error) {
	args := make([]any, 0, 9+len(b.owners))
	args = append(args, t.mode.arg(), t.places, keys.LockChannels, s.process, b.entry, b.turn, flag(b.more),
		b.lease.Milliseconds(), b.label)
	for _, owner := range b.owners {
		args = append(args, owner)
	}
	return s.eval(ctx, acquireScript, t.keys, args, b.replicas, b.timeout, late)
}

// release gives a lock back. fence 0 and abandon refuse the owner a lock it may
// still get by a command that is under way.
func (s *store) release(ctx context.Context, t *target, owner string, fence, ends int64, abandon bool, keep time.Duration) (string, error) {
	args := []any{t.mode.arg(), t.places, keys.LockChannels, owner, fence, ends, flag(abandon), keep.Milliseconds()}
	r, err := s.eval(ctx, releaseScript, t.keys, args, 0, 0, nil)
	return r.what, err
}

func (s *store) leave(ctx context.Context, t *target, entry string) error {
	_, err := s.eval(ctx, leaveScript, t.keys, []any{entry, t.places, keys.LockChannels}, 0, 0, nil)
	return err
}

func (s *store) inspect(ctx context.Context, t *target) (Info, error) {
	values, err := redisconn.Run(ctx, s.run, func(ctx context.Context) ([]any, error) {
		return inspectScript.Run(ctx, s.rdb, t.keys).Slice()
	}, nil)
	if err != nil {
		return Info{}, refine(ctx, err)
	}
	if len(values) != 6 {
		return Info{}, unavailable(fmt.Errorf("unexpected answer %.100q", values))
	}
	label, _ := values[4].(string)
	return Info{
		Held: number(values[0]) == 1, Fence: number(values[1]), Remaining: millis(number(values[2])),
		Waiting: int(number(values[3])), Label: label,
	}, nil
}

func (s *store) info(ctx context.Context, section string) []map[string]string {
	text, err := redisconn.Run(ctx, s.run, func(ctx context.Context) (string, error) {
		return s.rdb.Info(ctx, section).Result()
	}, nil)
	if err != nil {
		return nil
	}
	return []map[string]string{fields(text)}
}

// renewArgs are the arguments of the renewal of a lease, and of what is like it.
func renewArgs(h *hold, lease time.Duration, raise int64, heir string) []any {
	return []any{h.mode.arg(), h.owner, h.fence, lease.Milliseconds(), raise, heir}
}

func (s *store) renew(ctx context.Context, h *hold, lease time.Duration, raise int64, heir string) (reply, error) {
	replicas := h.replicas
	if lease == 0 && raise == 0 { // it only looks, and there is nothing to confirm
		replicas = 0
	}
	return s.eval(ctx, renewScript, h.keys, renewArgs(h, lease, raise, heir), replicas, h.replicaTimeout, nil)
}

// renewMany renews in one pipeline for each node.
func (s *store) renewMany(ctx context.Context, due []*hold, terms []time.Duration) []outcome {
	sent := time.Now()
	cmds, err := redisconn.Run(ctx, s.run, func(ctx context.Context) ([]*redis.Cmd, error) {
		return s.pipeline(ctx, due, terms), nil
	}, nil)
	outcomes := make([]outcome, len(due))
	for i := range due {
		r, err := reply{sent: sent}, err
		var value any
		if err == nil {
			value, err = cmds[i].Result()
		}
		if err == nil {
			err = r.parse(value)
		}
		if err != nil {
			err = refine(ctx, err)
		}
		outcomes[i] = outcome{r, err}
	}
	return outcomes
}

func (s *store) pipeline(ctx context.Context, due []*hold, terms []time.Duration) []*redis.Cmd {
	cmds, missing := make([]*redis.Cmd, len(due)), false
	p := s.rdb.Pipeline()
	for i, h := range due {
		cmds[i] = renewScript.EvalSha(ctx, p, h.keys, renewArgs(h, terms[i], 0, "")...)
	}
	_, _ = p.Exec(ctx) // the commands have the errors
	p = s.rdb.Pipeline()
	for i, h := range due {
		if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
			cmds[i], missing = renewScript.Eval(ctx, p, h.keys, renewArgs(h, terms[i], 0, "")...), true
		}
	}
	if missing {
		_, _ = p.Exec(ctx)
	}
	return cmds
}

// eval runs a script. If the caller leaves before the answer comes, that goes to
// late.
func (s *store) eval(ctx context.Context, script *redis.Script, keys []string, args []any, replicas int,
	timeout time.Duration, late func(reply, error),
) (reply, error) {
	sent := time.Now()
	if replicas == 0 && s.prompt(ctx) {
		r := reply{sent: sent}
		value, err := s.evalHere(ctx, script, keys, args)
		if err == nil {
			err = r.parse(value)
		}
		if err == nil {
			return r, nil
		}
		if answered(err) {
			return r, refine(ctx, err)
		}
		// No answer. The script is one that can be repeated, so that a slow server
		// gets the time it needs, and the caller can leave.
	}
	r, err := redisconn.Run(ctx, s.run, func(ctx context.Context) (reply, error) {
		r := reply{sent: sent}
		var value any
		var err error
		if replicas > 0 {
			value, r.acked, err = s.evalAndWait(ctx, script, keys, args, replicas, timeout)
		} else {
			value, err = script.Run(ctx, s.rdb, keys, args...).Result()
		}
		if err != nil {
			return r, err
		}
		return r, r.parse(value)
	}, late)
	if err != nil {
		return r, refine(ctx, err)
	}
	return r, nil
}

// answered tells whether an error is Redis' own answer.
func answered(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// prompt tells whether evalHere comes back in time: the end of ctx by a
// cancellation may go unnoticed there, for as long as prompt.
func (s *store) prompt(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return s.direct != nil && ctx.Err() == nil && (!ok || time.Until(deadline) >= prompt)
}

// evalHere runs a script on the caller's own goroutine, which saves what two
// goroutines cost each other.
func (s *store) evalHere(ctx context.Context, script *redis.Script, keys []string, args []any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, prompt)
	defer cancel()
	return script.Run(ctx, s.direct, keys, args...).Result()
}

// evalAndWait runs a script and waits for replicas in one round trip. Both
// commands have to go over one connection, to the node that has the keys.
func (s *store) evalAndWait(ctx context.Context, script *redis.Script, keys []string, args []any, replicas int,
	timeout time.Duration,
) (any, int, error) {
	node := redis.Cmdable(s.rdb)
	if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
		master, err := cluster.MasterForKey(ctx, keys[0])
		if err != nil {
			return nil, 0, err
		}
		node = master
	}
	try := func(run func(p redis.Pipeliner) *redis.Cmd) (any, int, error) {
		p := node.Pipeline()
		script, wait := run(p), p.Do(ctx, "WAIT", replicas, timeout.Milliseconds())
		_, _ = p.Exec(ctx)
		if err := script.Err(); err != nil {
			return nil, 0, err
		}
		acked, _ := wait.Int()
		return script.Val(), acked, nil
	}
	value, acked, err := try(func(p redis.Pipeliner) *redis.Cmd { return script.EvalSha(ctx, p, keys, args...) })
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		value, acked, err = try(func(p redis.Pipeliner) *redis.Cmd { return script.Eval(ctx, p, keys, args...) })
	}
	return value, acked, err
}

// refine turns an error of Redis, or of the wait for it, into one of ours.
func refine(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case strings.Contains(err.Error(), "WRONGTYPE"):
		return ErrConflict
	}
	return unavailable(err)
}

// final reports whether to try again makes no sense.
func final(err error) bool { return errors.Is(err, ErrConflict) || !errors.Is(err, ErrUnavailable) }
