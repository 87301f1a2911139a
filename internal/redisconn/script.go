package redisconn

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrTooFewReplicas reports that scripts ran, but that fewer replicas than wanted have
// confirmed them.
var ErrTooFewReplicas = errors.New("too few replicas")

// A Call has the keys and arguments of one run of a script.
type Call struct {
	Keys  []string
	Boxed []any // the first of Keys, or all, as arguments: it saves allocations; nil: none
	Args  []any
}

// A Script is a Lua script. Once a server has run it, the server knows it by the SHA-1 of its text.
type Script struct {
	text, hash string
	boxed      any // hash, as an argument
}

// NewScript returns the script that texts are when joined. They must be constants, so that no
// input of a user becomes Lua.
func NewScript(texts ...string) *Script {
	text := strings.Join(texts, "")
	hash := fmt.Sprintf("%x", sha1.Sum([]byte(text)))
	return &Script{text, hash, hash}
}

// Hash returns the SHA-1 by which a server knows the script.
func (s *Script) Hash() string { return s.hash }

// attempts has the two ways to run a script: by its hash and, if the server cannot run that, by its text.
var attempts = []func(s *Script, ctx context.Context, call Call) *redis.Cmd{
	func(s *Script, ctx context.Context, call Call) *redis.Cmd { return call.with(ctx, "evalsha", s.boxed) },
	(*Script).whole,
}

func (s *Script) whole(ctx context.Context, call Call) *redis.Cmd {
	return call.with(ctx, "eval", s.text)
}

// with returns the command that runs script, by name, with the keys and arguments of c.
func (c Call) with(ctx context.Context, name string, script any) *redis.Cmd {
	all := make([]any, 0, 3+len(c.Keys)+len(c.Args))
	all = append(all, name, script, len(c.Keys))
	all = append(all, c.Boxed...)
	for _, key := range c.Keys[len(c.Boxed):] {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, c.Args...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Run runs the script with a client of the user and the client's own timeouts.
func (s *Script) Run(ctx context.Context, rdb redis.UniversalClient, call Call) Reply {
	var cmd *redis.Cmd
	for _, attempt := range attempts {
		cmd = attempt(s, ctx, call)
		if _ = rdb.Process(ctx, cmd); !unrun(cmd) {
			break
		}
	}
	return replyOf(cmd)
}

// RunWhole is like Run but always sends the text of the script.
func (s *Script) RunWhole(ctx context.Context, rdb redis.UniversalClient, call Call) Reply {
	cmd := s.whole(ctx, call)
	_ = rdb.Process(ctx, cmd)
	return replyOf(cmd)
}

// Eval runs script for each of calls and returns their replies. The error of a reply is
// Redis' own, ErrOutage, ErrTimeout, ErrBusy or the cause of ctx. Eval takes one trip to
// each node, and a second one for calls that met a server without the script, or a slot
// that moves. If late is not nil, it is called with the reply of each call that ends after
// Eval has returned.
func (c *Conn) Eval(ctx context.Context, script *Script, calls []Call, late func(i int, reply Reply)) []Reply {
	if len(calls) == 1 {
		var lateOne func(Reply)
		if late != nil {
			lateOne = func(reply Reply) { late(0, reply) }
		}
		return []Reply{c.eval(ctx, script, op{key: calls[0].Keys[0], ride: late != nil}, calls[0], lateOne)}
	}
	replies := make([]Reply, len(calls))
	due := make([]int, len(calls)) // the calls to make, and then those to make again
	for i := range due {
		due[i] = i
	}
	for _, attempt := range attempts {
		asked, cmds, ops := due, make([]*redis.Cmd, len(due)), make([]op, len(due)) // asked: late may be called after due has changed
		for n, i := range asked {
			cmds[n] = attempt(script, ctx, calls[i])
			ops[n] = op{key: calls[i].Keys[0], cmd: cmds[n], ride: late != nil}
		}
		errs := c.doMany(ctx, ops, func(n int) {
			if late != nil {
				late(asked[n], replyOf(cmds[n]))
			}
		})
		due = nil
		for n, i := range asked {
			if errs[n] != nil { // the command must no longer be looked at
				replies[i] = Reply{err: errs[n]}
				continue
			}
			replies[i] = replyOf(cmds[n])
			if unrun(cmds[n]) {
				due = append(due, i)
			}
		}
		if len(due) == 0 {
			break
		}
	}
	return replies
}

// EvalOne runs script once, as Eval does, for a caller who repeats a call that times out: unlike
// with Eval the call may be lone, and late is not called after the timeout of a lone call.
func (c *Conn) EvalOne(ctx context.Context, script *Script, call Call, late func(Reply)) Reply {
	return c.eval(ctx, script, op{key: call.Keys[0]}, call, late)
}

func (c *Conn) eval(ctx context.Context, script *Script, o op, call Call, late func(Reply)) (reply Reply) {
	l := c.lanes.of(o.key)
	for _, attempt := range attempts {
		cmd := attempt(script, ctx, call)
		o.cmd = cmd
		var over func()
		if late != nil {
			over = func() { late(replyOf(cmd)) }
		}
		if err := l.do(ctx, []op{o}, over); err != nil {
			return Reply{err: err}
		}
		if reply = replyOf(cmd); !unrun(cmd) {
			break
		}
	}
	return reply
}

// unrun reports whether the script did not run and its text should be tried: the server does
// not know the script, or each node has redirected the client to another. While a slot moves,
// a script of two keys can meet ASK, TRYAGAIN and MOVED one after the other, and go-redis
// gives up after ClusterOptions.MaxRedirects of them, 3 by default.
func unrun(cmd *redis.Cmd) bool {
	err := cmd.Err()
	return err != nil && (redis.HasErrorPrefix(err, "NOSCRIPT") || redis.HasErrorPrefix(err, "MOVED") ||
		redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN"))
}

// A Confirm says how many replicas must confirm that a script ran, and how long to wait for them.
type Confirm struct {
	Replicas int
	Disk     bool // the node and the replicas must have it in their append-only files (WAITAOF)
	Within   time.Duration
}

// Wanted reports whether c wants any confirmation.
func (c Confirm) Wanted() bool { return c.Replicas > 0 || c.Disk }

// wait returns the command that waits for the confirmations.
func (c Confirm) wait() []any {
	ms := max(c.Within.Milliseconds(), 1) // 0 would wait without limit
	if c.Disk {
		return []any{"WAITAOF", 1, c.Replicas, ms}
	}
	return []any{"WAIT", c.Replicas, ms}
}

// confirmed returns how many replicas have confirmed, by the reply to the command of wait; -1 if
// the node itself has not.
func (c Confirm) confirmed(reply *redis.Cmd) (int, error) {
	if !c.Disk {
		return reply.Int()
	}
	n, err := reply.Int64Slice()
	if err != nil || len(n) != 2 || n[0] == 0 {
		return -1, err
	}
	return int(n[1]), nil
}

// EvalAndWait runs script for calls whose keys are all on one node, and in the same pipeline
// the command that waits for want. It returns how many replicas have confirmed, -1 if the node
// itself has not. err reports that the node was not found or the waiting failed; the replies
// have their own errors. EvalAndWait shares no trip: it is to be called in an op of Do.
//
// In a cluster it uses the client of the node, since a WAIT has no key: the hooks of the
// cluster client do not see it, and it follows no redirection. After a slot has moved, a call
// or two fail until the cluster client knows the new node; while a slot moves, calls fail.
func (c *Conn) EvalAndWait(ctx context.Context, script *Script, calls []Call, want Confirm) (replies []Reply, confirmed int, err error) {
	until := time.Now().Add(want.Within)
	for _, attempt := range attempts {
		node := c.Client()
		if c.lanes.cluster != nil {
			if node, err = c.lanes.cluster.MasterForKey(ctx, calls[0].Keys[0]); err != nil {
				return nil, 0, err
			}
		}
		p := node.Pipeline()
		cmds := make([]*redis.Cmd, len(calls))
		for i, call := range calls {
			cmds[i] = attempt(script, ctx, call)
			_ = p.Process(ctx, cmds[i])
		}
		want.Within = time.Until(until) // the second attempt has what the first one left
		wait := p.Do(ctx, want.wait()...)
		_, _ = p.Exec(ctx) // the replies have the errors
		replies = replies[:0]
		for _, cmd := range cmds {
			replies = append(replies, replyOf(cmd))
		}
		if !slices.ContainsFunc(cmds, unrun) {
			confirmed, err = want.confirmed(wait)
			return replies, confirmed, err
		}
		if redis.HasErrorPrefix(FirstError(replies), "MOVED") {
			c.lanes.lookAgain()
		}
	}
	return replies, 0, nil
}

// TooFew returns an ErrTooFewReplicas with the numbers.
func TooFew(confirmed, wanted int) error {
	return fmt.Errorf("%w: %d of %d acknowledged", ErrTooFewReplicas, confirmed, wanted)
}
