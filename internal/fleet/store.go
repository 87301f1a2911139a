package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// maxWaiting is how many operations of Do may run for one group. A healthy server has far
// fewer open, even in a cold start of as many keys as may wait in the breaker; a server
// that hangs holds no more.
const maxWaiting = 16_384

// A store runs the lease protocol with Redis. Each method takes one round trip per
// node, and another if the server has lost its scripts; set takes two, and invalidate
// one for every 128 ids. Each returns within the operation's time, and at once during
// an outage.
type store struct {
	conn     *redisconn.Conn
	unnamed  func() // removes the keyspace's name from log lines about outages
	space    Keyspace
	names    keys.Cache
	lease    time.Duration
	waitFor  int // Options.WaitReplicas
	epoch    *epoch
	pending  *pending        // invalidations that Redis has not confirmed
	aborts   wait.Tasks      // of leases that may have been granted, see giveUp
	closing  context.Context // ends with the group
	channel  string
	self     string                // the sender in this group's messages
	survived atomic.Pointer[error] // the latest error of Redis that no caller got to see
	log      *logonce.Log
	foreign  atomic.Uint64 // see Stats
}

func newStore(closing context.Context, rdb redis.UniversalClient, space Keyspace, o Options, e *epoch, limit int, log *logonce.Log) *store {
	conn := redisconn.Open(rdb, space.RedisTimeout, maxWaiting, logonce.New(space.Logger, logPrefix))
	names := keys.OfCache(space.Name).Under(space.Prefix)
	s := &store{
		conn: conn, unnamed: conn.UsedBy(space.Name), space: space, names: names, lease: o.Lease, waitFor: o.WaitReplicas,
		epoch: e, closing: closing, channel: names.Messages(), self: newToken(), log: log,
	}
	s.pending = newPending(closing, log, limit, s)
	e.read = s.readEpoch
	return s
}

// close ends the store's background work. It waits for invalidations that Redis has
// not confirmed, for not much longer than a second.
func (s *store) close() {
	s.pending.close()
	<-s.aborts.Close()
	s.epoch.close()
	s.unnamed()
	s.conn.Close()
}

// barred returns why Redis must not be used for id, nil if it may be.
func (s *store) barred(id string) error {
	switch {
	case s.down(id):
		return redisconn.ErrOutage
	case s.pending.blocks(id):
		return errUnconfirmed
	}
	return nil
}

// down reports whether Redis, or in a cluster the node that has id, has an outage.
func (s *store) down(id string) bool { return s.outageOf(id).Down() }

// outageOf returns the Outage of the node that has id. Each hit calls it, so it makes the key only
// for a cluster.
func (s *store) outageOf(id string) *redisconn.Outage {
	if o := s.conn.Outage(); o != nil {
		return o
	}
	return s.conn.OutageOf(s.key(id))
}

// nodeOf returns the Outage of the node that has a target.
func (s *store) nodeOf(t target) *redisconn.Outage {
	if t.clear {
		return s.conn.OutageOf(s.names.Clears())
	}
	return s.outageOf(t.id)
}

func (s *store) key(id string) string { return s.names.Value(s.space.Schema, id) }

// keys returns the keys of most scripts: value and lease.
func (s *store) keys(id string) []string { return []string{s.key(id), s.names.Lease(id)} }

// allKeys returns the keys of a script that ends the value of id: value, lease, and the
// values of the schemas before and after this one, which processes of another release may
// be using.
func (s *store) allKeys(id string) []string {
	all := append(s.keys(id), s.names.Value(s.space.Schema+1, id))
	if s.space.Schema > 0 {
		all = append(all, s.names.Value(s.space.Schema-1, id))
	}
	return all
}

// foundForeign notes that a script has left n keys of another type alone: another
// application uses names that belong to this cache. Until that ends, id is not cached.
func (s *store) foundForeign(id string, n int64) {
	if n > 0 {
		s.foreign.Add(uint64(n))
		s.log.Error("a key is of another type than a value or a lease; it is not touched and not cached",
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

// getOne reads the value of one id. Every hit takes this path.
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

// allowed returns the indices of the n ids for which Redis may be used. It calls refuse with
// the index and error of each other id.
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
	part := make([]Ask, len(asked))
	for n, i := range asked {
		part[n] = asks[i]
	}
	got, errs := s.take(ctx, ask, part)
	for n, i := range asked {
		grants[i] = got[n]
	}
	s.giveUpUnknown(ctx, got, errs)
	return grants
}

// The ways in which begin.lua acquires a lease, see there.
const (
	ask  = "ask"
	keep = "keep" // takes the lease from its holder
	drop = "drop" // takes the lease from its holder
)

// take runs begin.lua, in the way how. It returns an error for each ask without a reply: the
// lease in its Grant may have been granted.
func (s *store) take(ctx context.Context, how string, asks []Ask) (grants []Grant, errs []error) {
	keys, late := s.allKeys, (func(int, redisconn.Reply))(nil)
	grants, errs = make([]Grant, len(asks)), make([]error, len(asks))
	leases, calls := make([]Lease, len(asks)), make([]redisconn.Call, len(asks))
	if how == ask {
		keys, late = s.keys, func(i int, _ redisconn.Reply) { s.giveUp(ctx, leases[i:i+1], nil) }
	}
	for i, a := range asks {
		leases[i] = Lease{a.ID, newToken()}
		calls[i] = redisconn.Call{Keys: keys(a.ID), Args: []any{leases[i].token, s.lease.Milliseconds(), how, head(a.Seen), s.space.MaxBytes}}
	}
	for i, reply := range s.conn.Eval(ctx, beginScript, calls, late) {
		var foreign int64
		grants[i], foreign, errs[i] = parseGrant(reply)
		grants[i].Lease = leases[i]
		s.foundForeign(leases[i].ID, foreign)
	}
	return grants, errs
}

// headBytes is the length of the beginning by which begin.lua recognizes a value.
const headBytes = 64

func head(data []byte) []byte { return data[:min(len(data), headBytes)] }

// errForeign reports that the key of a value, a lease or the clears is of another type.
var errForeign = errors.New("levee: a key of another type")

// parseGrant returns the grant in a reply of begin.lua, and how many keys are of another type.
// After an error the lease may have been granted.
func parseGrant(r redisconn.Reply) (grant Grant, foreign int64, err error) {
	reply, err := r.List()
	if err != nil {
		return Grant{}, 0, err
	}
	if len(reply) == 2 {
		data, isData := reply[1].(string)
		n, isNumber := reply[1].(int64)
		left := time.Duration(n) * time.Millisecond
		switch what := reply[0]; {
		case what == "granted" && isNumber:
			return Grant{Verdict: Granted}, n, nil
		case what == "stands" && isNumber:
			return Grant{Verdict: Granted, Stands: true}, n, nil
		case what == "foreign" && isNumber:
			return Grant{}, n, nil
		case what == "wait" && isNumber:
			return Grant{Verdict: Busy, Remaining: left}, 0, nil
		case what == "held" && isNumber:
			return Grant{Verdict: Held, Remaining: left}, 0, nil
		case (what == "value" || what == "long") && isData:
			return Grant{Verdict: Found, Value: Value{Data: []byte(data), TooLong: what == "long"}}, 0, nil
		}
	}
	return Grant{}, 0, unexpected(reply)
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

// run runs a script and ignores its replies, except that it logs the first error.
func (s *store) run(ctx context.Context, script *redisconn.Script, calls []redisconn.Call) {
	s.logSurvived(ctx, redisconn.FirstError(s.conn.Eval(ctx, script, calls, nil)))
}

func (s *store) commit(ctx context.Context, values []Publication) []Outcome {
	outcomes := make([]Outcome, len(values))
	asked := make([]int, 0, len(values))
	// begin refuses also during an outage, so that no goroutine waits to give up a lease
	// that was never requested. Here the lease was granted: during an outage the operation
	// fails at once, and the lease is given up when Redis replies again.
	var blocked []Lease // they may still be held and should not
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
		calls[n] = s.publication(values[i], wakeUp)
	}
	errs := make([]error, len(values))
	for n, reply := range s.conn.Eval(ctx, commitScript, calls, nil) {
		i := asked[n]
		code, err := reply.Int()
		errs[i] = err
		outcomes[i] = Outcome{Published: code == published, Err: err}
		if code == foreignValue {
			s.foundForeign(values[i].Lease.ID, 1)
			outcomes[i].Err = errForeign
		}
	}
	s.giveUpFailed(ctx, errs, func(i int) Lease { return values[i].Lease })
	return outcomes
}

// publication returns the call of commit.lua for v, with a message of a kind.
func (s *store) publication(v Publication, kind byte) redisconn.Call {
	return redisconn.Call{Keys: s.keys(v.Lease.ID),
		Args: []any{v.Lease.token, v.Data, inRedis(v.TTL), s.channel, s.message(kind, v.Lease.ID)}}
}

// The replies of commit.lua other than 0.
const (
	published    = 1
	foreignValue = 2
	notTaken     = 3
)

// inRedis returns the life of a value in Redis, in milliseconds.
func inRedis(ttl time.Duration) int64 { return min(ttl, maxLife).Milliseconds() }
