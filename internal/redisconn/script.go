package redisconn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrTooFewReplicas reports that scripts ran, and that fewer replicas than asked
// for have confirmed it.
var ErrTooFewReplicas = errors.New("too few replicas")

// A Call is the keys and arguments of one run of a script.
type Call struct {
	Keys []string
	Args []any
}

// Eval runs script for each of calls and returns their replies, each with its own
// error. That takes one round trip per node, and a second one for the calls that met a
// server without the script. A lone call is a plain command.
func Eval(ctx context.Context, rdb redis.UniversalClient, script *redis.Script, calls ...Call) []*redis.Cmd {
	if len(calls) == 1 {
		return []*redis.Cmd{script.Run(ctx, rdb, calls[0].Keys, calls[0].Args...)}
	}
	replies := make([]*redis.Cmd, len(calls))
	unknown := make([]int, len(calls)) // the calls to make, and then those that met a server without the script
	for i := range unknown {
		unknown[i] = i
	}
	for _, eval := range []evaluate{script.EvalSha, script.Eval} {
		p := rdb.Pipeline()
		for _, i := range unknown {
			replies[i] = eval(ctx, p, calls[i].Keys, calls[i].Args...)
		}
		_, _ = p.Exec(ctx) // the replies have the errors
		unknown = withoutScript(replies)
		if len(unknown) == 0 {
			break
		}
	}
	return replies
}

type evaluate func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// withoutScript returns the indices of the replies of servers that do not know the
// script. After such a reply Script.Run sends the text by itself; a pipeline does not.
func withoutScript(replies []*redis.Cmd) (indices []int) {
	for i, reply := range replies {
		if redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
			indices = append(indices, i)
		}
	}
	return indices
}

// EvalAndWait is Eval for calls whose keys are all on one node, followed in the same
// pipeline by a WAIT for replicas of at most timeout. It returns how many replicas have
// confirmed. err is that of finding the node or of the WAIT; the replies have their own.
func EvalAndWait(ctx context.Context, rdb redis.UniversalClient, script *redis.Script, calls []Call,
	replicas int, timeout time.Duration,
) (replies []*redis.Cmd, confirmed int, err error) {
	node := redis.Cmdable(rdb)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		if node, err = cluster.MasterForKey(ctx, calls[0].Keys[0]); err != nil {
			return nil, 0, err
		}
	}
	for _, eval := range []evaluate{script.EvalSha, script.Eval} {
		p := node.Pipeline()
		replies = replies[:0]
		for _, c := range calls {
			replies = append(replies, eval(ctx, p, c.Keys, c.Args...))
		}
		wait := p.Do(ctx, "WAIT", replicas, max(timeout.Milliseconds(), 1)) // 0 would wait without limit
		_, _ = p.Exec(ctx)                                                  // the replies have the errors
		if len(withoutScript(replies)) == 0 {
			confirmed, err = wait.Int()
			return replies, confirmed, err
		}
	}
	return replies, 0, nil
}

// FirstError returns the first error among replies.
func FirstError(replies []*redis.Cmd) error {
	for _, reply := range replies {
		if err := reply.Err(); err != nil {
			return err
		}
	}
	return nil
}

// TooFew is ErrTooFewReplicas with the figures.
func TooFew(confirmed, wanted int) error {
	return fmt.Errorf("%w: %d of %d acknowledged", ErrTooFewReplicas, confirmed, wanted)
}
