// Package mutexrebuild rebuilds a missing value once in a fleet of processes: a
// singleflight in each process together with a mutex in Redis, taken as SET NX
// would take it.
//
//	data, err := group.Rebuild(ctx, "42", func(ctx context.Context) ([]byte, time.Duration, error) {
//		return loadFromDatabase(ctx, 42), 10 * time.Minute, nil
//	})
//
// It works on bytes and does not know what they mean. Package cache is made of the same
// parts; it adds typed values, calls for many keys, and old values while a load fails.
//
// # The lease
//
// The lease is two things in one: the mutex that keeps others from rebuilding
// the same key, and the right to publish the result. An invalidation takes the
// lease away. So a value that was read from the source before the invalidation,
// however slowly, cannot be published after it; the rebuild finds the lease
// gone, and loads again. The idea is from Nishtala et al., "Scaling
// Memcache at Facebook" (NSDI 2013), section 3.2.1.
//
// A lease belongs to one acquisition, not to a process: two rebuilds of one
// process, one before and one after an invalidation, are told apart. It is renewed while the
// load runs, and ends by itself when its process dies. If a lease is lost, two loads may run;
// only the one whose lease is valid publishes.
//
// # The hold
//
// A writer holds the keys of a row while it changes the row, see [Group.Hold] (other
// caches call this a tombstone): readers load, and nobody publishes.
//
// # Without Redis
//
// An outage begins when Redis does not answer three operations in a row. It applies to all
// groups with the same client and RedisTimeout: levee sends one probe at a time until Redis
// answers, every other operation fails at once, and every process loads for itself.
//
// An invalidation that Redis did not confirm is an error, and is tried again until
// Redis confirms it. Meanwhile this process neither reads the id from Redis nor
// publishes it there. No invalidation is forgotten: an id takes some 200 bytes until then,
// however often it is invalidated.
//
// A group that was made without a client keeps its leases in the process and stores nothing:
// callers that come at the same moment share a load, and the next one loads again.
//
// # Not guaranteed
//
// An invalidation that Redis acknowledged and then lost in a failover leaves the
// old value until its TTL, unless Options.WaitReplicas is set. So does one that
// Redis did not confirm before the process ended; and until it is confirmed, other
// processes may find the old value. A writer that never invalidates is never noticed. And a lease does not
// exclude two loads: another begins when an invalidation takes the lease away, when its
// holder is paused for longer than Options.Lease, and when a caller has waited for
// Options.WaitBudget.
package mutexrebuild

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/rebuild"
	"github.com/levee-go/levee/internal/wait"
)

var (
	// ErrClosed reports that the group has been closed.
	ErrClosed = errors.New("mutexrebuild: closed")
	// ErrLoadTimeout reports that a load took longer than Options.LoadTimeout.
	ErrLoadTimeout = errors.New("mutexrebuild: load timed out")
	// ErrReentrant reports that a load has read the key that it loads. It
	// would have waited for itself.
	ErrReentrant = errors.New("mutexrebuild: a load has read its own key")
	// ErrUnavailable reports that Redis did not confirm a change. Whether it took
	// effect is unknown.
	ErrUnavailable = fleet.ErrUnavailable
)

// A PanicError is returned to the callers that wait for a load that panicked or called
// runtime.Goexit.
type PanicError = contain.PanicError

// A Group rebuilds the values of one keyspace. It may be used concurrently. Make
// it with New.
type Group struct {
	fleet       *fleet.Group
	loadTimeout time.Duration
	flights     *flight.Group
	engine      *rebuild.Engine
	loads       wait.Tasks      // running loads; an abandoned load may outlast its flight
	closing     context.Context // ends with Close
	close       context.CancelFunc
}

// New makes a group. Groups of the same name in several processes work together. An untyped nil
// rdb makes a group that works in this process only. New returns an error that names the field,
// or the option of the client, that it cannot use.
func New(rdb redis.UniversalClient, space Keyspace, o Options) (*Group, error) {
	leases, err := fleet.New(rdb, fleet.Keyspace(space), fleet.Options(o), fleet.Messages{})
	if err != nil {
		return nil, err
	}
	settled, _ := fleet.Options(o).WithDefaults() // fleet.New has returned its error already
	g := &Group{fleet: leases, loadTimeout: settled.LoadTimeout, flights: flight.NewGroup(settled.ErrorHold)}
	g.closing, g.close = context.WithCancel(context.Background())
	g.engine = rebuild.New(rebuild.Config{
		Owner: owner{g}, Fleet: g.fleet, Flights: g.flights, Closing: g.closing, Read: g.fleet.GetOne,
		LoadTimeout: g.loadTimeout, Closed: ErrClosed, TooLate: ErrLoadTimeout, Batch: 1, Singles: true,
	})
	return g, nil
}

// Set publishes data that the source already has, and ends every lease of id: no running rebuild
// can overwrite it. With empty data, or a ttl under a millisecond, it publishes that there is no
// value. It returns ErrUnavailable if Redis did not confirm; then id is invalidated as soon as
// possible.
func (g *Group) Set(ctx context.Context, id string, data []byte, ttl time.Duration) error {
	defer g.forget(id)
	return g.fleet.Set(ctx, fleet.Publication{Lease: fleet.Lease{ID: id}, Data: data, TTL: ttl})
}

// Invalidate drops the values of ids and ends every lease of them, in all processes. When it
// returns nil, no later caller gets an older value. It returns ErrUnavailable if Redis did not
// confirm all of them. The group repeats unconfirmed invalidations in the background until Redis
// confirms them, and until then no caller in this process gets an older value. If only replicas
// are missing (Options.WaitReplicas), Redis answers; a failover at this time may bring the old
// value back until the next attempt, which comes when the replicas are there, or a second or so
// after Redis has failed to answer.
func (g *Group) Invalidate(ctx context.Context, ids ...string) error {
	defer g.forget(ids...)
	return g.fleet.Invalidate(ctx, ids...)
}

// Hold drops the values of ids and keeps everybody from publishing new ones until the returned
// function is called, which invalidates them again. Call that function even if Hold returns an
// error, which says that Redis did not confirm the hold of all ids. If a process dies in between,
// the hold ends after Options.Hold. If Redis does not confirm the end, the returned function
// returns ErrUnavailable, and the end is repeated as in Invalidate.
func (g *Group) Hold(ctx context.Context, ids ...string) (end func(context.Context) error, err error) {
	defer g.forget(ids...)
	lift, err := g.fleet.Hold(ctx, 0, ids...)
	return func(ctx context.Context) error {
		defer g.forget(ids...)
		return lift(ctx, true)
	}, err
}

// forget drops the held errors of ids at the end of a write: an error from before the write must
// not be returned after it.
func (g *Group) forget(ids ...string) {
	for _, id := range ids {
		g.flights.Forget(id)
	}
}

// Check tests whether the group can work with its Redis: whether Redis answers as a master of
// version 6.2 or later, lets the client run each of the group's commands and receive its
// messages, has the replicas for Options.WaitReplicas, and has an eviction policy that leaves
// others' keys alone. Check tries the commands on a key of its own, which it deletes afterwards.
// In a cluster it checks all masters but tries the commands on one.
//
// The error matches ErrUnavailable if the group cannot use Redis. Any other error says what
// weakens a guarantee. Check takes some milliseconds; if Redis does not answer, some seconds, or
// until ctx ends. Without Redis it returns nil.
func (g *Group) Check(ctx context.Context) error { return g.fleet.Check(ctx) }

// Stats returns a snapshot of the counters. They are read one after another, so while calls run
// they may not all be of the same moment.
func (g *Group) Stats() Stats { return Stats(g.fleet.Stats()) }

// Close ends the flights of Rebuild, whose callers get ErrClosed, and waits until their loads
// have ended, but no longer than Options.LoadTimeout for a load that ignores its context.
// Invalidations that Redis has not confirmed are tried once more, for a second or two, and then
// dropped. Set, Invalidate and Hold still work after Close, but invalidations
// that Redis does not confirm are no longer repeated. Close may be called more than once.
func (g *Group) Close() {
	g.close()
	<-g.flights.Close()
	g.loads.CloseWithin(g.loadTimeout)
	g.fleet.Close()
}
