// Package mutexrebuild rebuilds a missing value once in a fleet of processes: a
// singleflight in each process together with a mutex in Redis, taken as SET NX
// would take it.
//
//	data, err := group.Rebuild(ctx, "42", func(ctx context.Context) ([]byte, time.Duration, error) {
//		return loadFromDatabase(ctx, 42), 10 * time.Minute, nil
//	})
//
// It works on bytes and knows nothing of what they mean. Package cache is made of the same
// parts, for values with types, many keys in each call, and old values while a load fails.
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
// A lease belongs to one acquisition, not to a process: two rebuilds of one
// process, one before and one after an invalidation, are told apart. It is renewed while the
// load runs, and ends by itself when its process dies. If a lease is lost, two loads may run;
// only the one whose lease is valid publishes.
//
// # The hold
//
// A writer that changes a row holds its keys meanwhile, see [Group.Hold] (other
// caches call this a tombstone): readers load, and nobody publishes.
//
// # Without Redis
//
// A Redis that does not answer three operations in a row is in an outage, for all groups
// of its client and RedisTimeout: one probe at a time is sent until it answers, every
// other operation fails at once, and every process loads for itself.
//
// An invalidation that Redis did not confirm is an error, and is tried again until
// Redis confirms it. Meanwhile this process neither reads the id from Redis nor
// publishes it there. None is forgotten: an id takes some 200 bytes until then, however often
// it is invalidated.
//
// A group that was made without a client keeps its leases in the process and stores nothing:
// callers who come at one moment share a load, and the next one loads again.
//
// # What is not promised
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

// PanicError is what a load that panicked, or called runtime.Goexit, returns to the callers that waited for it.
type PanicError = contain.PanicError

// A Group rebuilds the values of one keyspace. It may be used concurrently. Make
// it with New.
type Group struct {
	fleet       *fleet.Group
	loadTimeout time.Duration
	flights     *flight.Group[[]byte]
	loads       wait.Tasks      // of flights; a load that was left behind may outlast its flight
	closing     context.Context // ends with Close
	close       context.CancelFunc
}

// New makes a group. Groups of the same name in several processes work together.
// An untyped nil rdb makes a group that works within this process only. It returns
// an error that names the field, or the option of the client, that it cannot use.
func New(rdb redis.UniversalClient, space Keyspace, o Options) (*Group, error) {
	engine, err := fleet.New(rdb, fleet.Keyspace(space), fleet.Options(o), fleet.Messages{})
	if err != nil {
		return nil, err
	}
	settled, _ := fleet.Options(o).WithDefaults() // its error would have been one of New
	g := &Group{fleet: engine, loadTimeout: settled.LoadTimeout, flights: flight.NewGroup[[]byte](settled.ErrorHold)}
	g.closing, g.close = context.WithCancel(context.Background())
	return g, nil
}

// Set publishes data that the source already holds, and ends every lease of id: no
// rebuild that is under way can overwrite it. With empty data, or a ttl under a
// millisecond, it publishes that there is no value. It returns ErrUnavailable if
// Redis did not confirm; then id is invalidated as soon as that can be done.
func (g *Group) Set(ctx context.Context, id string, data []byte, ttl time.Duration) error {
	defer g.forget(id)
	return g.fleet.Set(ctx, fleet.Publication{Lease: fleet.Lease{ID: id}, Data: data, TTL: ttl})
}

// Invalidate drops the values of ids and ends every lease of them, in all processes.
// When it returns nil, no later caller gets what was there before. It
// returns ErrUnavailable if Redis did not confirm all of them. Those it goes on to
// invalidate in the background until Redis does, and until then no caller in
// this process gets what was there before. If only replicas are missing
// (Options.WaitReplicas), Redis answers; a failover at this time may bring the old
// value back until the next attempt: when the replicas are there, or a second or so after Redis
// has failed to answer.
func (g *Group) Invalidate(ctx context.Context, ids ...string) error {
	defer g.forget(ids...)
	return g.fleet.Invalidate(ctx, ids...)
}

// Hold drops the values of ids and keeps anybody from publishing new ones until
// the returned function is called, which invalidates them again. Call it also if Hold
// returns an error, which says that Redis did not confirm the hold of all ids. A process that
// dies in between leaves a hold that ends after Options.Hold. If Redis does not
// confirm the end, the error is ErrUnavailable and the end is tried again as that of
// Invalidate is.
func (g *Group) Hold(ctx context.Context, ids ...string) (end func(context.Context) error, err error) {
	defer g.forget(ids...)
	lift, err := g.fleet.Hold(ctx, 0, ids...)
	return func(ctx context.Context) error {
		defer g.forget(ids...)
		return lift(ctx, true)
	}, err
}

// forget ends the holds of errors, at the end of a write: an error from before it must not
// be held.
func (g *Group) forget(ids ...string) {
	for _, id := range ids {
		g.flights.Forget(id)
	}
}

// Check tests whether the group can work with its Redis: whether it answers as a master of
// version 6.2 or later, lets the client run each of the group's commands and hear its
// messages, has the replicas for Options.WaitReplicas, and has an eviction policy that
// leaves others' keys alone. It tries the commands on a key of its own, which it takes
// away again, and looks at all masters of a cluster but tries the commands on one.
//
// The error matches ErrUnavailable if Redis cannot be used, and does not if something
// weakens a promise. Check takes some milliseconds; without an answer some seconds, or
// until ctx ends. Without Redis it returns nil.
func (g *Group) Check(ctx context.Context) error { return g.fleet.Check(ctx) }

// Stats returns a snapshot of the counters. They are read one after another, so they
// may be apart by what happens meanwhile.
func (g *Group) Stats() Stats { return Stats(g.fleet.Stats()) }

// Close ends the flights of Rebuild, which get ErrClosed, and waits until their
// loads have ended, but not longer than Options.LoadTimeout for a load that ignores
// its context. What Redis has not confirmed is tried once more, for about a second
// if it answers, and then dropped. Set, Invalidate and Hold still work after it, but what
// Redis does not confirm then is not tried again. Close may be called more than once.
func (g *Group) Close() {
	g.close()
	<-g.flights.Close()
	g.loads.CloseWithin(g.loadTimeout)
	g.fleet.Close()
}
