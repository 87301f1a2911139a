package fleet

import (
	"context"
	"crypto/rand"
	"sync"
	"time"
)

// A Value is the value of an id in Redis.
type Value struct {
	Data    []byte // empty if there is none
	TooLong bool   // the value is longer than Keyspace.MaxBytes; Data is its beginning
	Err     error  // Redis did not reply, or was not called: whether there is a value is unknown
}

// An Ask is a request for the lease of an id.
type Ask struct {
	ID string
	// Seen is the value that the caller has found in Redis and cannot use, so that Begin
	// does not return it again. Its first 64 bytes are enough.
	Seen []byte
}

// A Lease is the right to publish a value of ID. It ends when it is committed,
// aborted or invalidated, or Options.Lease after it was last renewed.
type Lease struct{ ID, token string }

// A Verdict is the answer to an Ask.
type Verdict int

const (
	Unknown Verdict = iota // Redis did not reply, was not called, or has a key of another type
	Granted                // the caller has the lease
	Found                  // another caller has published a value meanwhile
	Busy                   // another caller has the lease
	Held                   // a writer holds the key: load, and do not publish
)

// A Grant is a Verdict with its details.
type Grant struct {
	Verdict   Verdict       // says which of the other fields are set
	Lease     Lease         // Granted
	Stands    bool          // Granted: Redis still had the value of Ask.Seen
	Value     Value         // Found
	Remaining time.Duration // Busy: until the lease ends, unless it is renewed; Held: until the first hold ends, at most
}

// A Publication is a value to publish, and how long Redis keeps it.
type Publication struct {
	Lease Lease         // of Begin or Claim; for Set its ID is enough
	Data  []byte        // empty: publish that there is no value, and drop the one in Redis
	TTL   time.Duration // how long Redis keeps the value; under 1 ms it is not published
}

// An Outcome is the result of a Publication.
type Outcome struct {
	Published bool  // false without Err: an invalidation has overtaken the load since Begin
	Err       error // whether the value was published is unknown
}

// Get reads the values of ids, in one round trip per node. It returns within
// Keyspace.RedisTimeout, and when ctx ends; a cancellation of ctx may go unnoticed for
// that long.
func (g *Group) Get(ctx context.Context, ids ...string) []Value {
	values := g.leases.get(ctx, ids)
	for i := range values {
		g.awaitEpoch(ctx, &values[i])
	}
	return values
}

// awaitEpoch waits until the clears by which a value is judged are known, and makes the value
// unknown if they cannot be read. It counts unknown values.
func (g *Group) awaitEpoch(ctx context.Context, value *Value) {
	if value.Err == nil && len(value.Data) > 0 {
		if err := g.epoch.sure(ctx); err != nil {
			*value = Value{Err: err}
		}
	}
	if value.Err != nil {
		g.counts.unknown.Add(1)
	}
}

// GetOne is Get for one id, without a slice.
func (g *Group) GetOne(ctx context.Context, id string) Value {
	if g.redis == nil {
		return Value{}
	}
	value := g.redis.getOne(ctx, id)
	g.awaitEpoch(ctx, &value)
	return value
}

// Begin requests leases, in one round trip per node. The caller has to commit or abort
// each lease that is granted.
func (g *Group) Begin(ctx context.Context, asks ...Ask) []Grant {
	grants := g.leases.begin(ctx, asks)
	for i := range grants {
		grant := &grants[i]
		if grant.Verdict == Unknown {
			g.counts.unknown.Add(1)
			continue
		}
		// A load that begins now needs the epoch as well.
		if err := g.epoch.sure(ctx); err != nil && grant.Verdict == Found {
			*grant = Grant{}
			g.counts.unknown.Add(1)
		}
	}
	return grants
}

// Commit publishes the values whose leases are still held, in one round trip per node,
// and ends the leases.
func (g *Group) Commit(ctx context.Context, values ...Publication) []Outcome {
	outcomes := g.leases.commit(ctx, values)
	for _, outcome := range outcomes {
		switch {
		case outcome.Err != nil:
			g.counts.unknown.Add(1)
		case !outcome.Published:
			g.counts.refused.Add(1)
		}
	}
	return outcomes
}

// Abort gives leases back unused.
func (g *Group) Abort(ctx context.Context, leases ...Lease) { g.leases.abort(ctx, leases) }

// KeepRenewing renews leases every third of Options.Lease, until the Renewal is stopped.
// It ignores a renewal that fails: the next may succeed, and if none does, the commit
// stores nothing. A renewal that arrives after the commit finds no lease.
func (g *Group) KeepRenewing(ctx context.Context, leases []Lease) *Renewal {
	r := &Renewal{group: g, ctx: ctx, leases: leases, every: g.o.Lease / 3}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(r.every, r.renew)
	return r
}

// A Renewal renews leases until it is stopped.
type Renewal struct {
	group  *Group
	ctx    context.Context
	leases []Lease
	every  time.Duration

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	stopped bool
}

func (r *Renewal) renew() {
	r.group.leases.renew(r.ctx, r.leases)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.timer.Reset(r.every)
	}
}

// Stop ends the renewals; one that is under way goes on. On a nil Renewal it does nothing.
func (r *Renewal) Stop() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}

// newToken returns a name for one acquisition: 128 random bits, never used again.
func newToken() string { return rand.Text() }
