// Package mutexrebuild rebuilds a missing value once: one flight of a key per
// process, and among the processes one lease of it in Redis.
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
// process, one before and one after an invalidation, are told apart. It ends by
// itself, is renewed while the loader runs, and guards efficiency only: should
// it be lost, there are two loads, never an old value.
//
// # The flight
//
// Everybody in a process who wants a key joins its flight: one look into Redis,
// one wait or one load, one result. The load runs on a context of its own, so a
// caller that leaves takes nobody with it.
//
// A flight alone would hand an old value to callers who joined after an
// invalidation: they asked later, but the answer was decided earlier. So every
// caller takes a number when it joins, and the flight notes the highest number
// just before each operation that may decide its result: the read that finds a
// value, or the publication. Callers with higher numbers do not take the result
// but go on, together, to the next flight. This way a Get that starts after an
// Invalidate has returned never sees what was there before. Who keeps values in the
// process, and hears of others' invalidations by message, may spare the readers of
// a hot key that second look: see Events.Current.
//
// # Without Redis
//
// A Redis that does not answer is given up after three reads in a row, for all the
// groups of its client, and asked with one read at a time until it answers. Until
// then every process loads for itself.
//
// An invalidation that Redis did not confirm is an error, and is tried again until
// Redis confirms it. Meanwhile this process neither reads the id from Redis nor
// publishes it there. It keeps 10,000 of them; where there are more, it leaves
// Redis alone for every id until those are confirmed.
//
// # What is not promised
//
// An invalidation that Redis acknowledged and then lost in a failover leaves the
// old value until its TTL, unless Options.WaitReplicas is set. So does one that
// Redis did not confirm and that was dropped, because the process ended, or there
// was no room for it; and until it is confirmed, other processes may find the old
// value. A writer that never invalidates is never noticed. And a lease does not
// exclude two loads: it only lets the later one publish.
package mutexrebuild

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
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

// A Load builds a value from the source. Its context is that of the caller that
// started it without the cancellation, and ends after Options.LoadTimeout or when
// the group is closed. Degraded says that there is no lease behind this load,
// because Redis is out of reach: every process may be doing the same, so the
// source should be asked with restraint.
type Load[T any] func(ctx context.Context, degraded bool) (T, error)

// A Format says how values are stored. Both functions may be called concurrently.
type Format[T any] struct {
	// Encode gives the bytes to store for id and how long they live in Redis.
	// They are not published when that is under a millisecond, when they are more
	// than Options.MaxBytes, or err is not nil;
	// the value goes to those who wait for it all the same.
	Encode func(id string, value T) (data []byte, ttl time.Duration, err error)
	// Decode reads them back, and says what the value is good for.
	Decode func(id string, data []byte) (T, Condition)
}

// A Condition says what a stored value is good for.
type Condition int

const (
	Unfit Condition = iota // nothing; bytes that are no value of the id are a miss and are overwritten
	Fresh                  // it is an answer
	Aging                  // it is an answer, and it is time to Refresh it
	Spare                  // it is an answer only if no load brings a better one
)

// A Result is what a flight brought.
type Result[T any] struct {
	Value     T
	Origin    Origin
	Condition Condition
	// Mark is what Events.Mark gave before the operation that brought the value.
	Mark any
	// Bytes is the size of the encoded value, 0 if it was not encoded.
	Bytes int
	// Held reports that a writer held the key: the value may be about to change
	// and must not be kept.
	Held bool
	// First is true for one caller of a flight and false for those who shared
	// its result.
	First bool

	head string // of what stands in Redis, if it is Aging
}

// Origin says where a result came from.
type Origin int

const (
	Found    Origin = iota // read from Redis
	Built                  // loaded and published
	Unshared               // loaded and not published
)

// Events tells the owner of a Group what other processes did. The functions must
// not block. Each may be nil.
type Events struct {
	// Mark is called before each operation that may bring a value; what it returns
	// comes back in Result.Mark. A local tier puts its generation here.
	Mark func(id string) any
	// Current reports whether, as far as this process knows, nothing has happened to
	// id since mark. If so, what was read from Redis goes also to those who joined
	// while it was being read: they get what a local tier would give them a moment
	// later. If not, and if Current is nil, they read again.
	Current func(id string, mark any) bool
	// Invalidated is called when another process has invalidated or set id.
	Invalidated func(id string)
	// Missed is called when invalidations may have been missed.
	Missed func()
	// Health is called when the link that brings invalidations falls silent, and
	// when it lives again.
	Health func(live bool)
}

// A Group rebuilds the values of one cache. It may be used concurrently. Make it
// with New.
type Group[T any] struct {
	o       Options
	format  Format[T]
	events  Events
	store   *store // nil: no Redis
	hub     subscription
	counts  counters
	journal *logonce.Log
	closing context.Context // ends with Close
	close   context.CancelFunc
	active  sync.WaitGroup // flights and loads

	mu      sync.Mutex            // guards what follows and the flights' own state
	flights map[string]*flight[T] // by id; a failed one stays for Options.ErrorHold
	spared  map[string]*failure   // by id: loads that failed where a Spare could answer; they stay as long
	renewal renewals[T]
	closed  bool
}

// New makes a group whose values have the names name:id in Redis. Groups of the
// same name in several processes work together. An untyped nil rdb makes a group
// that works within this process only. It returns an error that names the field
// of o that it cannot use.
func New[T any](rdb redis.UniversalClient, name string, f Format[T], e Events, o Options) (*Group[T], error) {
	o, err := o.withDefaults(name)
	if err != nil {
		return nil, err
	}
	if f.Encode == nil || f.Decode == nil {
		return nil, errors.New("mutexrebuild: Format needs Encode and Decode")
	}
	if rdb != nil && isNil(rdb) {
		return nil, fmt.Errorf("mutexrebuild: the client is a nil %T; pass an untyped nil to work without Redis", rdb)
	}
	if _, ok := rdb.(*redis.Client); rdb != nil && o.WaitReplicas > 0 && !ok {
		return nil, fmt.Errorf("mutexrebuild: WaitReplicas needs a *redis.Client, of one master, got a %T: WAIT has no key to find its node by", rdb)
	}
	g := &Group[T]{o: o, format: f, events: e, journal: logonce.New(o.Logger.With("cache", name), prefix), flights: map[string]*flight[T]{}, spared: map[string]*failure{}, renewal: renewals[T]{byID: map[string]*flight[T]{}}}
	g.closing, g.close = context.WithCancel(context.Background())
	if rdb != nil {
		g.store = newStore(g.closing, rdb, name, o, g.journal)
		g.hub = g.subscribe(rdb)
	}
	return g, nil
}

func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Do returns the value of id: from Redis if it is there, else from load, which at
// most one of all the callers in all processes runs. It returns when the value is
// there or ctx ends. The errors are those of load, a *PanicError or ErrGoexit if
// it did not return, ErrLoadTimeout, ErrReentrant, ErrClosed, and the error of
// ctx. An error of load goes to all who wait and to those who come within
// Options.ErrorHold, so that they do not retry one after another.
//
// Where Redis holds a Spare, Do answers with that instead of the error of load,
// ErrLoadTimeout or the end of ctx, and after the first two it does not load again
// within Options.ErrorHold. It does not Refresh what is Aging: that is for the
// caller.
//
// Do never returns an error of Redis: with Redis out of reach it loads.
func (g *Group[T]) Do(ctx context.Context, id string, load Load[T]) (Result[T], error) {
	if ctx.Err() != nil {
		return Result[T]{}, ended(ctx)
	}
	if g.loading(ctx, id) {
		return Result[T]{}, ErrReentrant
	}
	f, number, err := g.join(ctx, id, load)
	if err != nil {
		return Result[T]{}, err
	}
	if number == 1 {
		g.start(ctx, f)
	}
	for {
		select {
		case <-f.done:
		case <-ctx.Done():
			if spare := g.spareFor(f, number); spare != nil {
				return *spare, nil
			}
			return Result[T]{}, ended(ctx)
		}
		if number <= f.cut || failpoint.JoinAny {
			result := f.result
			result.First = number == 1
			return result, f.err
		}
		number -= f.cut
		f = f.next
	}
}

// Set publishes a value that the source already holds, and voids every rebuild
// of id that is under way. It returns ErrUnavailable if Redis did not confirm;
// then the id is invalidated as soon as that can be done.
func (g *Group[T]) Set(ctx context.Context, id string, value T) (bytes int, err error) {
	data, ttl, err := g.format.Encode(id, value)
	if err != nil {
		return 0, err
	}
	defer g.void(id) // afterwards, when no error from before can come to be held any more
	if g.store == nil {
		return len(data), nil
	}
	if !g.storable(data, ttl) {
		return len(data), g.store.invalidate(ctx, []string{id}, holds{})
	}
	return len(data), g.store.set(ctx, id, data, ttl)
}

// Invalidate drops the values of ids and voids every rebuild of them that is
// under way, in all processes. When it returns nil, nobody who asks afterwards
// gets what was there before. It returns ErrUnavailable if Redis did not confirm
// all of them. Those it goes on to invalidate in the background until Redis does,
// and until then nobody who asks in this process gets what was there before. If only
// replicas are missing (Options.WaitReplicas), it is Redis that answers; a failover at
// this time may bring the old value back for the second or so until the next attempt.
func (g *Group[T]) Invalidate(ctx context.Context, ids ...string) error {
	return g.invalidate(ctx, ids, holds{})
}

// Hold drops the values of ids and keeps anybody from publishing new ones until
// the returned function is called, which invalidates them again. A process that
// dies in between leaves a hold that ends after Options.Hold. The end is safe to
// call with a context that is not cancelled by the caller's. If Redis does not
// confirm it, it is ErrUnavailable and goes on as Invalidate does.
func (g *Group[T]) Hold(ctx context.Context, ids ...string) (end func(context.Context) error, err error) {
	token := newToken()
	err = g.invalidate(ctx, ids, holds{place: token, life: g.o.Hold})
	return func(ctx context.Context) error {
		return g.invalidate(ctx, ids, holds{lift: token})
	}, err
}

func (g *Group[T]) invalidate(ctx context.Context, ids []string, h holds) error {
	if g.store == nil {
		for _, id := range ids {
			g.void(id)
		}
		return nil
	}
	err := g.store.invalidate(ctx, ids, h)
	for _, id := range ids {
		g.void(id)
	}
	return err
}

// Live reports whether invalidations of other processes arrive. Without Redis
// there are none to miss.
func (g *Group[T]) Live() bool { return g.store == nil || g.hub.hub.Live() }

// Close ends the flights: those who wait get ErrClosed. It waits until the loads
// have ended, but not longer than Options.LoadTimeout for a load that ignores its
// context. What Redis has not confirmed is tried once more, for about a second if
// it answers, and then dropped. Close may be called more than once.
func (g *Group[T]) Close() {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	g.mu.Unlock()
	g.close()
	g.waitForLoads()
	if first && g.store != nil {
		g.hub.end()
		g.store.close()
	}
}

func (g *Group[T]) waitForLoads() {
	ended := make(chan struct{})
	go func() {
		g.active.Wait()
		close(ended)
	}()
	patience := time.NewTimer(g.o.LoadTimeout)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
	}
}

// ended says that ctx has ended, and why if it was told.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return errors.Join(ctx.Err(), cause)
	}
	return ctx.Err()
}

// Closed reports whether Close has been called.
func (g *Group[T]) Closed() bool { return g.closing.Err() != nil }

// Reachable reports whether Redis is there to be asked. Without one it is not, nor
// while it does not answer.
func (g *Group[T]) Reachable() bool { return g.store != nil && !g.store.gate.shut() }

// Shared reports whether the group has a Redis, and so works with those of other
// processes.
func (g *Group[T]) Shared() bool { return g.store != nil }
