package mutexrebuild

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/bounded"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
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

// limit is how many operations of one group may be without an answer. It is far
// above what a healthy server leaves open, and bounds what a hung one holds.
const limit = 4096

// A store speaks the lease protocol with Redis. Each method is at most one round
// trip, two after the server has lost its scripts, and returns within the
// operation's budget; at once while the gate is shut.
type store struct {
	rdb     redis.UniversalClient
	gate    *gate
	journal *logonce.Log
	run     *bounded.Runner
	name    string
	schema  int
	lease   time.Duration
	timeout time.Duration
	longest int             // see Options.MaxBytes
	lag     time.Duration   // see Options.ReplicaLag
	waitFor int             // see Options.WaitReplicas
	writes  *bounded.Runner // for what waits for replicas too
	queue   *queue          // what Redis has not confirmed
	closing context.Context // ends with the group
	channel string
	self    string // tells this process's messages from others'
}

func newStore(closing context.Context, rdb redis.UniversalClient, name string, o Options, j *logonce.Log) *store {
	s := &store{
		rdb: rdb, gate: openGate(rdb, o.RedisTimeout, logonce.New(o.Logger, prefix)), journal: j, run: bounded.NewRunner(o.RedisTimeout, limit),
		name: name, schema: o.Schema, lease: o.Lease, timeout: o.RedisTimeout, longest: o.MaxBytes, lag: o.ReplicaLag, waitFor: o.WaitReplicas,
		closing: closing, channel: keys.Events(name), self: newToken(),
	}
	s.writes = s.run
	if s.waitFor > 0 {
		s.writes = bounded.NewRunner(2*o.RedisTimeout, limit) // the replicas' answer has a time of its own
	}
	s.queue = newQueue(closing, s.gate, j, func(ctx context.Context, targets []target) error {
		return s.drop(ctx, targets, s.lagging(holds{}))
	})
	return s
}

// close ends what works for the store. It waits for invalidations that Redis has
// not confirmed, not much longer than a second.
func (s *store) close() {
	s.queue.close()
	s.gate.leave()
}

// barred says why Redis must not be asked for id, nil if it may.
func (s *store) barred(id string) error {
	switch {
	case s.gate.shut():
		return errShut
	case s.queue.blocks(id):
		return errUnconfirmed
	}
	return nil
}

// ask runs one operation of Redis within its budget, unless the gate is shut. An
// op that was left behind ends in late.
func ask[R any](ctx context.Context, s *store, op func(context.Context) (R, error), late func(R, error)) (R, error) {
	if s.gate.shut() {
		var none R
		return none, errShut
	}
	result, err := bounded.Do(ctx, s.run, op, late)
	s.survived(ctx, err)
	return result, err
}

// newToken names one acquisition: 128 random bits, never used again.
func newToken() string { return rand.Text() }

func (s *store) value(id string) string { return keys.Value(s.name, s.schema, id) }

// pair is the keys of most scripts.
func (s *store) pair(id string) []string {
	value := s.value(id)
	return []string{value, keys.Lease(value)}
}

// get returns the bytes of id, empty if there are none, and leaves behind a read
// that takes too long. Of more than s.longest it returns one more.
func (s *store) get(ctx context.Context, id string) ([]byte, error) {
	if err := s.barred(id); err != nil {
		return nil, err
	}
	key := s.value(id)
	data, err := ask(ctx, s, func(ctx context.Context) ([]byte, error) {
		return read(ctx, s.rdb, key, s.longest)
	}, nil)
	s.tell(ctx, key, err)
	return data, err
}

// prompt reports whether to read on the caller's own goroutine, with getHere: that
// comes back in time, because the client keeps to its timeouts and ctx does not
// end before them, and reads do not time out just now. The end of ctx by a
// cancellation goes unnoticed, for a RedisTimeout at the longest.
func (s *store) prompt(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return s.gate.direct != nil && (!ok || time.Until(deadline) >= s.timeout) && s.gate.easy()
}

// getHere is get on the caller's own goroutine. A read that times out there costs
// its connection, which could still bring the reply to somebody else.
func (s *store) getHere(caller context.Context, id string) ([]byte, error) {
	if err := s.barred(id); err != nil {
		return nil, err
	}
	if !s.run.Enter() {
		return nil, bounded.ErrBusy
	}
	defer s.run.Leave()
	ctx, cancel := context.WithTimeout(caller, s.timeout)
	defer cancel()
	key := s.value(id)
	data, err := read(ctx, s.gate.direct, key, s.longest)
	if ctx.Err() != nil {
		s.gate.uneasy()
	}
	s.survived(caller, err)
	s.tell(caller, key, err)
	return data, err
}

// tell lets the gate know how a read ended. One that was not begun, or that its
// caller did not wait for, says nothing about Redis.
func (s *store) tell(caller context.Context, key string, err error) {
	switch {
	case err == nil:
		s.gate.answered()
	case caller.Err() == nil && !errors.Is(err, errShut) && !errors.Is(err, bounded.ErrBusy):
		s.gate.unanswered(keys.Lease(key))
	}
}

// read reads up to longest bytes and one more, by which more is told from as many.
// It is not a GET: somebody else may have put hundreds of megabytes there, and
// go-redis makes room for all that a server announces.
func read(ctx context.Context, rdb redis.Cmdable, key string, longest int) ([]byte, error) {
	data, err := rdb.GetRange(ctx, key, 0, int64(longest)).Bytes()
	if err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil // begin does not mind what is there, and commit replaces it
	}
	return data, err
}

// direct returns a client of the same connections that keeps to timeout and to a
// context's deadline, nil if there is none. That takes both: with a limit on each
// read alone, a caller that had to wait for a connection would then wait for the
// read as long again. The options are the copy's own. A cluster client looks up
// its nodes and commands first, and no option of it bounds that.
func direct(rdb redis.UniversalClient, timeout time.Duration) redis.Cmdable {
	client, ok := rdb.(*redis.Client)
	switch {
	case !ok:
		return nil
	case client.Options().ContextTimeoutEnabled:
		return client // a copy would lose its hooks
	}
	client = client.WithTimeout(timeout)
	client.Options().ContextTimeoutEnabled = true
	return client
}

// A grant is the answer to a request for a lease.
type grant struct {
	verdict   verdict
	data      []byte        // published: the value; tooLong: its head
	remaining time.Duration // wait: of the other's lease
}

type verdict int

const (
	granted   verdict = iota // the lease is ours
	published                // somebody has published a value
	tooLong                  // something stands there that is too long to be a value
	wait                     // somebody else has the lease
	held                     // a writer holds the key
)

// begin asks for the lease of id. Seen is what the caller found at the key and
// rejected.
func (s *store) begin(ctx context.Context, id, token string, seen []byte) (grant, error) {
	if err := s.barred(id); err != nil {
		return grant{}, err
	}
	found, err := ask(ctx, s, func(ctx context.Context) (grant, error) {
		reply, err := beginScript.Run(ctx, s.rdb, s.pair(id), token, s.lease.Milliseconds(), head(seen), s.longest).Slice()
		if err != nil {
			return grant{}, err
		}
		return parseGrant(reply)
	}, func(grant, error) { s.giveUp(ctx, id, token, nil) })
	if err != nil {
		s.giveUp(ctx, id, token, err)
	}
	return found, err
}

// head is as much of a value as begin.lua looks at to know it again.
func head(data []byte) []byte { return data[:min(len(data), 64)] }

func parseGrant(reply []any) (grant, error) {
	if len(reply) == 0 {
		return grant{}, errors.New("empty reply")
	}
	switch reply[0] {
	case "granted":
		return grant{verdict: granted}, nil
	case "held":
		return grant{verdict: held}, nil
	case "wait":
		if left, ok := reply[len(reply)-1].(int64); ok {
			return grant{verdict: wait, remaining: time.Duration(left) * time.Millisecond}, nil
		}
	case "value":
		if data, ok := reply[len(reply)-1].(string); ok {
			return grant{verdict: published, data: []byte(data)}, nil
		}
	case "long":
		if head, ok := reply[len(reply)-1].(string); ok {
			return grant{verdict: tooLong, data: []byte(head)}, nil
		}
	}
	return grant{}, fmt.Errorf("unexpected reply %.60q", fmt.Sprint(reply...))
}

// renew prolongs a lease. A failure needs no answer: the next renewal may come
// through, and if none does, the commit is refused.
func (s *store) renew(ctx context.Context, id, token string) {
	_, _ = ask(ctx, s, func(ctx context.Context) (int, error) {
		return renewScript.Run(ctx, s.rdb, s.pair(id)[1:], token, s.lease.Milliseconds()).Int()
	}, nil)
}

// commit publishes data, if the lease still stands. After an error that is
// unknown.
func (s *store) commit(ctx context.Context, id, token string, data []byte, ttl time.Duration) (bool, error) {
	if s.queue.blocks(id) { // the lease may stand and should not
		s.giveUp(ctx, id, token, errUnconfirmed)
		return false, errUnconfirmed
	}
	stored, err := ask(ctx, s, func(ctx context.Context) (bool, error) {
		if failpoint.PlainCommit {
			defer s.abort(ctx, id, token)
			return true, s.rdb.Set(ctx, s.value(id), data, ttl).Err()
		}
		return commitScript.Run(ctx, s.rdb, s.pair(id),
			token, data, ttl.Milliseconds(), s.channel, s.message(wakeUp, id)).Bool()
	}, nil)
	if err != nil {
		s.giveUp(ctx, id, token, err)
	}
	return stored, err
}

// abort gives a lease back unused.
func (s *store) abort(ctx context.Context, id, token string) {
	_, _ = ask(ctx, s, func(ctx context.Context) (int, error) {
		return abortScript.Run(ctx, s.rdb, s.pair(id)[1:], token, s.channel, s.message(wakeUp, id)).Int()
	}, nil)
}

// giveUp aborts a lease that may or may not have been granted, without holding
// up the caller. Others would wait for its end. It spares a server that could not
// even be reached, and waits for one that is not asked just now, as long as the
// lease may last.
func (s *store) giveUp(ctx context.Context, id, token string, err error) {
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" || errors.Is(err, bounded.ErrBusy) {
		return
	}
	go func() {
		if s.gate.waitOpen(s.closing, s.lease) {
			s.abort(context.WithoutCancel(ctx), id, token)
		}
	}()
}
