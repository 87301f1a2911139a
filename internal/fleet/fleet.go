// Package fleet stores the state that the processes of a fleet share in Redis: values, the
// leases under which they are published, holds of writers, the epoch of a cache, and messages.
// It is the engine of packages mutexrebuild and cache. Values are bytes to it, except that
// Expire marks those with the header of package cache. Most of its calls take many ids.
//
//	Begin         acquires the lease, or returns a value that another caller has published meanwhile
//	KeepRenewing  renews the lease while the load runs
//	Commit        publishes, if the lease is still held
//	Abort         gives the lease back
//
// Package mutexrebuild says what leases and holds are, what happens without Redis, and what
// is not promised. Errors and log lines use its name.
//
// A group that was made without a client has its leases in the process. Begin grants every
// lease, and an invalidation ends the leases of its ids.
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

// Messages has the functions that a Group calls when other processes change ids. Invalidated and
// Missed run on one goroutine, in the order of the messages. None may block. Each may be nil.
type Messages struct {
	// Invalidated is called when another process has invalidated or set id.
	Invalidated func(id string)
	// Missed is called when invalidations may have been missed, before Live is called with true.
	Missed func()
	// Cleared is called when this process learns of a Clear: of its own before Clear
	// returns, and of other processes' Clears. It may be called on any goroutine. nil means
	// that the owner does not call [Group.Cleared] for values, so that a Clear ends none.
	Cleared func()
	// Live is called with true when messages arrive reliably and all clears are known, and with false
	// when that ends, as [Group.Live] reports. Before the first call it is false. Live must not call the
	// Group. It may be called on any goroutine, but not on two at a time.
	Live func(live bool)
}

// A Group reads and changes the values of one keyspace. It may be used concurrently.
// Make it with New.
type Group struct {
	o       Options
	space   Keyspace
	leases  leases
	epoch   *epoch
	redis   *store // the same as leases; nil without Redis
	rdb     redis.UniversalClient
	msgs    *subscription
	log     *logonce.Log
	closing context.Context // ends with Close
	close   context.CancelFunc
	counts  counters

	closeRedis func() // does its work once
}

// leases stores the leases of a group: in Redis or, without it, in this process. The
// slices that a method returns are as long as its argument.
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

// New returns a group. Groups with the same name in several processes work together.
// With an untyped nil rdb the group works only within this process. The error names the
// field, or the option of the client, that New cannot use.
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
	g.epoch = newEpoch(g.closing, space.ReplicaLag, m)
	if rdb == nil {
		adviseWithoutRedis(space, o, g.log)
		g.leases = &processLeases{tokens: map[string][]string{}}
		return g, nil
	}
	redisconn.Advise(rdb, g.log)
	g.rdb = rdb
	limit := maxPending
	if m.Cleared == nil { // a Clear in place of pending invalidations would end nothing
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

// adviseWithoutRedis logs which options have no effect without Redis. They are no errors,
// because a test without Redis may use the options of production.
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

// Close ends the group's background work. It tries invalidations that Redis has not confirmed
// once more, for about a second if Redis replies, and then drops them. Close may be called
// more than once.
func (g *Group) Close() {
	g.close()
	if g.redis != nil {
		g.closeRedis()
	}
}

// RedisTimeout returns how long an operation may take, 0 without Redis.
func (g *Group) RedisTimeout() time.Duration {
	if g.redis == nil {
		return 0
	}
	return g.redis.space.RedisTimeout
}

// Shared reports whether the group has a Redis, and so works together with the groups of
// other processes.
func (g *Group) Shared() bool { return g.redis != nil }

// Down reports whether the group cannot use Redis for id: it was made without one, or the
// node of id has an outage.
func (g *Group) Down(id string) bool { return g.redis == nil || g.redis.down(id) }

// Live reports whether messages of other processes arrive reliably, and all clears are
// known. Without Redis it returns true.
func (g *Group) Live() bool { return g.redis == nil || g.msgs.link.Live() && g.epoch.heard.Load() }
