package mutexrebuild

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/commit.lua
	commitLua string
	//go:embed scripts/abort.lua
	abortLua string
	//go:embed scripts/invalidate.lua
	invalidateLua string
	//go:embed scripts/claim.lua
	claimLua string
	//go:embed scripts/set.lua
	setLua string

	beginScript      = redis.NewScript(beginLua)
	renewScript      = redis.NewScript(renewLua)
	commitScript     = redis.NewScript(commitLua)
	abortScript      = redis.NewScript(abortLua)
	invalidateScript = redis.NewScript(invalidateLua)
	claimScript      = redis.NewScript(claimLua)
	setScript        = redis.NewScript(setLua)
)

// maxWaiting is how many operations of one group may be without an answer. It is far
// above what a healthy server leaves open, and bounds what a hung one holds.
const maxWaiting = 4096

// A store speaks the lease protocol with Redis. Each method takes one round trip per
// node, and another after the server has lost its scripts; set takes two, and
// invalidate one for every 128 ids. Each returns within the operation's time; at once
// during an outage.
type store struct {
	conn    *redisconn.Conn
	writes  *redisconn.Conn // for operations that wait for replicas too
	space   Keyspace
	lease   time.Duration
	waitFor int             // see Options.WaitReplicas
	pending *pending        // invalidations that Redis has not confirmed
	closing context.Context // ends with the group
	channel string
	self    string // tells this group's messages from others'
	log     *logonce.Log
}

func newStore(closing context.Context, rdb redis.UniversalClient, space Keyspace, o Options, log *logonce.Log) *store {
	conn := redisconn.Open(rdb, space.RedisTimeout, maxWaiting, logonce.New(space.Logger, logPrefix))
	s := &store{
		conn: conn, writes: conn, space: space, lease: o.Lease, waitFor: o.WaitReplicas,
		closing: closing, channel: keys.Events(space.Name), self: newToken(), log: log,
	}
	if s.waitFor > 0 {
		s.writes = conn.WithTimeout(2*space.RedisTimeout, maxWaiting) // the replicas' answer has a time of its own
	}
	s.pending = newPending(closing, conn.Outage, log, func(ctx context.Context, targets []target) error {
		return s.drop(ctx, targets, s.withReplicaLag(holds{}))
	})
	return s
}

// close ends what works for the store. It waits for invalidations that Redis has
// not confirmed, not much longer than a second.
func (s *store) close() {
	s.pending.close()
	s.conn.Close()
}

// refusal says why Redis must not be asked for id, nil if it may.
func (s *store) refusal(id string) error {
	switch {
	case s.conn.Outage.Down():
		return redisconn.ErrOutage
	case s.pending.blocks(id):
		return errUnconfirmed
	}
	return nil
}

// do runs one operation of Redis in the time for it, and logs its error.
func do[R any](ctx context.Context, s *store, op func(context.Context) (R, error), late func(R, error)) (R, error) {
	result, err := redisconn.Do(ctx, s.conn, op, late)
	s.logSurvived(ctx, err)
	return result, err
}

func (s *store) key(id string) string { return keys.Value(s.space.Name, s.space.Schema, id) }

// keys are the keys of most scripts: value and lease.
func (s *store) keys(id string) []string {
	value := s.key(id)
	return []string{value, keys.Lease(value)}
}

func (s *store) get(ctx context.Context, ids []string) []Value {
	if len(ids) == 1 {
		return []Value{s.getOne(ctx, ids[0])}
	}
	values := make([]Value, len(ids))
	asked := s.allowed(len(ids), func(i int) string { return ids[i] }, func(i int, err error) { values[i].Err = err })
	if len(asked) == 0 {
		return values
	}
	replies, err := onCallerOrDo(ctx, s.conn, func(ctx context.Context, rdb redis.Cmdable) ([]*redis.StringCmd, error) {
		replies := make([]*redis.StringCmd, len(asked))
		p := rdb.Pipeline()
		for n, i := range asked {
			replies[n] = p.GetRange(ctx, s.key(ids[i]), 0, int64(s.space.MaxBytes)) // as redisconn.GetRange does
		}
		_, _ = p.Exec(ctx) // the replies have the errors
		return replies, nil
	})
	answered := false
	for n, i := range asked {
		if values[i].Err = err; err == nil {
			values[i] = s.value(redisconn.Bytes(replies[n]))
		}
		if values[i].Err == nil {
			answered = true
		} else if err == nil {
			s.logSurvived(ctx, values[i].Err)
		}
	}
	if answered {
		s.conn.Outage.Answered()
	} else {
		s.unanswered(ctx, s.key(ids[asked[0]]), values[asked[0]].Err)
	}
	return values
}

// getOne is get for a lone id. It is the path of every hit.
func (s *store) getOne(ctx context.Context, id string) Value {
	if err := s.refusal(id); err != nil {
		return Value{Err: err}
	}
	key := s.key(id)
	value := s.value(onCallerOrDo(ctx, s.conn, func(ctx context.Context, rdb redis.Cmdable) ([]byte, error) {
		return redisconn.GetRange(ctx, rdb, key, s.space.MaxBytes)
	}))
	if value.Err == nil {
		s.conn.Outage.Answered()
	} else {
		s.unanswered(ctx, key, value.Err)
	}
	return value
}

// onCallerOrDo runs op on this goroutine if op can be left in time there, else on
// another.
func onCallerOrDo[T any](ctx context.Context, c *redisconn.Conn, op func(context.Context, redis.Cmdable) (T, error)) (T, error) {
	if c.MayUseCaller(ctx) {
		return redisconn.DoOnCaller(ctx, c, op)
	}
	return redisconn.Do(ctx, c, func(ctx context.Context) (T, error) { return op(ctx, c.Client) }, nil)
}

func (s *store) value(data []byte, err error) Value {
	if len(data) > s.space.MaxBytes {
		return Value{Data: head(data), TooLong: true}
	}
	return Value{Data: data, Err: err}
}

// unanswered logs the error of a read, and lets the outage circuit know.
func (s *store) unanswered(caller context.Context, key string, err error) {
	s.logSurvived(caller, err)
	if redisconn.Asked(caller, err) {
		s.conn.Outage.Missed(keys.Lease(key))
	}
}

// allowed returns the indices of the ids that Redis may be asked for, and gives the
// others' errors to refuse.
func (s *store) allowed(n int, id func(int) string, refuse func(int, error)) []int {
	indices := make([]int, 0, n)
	for i := range n {
		if err := s.refusal(id(i)); err != nil {
			refuse(i, err)
			continue
		}
		indices = append(indices, i)
	}
	return indices
}

func (s *store) begin(ctx context.Context, asks []Ask) []Grant {
	grants := make([]Grant, len(asks))
	asked := s.allowed(len(asks), func(i int) string { return asks[i].ID }, func(int, error) {}) // the zero Grant is Unknown
	if len(asked) == 0 {
		return grants
	}
	calls := make([]redisconn.Call, len(asked))
	leases := make([]Lease, len(asked))
	for n, i := range asked {
		leases[n] = Lease{asks[i].ID, newToken()}
		calls[n] = redisconn.Call{Keys: s.keys(asks[i].ID), Args: []any{leases[n].token, s.lease.Milliseconds(), head(asks[i].Seen), s.space.MaxBytes}}
	}
	replies, err := do(ctx, s, func(ctx context.Context) ([]*redis.Cmd, error) {
		return redisconn.Eval(ctx, s.conn.Client, beginScript, calls...), nil
	}, func([]*redis.Cmd, error) { s.giveUp(ctx, leases, nil) })
	var lost []Lease // without an answer: they may have been granted
	for n, i := range asked {
		grant, replyErr := Grant{}, err
		if err == nil {
			if grant, replyErr = parseGrant(replies[n]); replyErr != nil {
				s.logSurvived(ctx, replyErr)
			}
		}
		if grant.Lease = leases[n]; replyErr != nil {
			lost = append(lost, leases[n])
		}
		grants[i] = grant
	}
	if len(lost) > 0 && !errors.Is(err, redisconn.ErrOutage) { // during an outage nothing was sent
		s.giveUp(ctx, lost, err)
	}
	return grants
}

// headBytes is how much of a value begin.lua looks at to know it again.
const headBytes = 64

func head(data []byte) []byte { return data[:min(len(data), headBytes)] }

// parseGrant reads a reply of begin.lua. After an error the lease may have been granted.
func parseGrant(cmd *redis.Cmd) (Grant, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return Grant{}, err
	}
	if len(reply) == 0 {
		return Grant{}, errors.New("empty reply")
	}
	last := reply[len(reply)-1]
	switch reply[0] {
	case "granted":
		return Grant{Verdict: Granted}, nil
	case "held":
		return Grant{Verdict: Held}, nil
	case "wait":
		if left, ok := last.(int64); ok {
			return Grant{Verdict: Busy, Remaining: time.Duration(left) * time.Millisecond}, nil
		}
	case "value", "long":
		if data, ok := last.(string); ok {
			return Grant{Verdict: Found, Value: Value{Data: []byte(data), TooLong: reply[0] == "long"}}, nil
		}
	}
	return Grant{}, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
}

func (s *store) renew(ctx context.Context, leases []Lease) {
	calls := make([]redisconn.Call, len(leases))
	for i, lease := range leases {
		calls[i] = redisconn.Call{Keys: s.keys(lease.ID)[1:], Args: []any{lease.token, s.lease.Milliseconds()}}
	}
	s.run(ctx, renewScript, calls)
}

// abort gives leases back unused.
func (s *store) abort(ctx context.Context, leases []Lease) {
	calls := make([]redisconn.Call, len(leases))
	for i, lease := range leases {
		calls[i] = redisconn.Call{Keys: s.keys(lease.ID)[1:], Args: []any{lease.token, s.channel, s.message(wakeUp, lease.ID)}}
	}
	s.run(ctx, abortScript, calls)
}

// run runs a script whose answers nobody needs.
func (s *store) run(ctx context.Context, script *redis.Script, calls []redisconn.Call) {
	_, _ = do(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, redisconn.FirstError(redisconn.Eval(ctx, s.conn.Client, script, calls...))
	}, nil)
}

func (s *store) commit(ctx context.Context, values []Publication) []Outcome {
	outcomes := make([]Outcome, len(values))
	asked := make([]int, 0, len(values))
	// begin also refuses during an outage, so that nobody waits to give up a lease that
	// was never asked for. Here the lease stands: during an outage the operation fails at
	// once, and the lease is given up when Redis answers again.
	var blocked []Lease // they may stand and should not
	for i, v := range values {
		if s.pending.blocks(v.Lease.ID) {
			outcomes[i].Err = errUnconfirmed
			blocked = append(blocked, v.Lease)
			continue
		}
		asked = append(asked, i)
	}
	if len(blocked) > 0 {
		s.giveUp(ctx, blocked, errUnconfirmed)
	}
	if len(asked) == 0 {
		return outcomes
	}
	calls := make([]redisconn.Call, len(asked))
	for n, i := range asked {
		v := values[i]
		calls[n] = redisconn.Call{Keys: s.keys(v.Lease.ID), Args: []any{v.Lease.token, v.Data, v.TTL.Milliseconds(), s.channel, s.message(wakeUp, v.Lease.ID)}}
	}
	replies, err := do(ctx, s, func(ctx context.Context) ([]*redis.Cmd, error) {
		return redisconn.Eval(ctx, s.conn.Client, commitScript, calls...), nil
	}, nil)
	var lost []Lease // without an answer: they may still stand
	for n, i := range asked {
		outcome := Outcome{Err: err}
		if err == nil {
			outcome.Published, outcome.Err = replies[n].Bool()
			s.logSurvived(ctx, outcome.Err)
		}
		if outcome.Err != nil {
			lost = append(lost, values[i].Lease)
		}
		outcomes[i] = outcome
	}
	if len(lost) > 0 {
		s.giveUp(ctx, lost, err)
	}
	return outcomes
}

// giveUp aborts leases that may or may not have been granted, without holding up the
// caller: others would wait for their end. It does nothing if the server could not
// be dialled. During an outage it waits for Redis to answer, for at most one lease.
func (s *store) giveUp(ctx context.Context, leases []Lease, err error) {
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redisconn.ErrBusy) {
		return
	}
	go func() {
		if s.conn.Outage.WaitUp(s.closing, s.lease) {
			s.abort(context.WithoutCancel(ctx), leases)
		}
	}()
}
