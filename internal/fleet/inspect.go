package fleet

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
)

// An Inspection is what is known of an id, see [Group.Inspect]. It holds no token: with
// one, a lease could be taken from its holder.
type Inspection struct {
	Key   string        // of the value in Redis; "" without Redis
	Value Value         // empty without Redis
	Left  time.Duration // until Redis drops the value; 0: there is none

	Leased    bool          // somebody rebuilds the value
	LeaseLeft time.Duration // unless it is renewed; 0 without Redis
	Awaited   bool          // another process waits for it

	// Holds are those of writers and of ReplicaLag, each with the time for which it keeps
	// the key closed at the most, the longest first.
	Holds []time.Duration

	Foreign     bool // a key of another type stands where the value or the lease belongs
	Outage      bool // Redis is not asked at present
	Unconfirmed bool // an invalidation of this process waits for Redis to confirm it
}

// Inspect looks up an id, for somebody who looks for a fault. It changes nothing and
// counts nothing. It takes one round trip, or as long as Get does. The error matches
// ErrUnavailable if Redis did not answer; what this process knows of the id is there all
// the same.
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

// inspect uses no command that the scripts do not use, so that a user of Redis who may
// run those may run it.
func (s *store) inspect(ctx context.Context, id string) (Inspection, error) {
	found := Inspection{Key: s.key(id), Outage: s.down(id), Unconfirmed: s.pending.blocks(id)}
	if found.Outage {
		return found, s.unavailable(ctx, "inspect", []string{id}, redisconn.ErrOutage)
	}
	var value *redis.StringCmd
	var left, leaseLeft *redis.DurationCmd
	var lease *redis.MapStringStringCmd
	var now *redis.TimeCmd
	_, err := redisconn.Do(ctx, s.conn, s.space.RedisTimeout, func(ctx context.Context) (any, error) {
		cmds, _ := s.conn.Client().Pipelined(ctx, func(p redis.Pipeliner) error { // each has its own error
			value = p.GetRange(ctx, found.Key, 0, int64(s.space.MaxBytes))
			left = p.PTTL(ctx, found.Key)
			lease = p.HGetAll(ctx, s.names.Lease(id))
			leaseLeft = p.PTTL(ctx, s.names.Lease(id))
			now = p.Time(ctx)
			return nil
		})
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return nil, err
			}
		}
		return nil, nil
	}, nil)
	if err != nil {
		return found, s.unavailable(ctx, "inspect", []string{id}, err)
	}
	found.Foreign = value.Err() != nil || lease.Err() != nil
	if data, err := value.Bytes(); err == nil {
		found.Value = s.value(data, nil)
	}
	found.Left = max(0, left.Val())
	found.ofLease(lease.Val(), max(0, leaseLeft.Val()), now.Val())
	return found, nil
}

// ofLease reads the fields of a lease, see begin.lua and invalidate.lua.
func (i *Inspection) ofLease(fields map[string]string, left time.Duration, now time.Time) {
	for field, text := range fields {
		ends, err := strconv.ParseInt(text, 10, 64)
		if hold := time.UnixMilli(ends).Sub(now); strings.HasPrefix(field, "h:") && err == nil && hold > 0 {
			i.Holds = append(i.Holds, hold)
		}
	}
	slices.Sort(i.Holds)
	slices.Reverse(i.Holds)
	_, i.Leased = fields["t"]
	if i.Leased {
		i.LeaseLeft = left
	}
	_, i.Awaited = fields["w"]
}
