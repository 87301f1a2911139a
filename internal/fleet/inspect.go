package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
)

// An Inspection describes the state of an id, see [Group.Inspect]. It has no token, with
// which a lease could be taken from its holder.
type Inspection struct {
	Key   string        // of the value in Redis; "" without Redis
	Value Value         // empty without Redis
	Left  time.Duration // until Redis drops the value; 0: there is none

	Leased    bool          // a caller has the lease, and rebuilds the value
	LeaseLeft time.Duration // until the lease ends unless it is renewed; 0 without Redis
	Awaited   bool          // another caller waits for the lease

	// Holds has, for each hold of a writer or of ReplicaLag, the longest time that it can
	// still last, the longest first.
	Holds []time.Duration

	Foreign     bool // the key of the value or the lease is of another type
	Outage      bool // Redis is not used at present, because it does not reply
	Unconfirmed bool // an invalidation of this process waits for Redis to confirm it
}

// Inspect returns the state of an id, for debugging. It changes nothing and counts
// nothing. It takes one round trip, and at most as long as Get. If Redis does not reply,
// the error matches ErrUnavailable, and Inspect still returns what this process knows of
// the id.
func (g *Group) Inspect(ctx context.Context, id string) (Inspection, error) {
	if g.redis == nil {
		return Inspection{Leased: g.leases.(*processLeases).leased(id)}, nil
	}
	return g.redis.inspect(ctx, id)
}

func (p *processLeases) leased(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tokens[id]) > 0
}

// inspect runs inspect.lua, which uses only commands of the other scripts, so that it needs no
// further rights in Redis.
func (s *store) inspect(ctx context.Context, id string) (Inspection, error) {
	found := Inspection{Key: s.key(id), Outage: s.down(id), Unconfirmed: s.pending.blocks(id)}
	call := redisconn.Call{Keys: s.keys(id), Args: []any{s.space.MaxBytes}}
	reply, err := s.conn.EvalOne(ctx, inspectScript, call, nil).List()
	if err == nil && len(reply) < 4 {
		err = unexpected(reply)
	}
	if err != nil {
		return found, s.unavailable(ctx, "inspect", []string{id}, err)
	}
	ms := func(i int) time.Duration {
		n, _ := reply[i].(int64)
		return time.Duration(n) * time.Millisecond
	}
	data, isValue := reply[0].(string)
	found.Value = s.value([]byte(data), nil)
	found.Foreign = !isValue || reply[2] == nil
	found.Left = max(0, ms(1))
	found.Leased, found.LeaseLeft = ms(2) > 0, max(0, ms(2))
	found.Awaited = ms(3) > 0
	for i := range reply[4:] {
		found.Holds = append(found.Holds, ms(4+i))
	}
	slices.Sort(found.Holds)
	slices.Reverse(found.Holds)
	return found, nil
}
