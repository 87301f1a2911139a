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

// Eval runs script for each of calls and returns their replies, each with its own error:
// the reply's, or ErrOutage, ErrTimeout, ErrBusy or that of ctx. That takes one trip to
// each node, and a second one for the calls that met a server without the script, or a slot
// that moves. late is called for each call that may still run when Eval has returned, with
// its reply, unless it is nil.
func (c *Conn) Eval(ctx context.Context, script *redis.Script, calls []Call, late func(i int, reply *redis.Cmd)) []*redis.Cmd {
	if len(calls) == 1 {
		return []*redis.Cmd{c.eval(ctx, script, op{key: calls[0].Keys[0], ride: late != nil}, calls[0], func(reply *redis.Cmd) {
			if late != nil {
				late(0, reply)
			}
		})}
	}
	replies := make([]*redis.Cmd, len(calls))
	left := make([]int, len(calls)) // the calls to make, and then those to make again
	for i := range left {
		left[i] = i
	}
	for _, eval := range []evaluate{script.EvalSha, script.Eval} {
		asked, ops := left, make([]op, len(left)) // late may be called after left has changed
		for n, i := range asked {
			replies[i] = eval(ctx, unsent{}, calls[i].Keys, calls[i].Args...)
			ops[n] = op{key: calls[i].Keys[0], cmd: replies[i], ride: late != nil}
		}
		c.doMany(ctx, ops, func(n int) {
			if late != nil {
				late(asked[n], ops[n].cmd.(*redis.Cmd))
			}
		}, func(n int, err error) {
			replies[asked[n]] = failed(ctx, err)
		})
		if left = allUnrun(replies); len(left) == 0 {
			break
		}
	}
	return replies
}

// EvalOne is Eval for one call by a caller who will ask again if it times out: late is
// not called then.
func (c *Conn) EvalOne(ctx context.Context, script *redis.Script, call Call, late func(reply *redis.Cmd)) *redis.Cmd {
	return c.eval(ctx, script, op{key: call.Keys[0]}, call, late)
}

func (c *Conn) eval(ctx context.Context, script *redis.Script, op op, call Call, late func(reply *redis.Cmd)) (reply *redis.Cmd) {
	l := c.lanes.of(op.key)
	for _, eval := range []evaluate{script.EvalSha, script.Eval} {
		reply = eval(ctx, unsent{}, call.Keys, call.Args...)
		if err := l.doScript(ctx, op, reply, late); err != nil {
			return failed(ctx, err)
		}
		if !unrun(reply) {
			break
		}
	}
	return reply
}

// doScript is do for a script.
func (l *lane) doScript(ctx context.Context, o op, reply *redis.Cmd, late func(*redis.Cmd)) error {
	o.cmd = reply
	if late == nil {
		return l.do(ctx, []op{o}, nil)
	}
	return l.do(ctx, []op{o}, func() { late(reply) })
}

// unsent makes the commands of scripts without sending them.
type unsent struct{ redis.Scripter }

func (unsent) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return scriptCmd(ctx, "eval", text, keys, args)
}

func (unsent) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	return scriptCmd(ctx, "evalsha", sha1, keys, args)
}

func scriptCmd(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

func failed(ctx context.Context, err error) *redis.Cmd {
	reply := redis.NewCmd(ctx)
	reply.SetErr(err)
	return reply
}

type evaluate func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

// unrun reports whether the reply is one after which the text of the script may do: the
// server does not know the script, or it has sent the client on to another node, and that
// one has too. While a slot moves, a script of two keys can meet ASK, TRYAGAIN and MOVED
// one after the other, and go-redis gives up after ClusterOptions.MaxRedirects of them, 3.
func unrun(reply *redis.Cmd) bool {
	err := reply.Err()
	return redis.HasErrorPrefix(err, "NOSCRIPT") || redis.HasErrorPrefix(err, "MOVED") ||
		redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN")
}

// allUnrun returns the indices of the replies that are unrun.
func allUnrun(replies []*redis.Cmd) (indices []int) {
	for i, reply := range replies {
		if unrun(reply) {
			indices = append(indices, i)
		}
	}
	return indices
}

// EvalAndWait is Eval for calls whose keys are all on one node, followed in the same
// pipeline by a WAIT for replicas of at most timeout. It returns how many replicas have
// confirmed. err is that of finding the node or of the WAIT; the replies have their own.
// It does not ride with others, and is for an op of Do.
func (c *Conn) EvalAndWait(ctx context.Context, script *redis.Script, calls []Call,
	replicas int, timeout time.Duration,
) (replies []*redis.Cmd, confirmed int, err error) {
	node := c.Client()
	if c.lanes.cluster != nil {
		if node, err = c.lanes.cluster.MasterForKey(ctx, calls[0].Keys[0]); err != nil {
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
		if len(allUnrun(replies)) == 0 {
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
