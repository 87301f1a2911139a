// Package mutexrebuild rebuilds a missing value once in a fleet of processes: a
// singleflight in each process together with a mutex in Redis, taken as SET NX
// would take it.
//
//	data, err := group.Rebuild(ctx, "42", func(ctx context.Context) ([]byte, time.Duration, error) {
//		return loadFromDatabase(ctx, 42), 10 * time.Minute, nil
//	})
//
// It works on bytes and knows nothing of what they mean. [Group.Rebuild] is the
// whole of it for use alone; package cache is made of the steps underneath, most of
// which take many ids in each call.
//
// # The lease
//
// The lease is two things in one: the mutex that keeps others from rebuilding
// the same key, and the right to publish what was built. An invalidation takes
// it away. So a value that was read from the source before the invalidation, by
// however slow a reader, cannot be published after it; its builder finds the
// lease gone, and loads again. The idea is from Nishtala et al., "Scaling
// Memcache at Facebook" (NSDI 2013), section 3.2.1.
//
//	Begin   asks for the lease, and for a value that somebody has published meanwhile
//	Renew   prolongs it while the load runs
//	Commit  publishes, if the lease still stands
//	Abort   gives it back
//
// A lease belongs to one acquisition, not to a process: two rebuilds of one
// process, one before and one after an invalidation, are told apart. It ends by
// itself when its process dies. If a lease is lost, two loads may run; only the one
// whose lease stands publishes.
//
// # The hold
//
// A writer that changes a row holds its keys meanwhile, see [Group.Hold] (other
// caches call this a tombstone): readers load, and nobody publishes.
//
// # Without Redis
//
// A Redis that does not answer three reads in a row is in an outage, for all groups
// of its client and RedisTimeout: one probe at a time asks it until it answers, every
// other operation fails at once, and every process loads for itself.
//
// An invalidation that Redis did not confirm is an error, and is tried again until
// Redis confirms it. Meanwhile this process neither reads the id from Redis nor
// publishes it there. It keeps 10,000 of them; where there are more, it leaves
// Redis alone for every id until those are confirmed.
//
// A group that was made without a client keeps its leases in the process. Each ask is
// granted, and an invalidation takes the leases of its id away.
//
// # What is not promised
//
// An invalidation that Redis acknowledged and then lost in a failover leaves the
// old value until its TTL, unless Options.WaitReplicas is set. So does one that
// Redis did not confirm and that was dropped, because the process ended, or there
// was no room for it; and until it is confirmed, other processes may find the old
// value. A writer that never invalidates is never noticed. And a lease does not
// exclude two loads: another begins when an invalidation takes the lease away, when its
// holder stands still for longer than Options.Lease, and when a caller has waited for
// Options.WaitBudget.
package mutexrebuild

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

var (
	// ErrClosed reports that the group has been closed.
	ErrClosed = errors.New("mutexrebuild: closed")
	// ErrLoadTimeout reports that a load took longer than Options.LoadTimeout.
	ErrLoadTimeout = errors.New("mutexrebuild: load timed out")
	// ErrReentrant reports that a load asked for the key that it loads. It
	// would have waited for itself.
	ErrReentrant = errors.New("mutexrebuild: a load asked for its own key")
	// ErrUnavailable reports that Redis did not confirm a change. Whether it took
	// effect is unknown.
	ErrUnavailable = errors.New("mutexrebuild: redis unavailable")
	// ErrGoexit reports that a load called runtime.Goexit.
	ErrGoexit = contain.ErrGoexit
)

// PanicError is what a load that panicked returns to those who waited for it.
type PanicError = contain.PanicError

// Messages tells the owner of a Group what other processes did. The functions run
// on one goroutine, in order, except Cleared, and must not block. Each may be nil.
type Messages struct {
	// Invalidated is called when another process has invalidated or set id.
	Invalidated func(id string)
	// Missed is called when invalidations may have been missed.
	Missed func()
	// Cleared is called when the epoch has risen: after a Clear of this group, before it
	// returns, and when another process has cleared. It may be called on any goroutine.
	Cleared func()
	// Live is called when messages arrive reliably from now on, and when they cease
	// to. Before its first call they do not.
	Live func(live bool)
}

// A Group rebuilds the values of one keyspace. It may be used concurrently. Make
// it with New.
type Group struct {
	o       Options
	space   Keyspace
	leases  leases
	epoch   *epoch
	redis   *store // the same, nil without Redis
	rdb     redis.UniversalClient
	msgs    *subscription
	flights *flight.Group[[]byte] // of Rebuild
	loads   sync.WaitGroup        // of flights; a load that was left behind may outlast its flight
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
	g := &Group{o: o, space: space, flights: flight.NewGroup[[]byte](o.ErrorHold), log: logonce.New(space.Logger.With("cache", space.Name), logPrefix)}
	g.closing, g.close = context.WithCancel(context.Background())
	g.epoch = newEpoch(g.closing, space.ReplicaLag, m.Cleared)
	if rdb == nil {
		adviseWithoutRedis(space, o, g.log)
		g.leases = &processLeases{tokens: map[string][]string{}}
		return g, nil
	}
	redisconn.Advise(rdb, g.log)
	g.rdb = rdb
	g.redis = newStore(g.closing, rdb, space, o, g.epoch, g.log)
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

// Close ends the flights of Rebuild, which get ErrClosed, and waits until their
// loads have ended, but not longer than Options.LoadTimeout for a load that ignores
// its context. What Redis has not confirmed is tried once more, for about a second
// if it answers, and then dropped. Close may be called more than once.
func (g *Group) Close() {
	g.close()
	<-g.flights.Close()
	g.waitForLoads()
	if g.redis != nil {
		g.closeRedis()
	}
}

// waitForLoads waits for loads whose flights have ended. No other load begins any more.
func (g *Group) waitForLoads() {
	ended := make(chan struct{})
	go func() {
		g.loads.Wait()
		close(ended)
	}()
	patience := time.NewTimer(g.o.LoadTimeout)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
	}
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
