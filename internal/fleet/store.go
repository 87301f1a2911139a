package fleet

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

var (
	//go:embed scripts/common.lua
	commonLua string
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
	//go:embed scripts/epoch.lua
	epochLua string

	beginScript      = redisconn.NewScript(commonLua, beginLua)
	renewScript      = redisconn.NewScript(renewLua)
	commitScript     = redisconn.NewScript(commonLua, commitLua)
	abortScript      = redisconn.NewScript(abortLua)
	invalidateScript = redisconn.NewScript(commonLua, invalidateLua)
	claimScript      = redisconn.NewScript(commonLua, claimLua)
	setScript        = redisconn.NewScript(commonLua, setLua)
	epochScript      = redisconn.NewScript(commonLua, epochLua)
)

// maxWaiting is how many operations of one group may be without an answer. It is far
// above what a healthy server leaves open, also in a cold start of as many keys as the
// breaker has wait, and bounds what a hung one holds.
const maxWaiting = 16_384

// A store speaks the lease protocol with Redis. Each method takes one round trip per
// node, and another after the server has lost its scripts; set takes two, and
// invalidate one for every 128 ids. Each returns within the operation's time; at once
// during an outage.
type store struct {
	conn     *redisconn.Conn
	unnamed  func() // ends that log lines of an outage name this keyspace
	space    Keyspace
	names    keys.Cache
	lease    time.Duration
	waitFor  int // see Options.WaitReplicas
	epoch    *epoch
	pending  *pending        // invalidations that Redis has not confirmed
	aborts   aborts          // of leases that may have been granted, without their callers
	closing  context.Context // ends with the group
	channel  string
	self     string                // tells this group's messages from others'
	survived atomic.Pointer[error] // the latest error of Redis that no caller got to see
	log      *logonce.Log
	foreign  atomic.Uint64 // see Stats
}

func newStore(closing context.Context, rdb redis.UniversalClient, space Keyspace, o Options, e *epoch, log *logonce.Log) *store {
	conn := redisconn.Open(rdb, space.RedisTimeout, maxWaiting, logonce.New(space.Logger, logPrefix))
	names := keys.OfCache(space.Name)
	s := &store{
		conn: conn, unnamed: conn.UsedBy(space.Name), space: space, names: names, lease: o.Lease, waitFor: o.WaitReplicas,
		epoch: e, closing: closing, channel: names.Messages(), self: newToken(), log: log,
	}
	s.pending = newPending(closing, log, s.retry, s.nodeOf)
	e.read = s.readEpoch
	return s
}

// close ends what works for the store. It waits for invalidations that Redis has
// not confirmed, not much longer than a second.
func (s *store) close() {
	s.pending.close()
	s.aborts.close()
	s.epoch.close()
	s.unnamed()
	s.conn.Close()
}

// barred says why Redis must not be asked for id, nil if it may.
func (s *store) barred(id string) error {
	switch {
	case s.down(id):
		return redisconn.ErrOutage
	case s.pending.blocks(id):
		return errUnconfirmed
	}
	return nil
}

// down reports whether Redis, or in a cluster the node that has id, is not asked.
func (s *store) down(id string) bool {
	if o := s.conn.Outage(); o != nil {
		return o.Down()
	}
	return s.conn.Down(s.key(id))
}

// nodeOf returns the Outage of the node that has a target.
func (s *store) nodeOf(t target) *redisconn.Outage {
	if t.clear {
		return s.conn.OutageOf(s.names.Epoch())
	}
	return s.conn.OutageOf(s.key(t.id))
}

func (s *store) key(id string) string { return s.names.Value(s.space.Schema, id) }

// keys are the keys of most scripts: value and lease.
func (s *store) keys(id string) []string { return []string{s.key(id), s.names.Lease(id)} }

// allKeys are the keys of a script that ends what is known of id: beside its keys the
// values of the schemas before and after this one, which processes of another release
// may be using.
func (s *store) allKeys(id string) []string {
	all := append(s.keys(id), s.names.Value(s.space.Schema+1, id))
	if s.space.Schema > 0 {
		all = append(all, s.names.Value(s.space.Schema-1, id))
	}
	return all
}

// foundForeign notes that a script has left n keys of another type alone. Somebody else
// uses names that belong to this cache. Until that ends the source answers for id.
func (s *store) foundForeign(id string, n int64) {
	if n > 0 {
		s.foreign.Add(uint64(n))
		s.log.Error("a key of another type stands where a value or a lease belongs, and is left alone: it is not cached",
			logonce.Name("id", id), "key", s.key(id))
	}
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
	names := make([]string, len(asked))
	for n, i := range asked {
		names[n] = s.key(ids[i])
	}
	data, errs := s.conn.ReadMany(ctx, names, s.space.MaxBytes)
	for n, i := range asked {
		values[i] = s.value(data[n], errs[n])
		s.logSurvived(ctx, errs[n])
	}
	return values
}

// getOne is get for a lone id. It is the path of every hit.
func (s *store) getOne(ctx context.Context, id string) Value {
	if err := s.barred(id); err != nil {
		return Value{Err: err}
	}
	value := s.value(s.conn.Read(ctx, s.key(id), s.space.MaxBytes))
	s.logSurvived(ctx, value.Err)
	return value
}

func (s *store) value(data []byte, err error) Value {
	if len(data) > s.space.MaxBytes {
		return Value{Data: head(data), TooLong: true}
	}
	return Value{Data: data, Err: err}
}

// allowed returns the indices of the ids that Redis may be asked for, and gives the
// others' errors to refuse.
func (s *store) allowed(n int, id func(int) string, refuse func(int, error)) []int {
	indices := make([]int, 0, n)
	for i := range n {
		if err := s.barred(id(i)); err != nil {
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
	replies := s.conn.Eval(ctx, beginScript, calls, func(n int, _ redisconn.Reply) { s.giveUp(ctx, leases[n:n+1], nil) })
	var lost []Lease // without an answer: they may have been granted
	var failure error
	for n, i := range asked {
		grant, err := parseGrant(replies[n])
		if errors.Is(err, errForeign) {
			s.foundForeign(asks[i].ID, 1)
			continue // Unknown, and no lease
		}
		s.logSurvived(ctx, err)
		if err != nil && !errors.Is(err, redisconn.ErrOutage) { // during an outage nothing was sent
			lost, failure = append(lost, leases[n]), err
		}
		grant.Lease = leases[n]
		grants[i] = grant
	}
	if len(lost) > 0 {
		s.giveUp(ctx, lost, failure)
	}
	return grants
}

// headBytes is how much of a value begin.lua looks at to know it again.
const headBytes = 64

func head(data []byte) []byte { return data[:min(len(data), headBytes)] }

// errForeign reports that a key of another type stands where a value or a lease belongs.
var errForeign = errors.New("levee: a key of another type")

// parseGrant reads a reply of begin.lua. After an error the lease may have been granted,
// but not after errForeign.
func parseGrant(r redisconn.Reply) (Grant, error) {
	reply, err := r.List()
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
	case "foreign":
		return Grant{}, errForeign
	case "wait", "held":
		if left, ok := last.(int64); ok {
			verdict := Busy
			if reply[0] == "held" {
				verdict = Held
			}
			return Grant{Verdict: verdict, Remaining: time.Duration(left) * time.Millisecond}, nil
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
func (s *store) run(ctx context.Context, script *redisconn.Script, calls []redisconn.Call) {
	s.logSurvived(ctx, redisconn.FirstError(s.conn.Eval(ctx, script, calls, nil)))
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
		calls[n] = redisconn.Call{Keys: s.keys(v.Lease.ID), Args: []any{v.Lease.token, v.Data, inRedis(v.TTL), s.channel, s.message(wakeUp, v.Lease.ID)}}
	}
	replies := s.conn.Eval(ctx, commitScript, calls, nil)
	var lost []Lease // without an answer: they may still stand
	var failure error
	for n, i := range asked {
		outcomes[i] = s.parseOutcome(ctx, values[i].Lease.ID, replies[n])
		if err := outcomes[i].Err; err != nil && !errors.Is(err, errForeign) {
			lost, failure = append(lost, values[i].Lease), err
		}
	}
	if len(lost) > 0 {
		s.giveUp(ctx, lost, failure)
	}
	return outcomes
}

// parseOutcome reads a reply of commit.lua.
func (s *store) parseOutcome(ctx context.Context, id string, r redisconn.Reply) Outcome {
	reply, err := r.Int()
	if reply == foreignValue {
		s.foundForeign(id, 1)
		return Outcome{Err: errForeign}
	}
	s.logSurvived(ctx, err)
	return Outcome{Published: reply == 1, Err: err}
}

// foreignValue is what commit.lua gives when a key of another type stands there.
const foreignValue = 2

// inRedis is the life of a value in Redis, in milliseconds.
func inRedis(ttl time.Duration) int64 { return min(ttl, maxLife).Milliseconds() }

// giveUp aborts leases that may or may not have been granted, without holding up the
// caller: others would wait for their end. It does nothing if the server could not
// be dialled. During an outage it waits for Redis to answer, for at most one lease: after
// that the lease has ended by itself. For the same reason an abort that fails is not tried
// again. A lease that stands by mistake makes others wait for three seconds at most, and
// during an outage nobody asks for leases.
func (s *store) giveUp(ctx context.Context, leases []Lease, err error) {
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "dial" || errors.Is(err, redisconn.ErrBusy) {
		return
	}
	s.aborts.begin(func() {
		if s.conn.WaitUp(s.closing, s.key(leases[0].ID), s.lease) {
			s.abort(context.WithoutCancel(ctx), leases)
		}
	})
}

// aborts are the goroutines of giveUp. close waits for them, and none begins after that:
// what they would have given back ends by itself.
type aborts struct {
	mu      sync.Mutex // guards closed, and that running grows only before it
	closed  bool
	running sync.WaitGroup
}

func (a *aborts) begin(abort func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.running.Go(abort)
	}
}

func (a *aborts) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}
