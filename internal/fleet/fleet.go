// Package fleet is what the processes of a fleet have together in Redis: values, the leases
// under which they are published, holds of writers, the epoch of a cache, and messages. It is
// the engine of packages mutexrebuild and cache. It works on bytes and knows nothing of what
// they mean, and most of its calls take many ids.
//
//	Begin         asks for the lease, and for a value that somebody has published meanwhile
//	KeepRenewing  prolongs it while the load runs
//	Commit        publishes, if the lease still stands
//	Abort         gives it back
//
// Package mutexrebuild says what leases and holds are, what happens without Redis, and what
// is not promised. Errors and log lines are in its name.
//
// A group that was made without a client keeps its leases in the process. Each ask is
// granted, and an invalidation takes the leases of its id away.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

// ErrUnavailable reports that Redis did not confirm a change. Whether it took
// effect is unknown.
var ErrUnavailable = errors.New("mutexrebuild: redis unavailable")

// errClosed reports that the group has been closed.
var errClosed = errors.New("mutexrebuild: closed")

// Messages tells the owner of a Group what other processes did. The functions run
// on one goroutine, in order, except Cleared, and must not block. Each may be nil.
type Messages struct {
	// Invalidated is called when another process has invalidated or set id.
	Invalidated func(id string)
	// Missed is called when invalidations may have been missed.
	Missed func()
	// Cleared is called when the epoch has risen: after a Clear of this group, before it
	// returns, and when another process has cleared. It may be called on any goroutine.
	// Without it the owner does not ask [Group.Cleared] of values, so that a Clear ends none.
	Cleared func()
	// Live is called when messages arrive reliably from now on, and when they cease
	// to. Before its first call they do not.
	Live func(live bool)
}

// A Group has the values of one keyspace. It may be used concurrently. Make
// it with New.
type Group struct {
	o       Options
	space   Keyspace
	leases  leases
	epoch   *epoch
	redis   *store // leases, if they are in Redis; nil without
	rdb     redis.UniversalClient
	msgs    *subscription
	log     *logonce.Log
	closing context.Context // ends with Close
	close   context.CancelFunc
	counts  counters

	closeRedis func() // once
}

// leases is where the leases of a group stand: in Redis or, without it, in this
// process. The slices that a method returns are as long as the one that it takes.
type leases interface {
	get(ctx context.Context, ids []string) []Value
	begin(ctx context.Context, asks []Ask) []Grant
	renew(ctx context.Context, leases []Lease)
	commit(ctx context.Context, values []Publication) []Outcome
	abort(ctx context.Context, leases []Lease)
	set(ctx context.Context, values []Publication) error
	claim(ctx context.Context, ids []string) []Grant
	replace(ctx context.Context, values []Publication) []Outcome
	invalidate(ctx context.Context, ids []string, h holds) error
}

// New makes a group. Groups of the same name in several processes work together.
// An untyped nil rdb makes a group that works within this process only. It returns
// an error that names the field, or the option of the client, that it cannot use.
func New(rdb redis.UniversalClient, space Keyspace, o Options, m Messages) (*Group, error) {
	space, err := space.withDefaults()
	if err == nil {
		o, err = o.WithDefaults()
	}
	if err == nil {
		err = checkClient(rdb, o)
	}
	if err != nil {
		return nil, fmt.Errorf("mutexrebuild: %w", err)
	}
	g := &Group{o: o, space: space, log: logonce.New(space.Logger.With("cache", space.Name), logPrefix)}
	g.closing, g.close = context.WithCancel(context.Background())
	g.epoch = newEpoch(g.closing, space.ReplicaLag, m.Cleared)
	if rdb == nil {
		adviseWithoutRedis(space, o, g.log)
		g.leases = &processLeases{tokens: map[string][]string{}}
		return g, nil
	}
	redisconn.Advise(rdb, g.log)
	g.rdb = rdb
	limit := maxPending
	if m.Cleared == nil { // a Clear in their place would end nothing
		limit = math.MaxInt
	}
	g.redis = newStore(g.closing, rdb, space, o, g.epoch, limit, g.log)
	g.leases = g.redis
	g.msgs = subscribe(rdb, g.redis, m, g.log)
	g.closeRedis = sync.OnceFunc(func() {
		g.msgs.end()
		g.redis.close()
	})
	g.epoch.begin()
	return g, nil
}

func checkClient(rdb redis.UniversalClient, o Options) error {
	if rdb == nil {
		return nil
	}
	if err := redisconn.CheckClient(rdb, redisconn.Reads); err != nil {
		return err
	}
	if _, ok := rdb.(*redis.Client); o.WaitReplicas > 0 && !ok {
		return fmt.Errorf("WaitReplicas needs a *redis.Client, of one master, got a %T: WAIT has no key to find its node by", rdb)
	}
	return nil
}

// adviseWithoutRedis logs which promises of the options need a Redis. They are no errors:
// a test without Redis may have the options of production.
func adviseWithoutRedis(space Keyspace, o Options, log *logonce.Log) {
	var idle []string
	if space.ReplicaLag > 0 {
		idle = append(idle, "ReplicaLag")
	}
	if o.WaitReplicas > 0 {
		idle = append(idle, "WaitReplicas")
	}
	if len(idle) > 0 {
		log.Warn("without redis these options protect no write", "options", strings.Join(idle, ", "))
	}
}

// Close ends what the group does in the background. What Redis has not confirmed is tried
// once more, for about a second if it answers, and then dropped. Close may be called more
// than once.
func (g *Group) Close() {
	g.close()
	if g.redis != nil {
		g.closeRedis()
	}
}

// RedisTimeout is how long an operation may take, 0 without Redis.
func (g *Group) RedisTimeout() time.Duration {
	if g.redis == nil {
		return 0
	}
	return g.redis.space.RedisTimeout
}

// Shared reports whether the group has a Redis, and so works with those of other
// processes.
func (g *Group) Shared() bool { return g.redis != nil }

// Down reports whether there is no Redis to ask for id: the group was made without one,
// or there is an outage.
func (g *Group) Down(id string) bool { return g.redis == nil || g.redis.down(id) }

// Live reports whether messages of other processes arrive reliably. Without Redis
// there are none to miss.
func (g *Group) Live() bool { return g.redis == nil || g.msgs.link.Live() && g.epoch.heard.Load() }
