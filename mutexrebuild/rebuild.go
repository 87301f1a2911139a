package mutexrebuild

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/wait"
)

// maxOvertaken is how often a load is repeated after an invalidation has overtaken it. A key that
// is overtaken more often is written faster than it can be loaded.
const maxOvertaken = 2

// A Load reads a value from the source, and returns how long Redis may keep it. Its context has
// the values of the context of the caller that started it, but does not end with it; it ends
// after Options.LoadTimeout, and on Close.
type Load func(ctx context.Context) (data []byte, ttl time.Duration, err error)

// Rebuild returns the value of id: from Redis if it is there, otherwise from load, which one
// caller runs for all callers in all processes that want id. It returns when the value is there
// or ctx ends. All callers of a process may get the same bytes, so nobody may change them. A
// value that is empty or longer than Keyspace.MaxBytes, or has a ttl under a millisecond, is
// returned and not published.
//
// The error is the error of load, a *PanicError if load did not return, ErrLoadTimeout,
// ErrReentrant, ErrClosed, or the error of ctx. It is never an error of Redis: if Redis is out of
// reach, Rebuild loads. All waiting callers get the error of load, and so do callers that come
// within Options.ErrorHold.
func (g *Group) Rebuild(ctx context.Context, id string, load Load) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	caller, opened, err := g.flights.Join(ctx, id)
	if err != nil {
		return nil, renamed(err)
	}
	if opened {
		detached := context.WithoutCancel(ctx) // still the context of a load, if the caller's is
		look, stop := wait.Half(ctx, detached, g.fleet.RedisTimeout())
		go func() {
			defer stop()
			g.run(detached, look, caller.Flight, load)
		}()
	}
	data, _, err := caller.Wait(ctx, flight.Patience[[]byte]{})
	return data, err
}

// run runs a flight, and then the next flight for the callers that came too late for its result.
// The first read of Redis and the first request for the lease use the context look: callers that
// have less time than Redis may take still get the load.
func (g *Group) run(ctx, look context.Context, f *flight.Flight[[]byte], load Load) {
	var data []byte
	contain.Call(func() (err error) {
		data, err = g.answer(ctx, look, f, load)
		return err
	}, func(err error) {
		failpoint.At("finish")
		if next := f.Finish(data, err, nil); next != nil {
			go g.run(ctx, ctx, next, load)
		}
	})
}

// answer makes the result of one flight: it reads Redis and, if nothing is there, takes the
// lease, loads and publishes.
func (g *Group) answer(ctx, look context.Context, f *flight.Flight[[]byte], load Load) ([]byte, error) {
	f.Decide()
	found := g.fleet.GetOne(look, f.ID)
	switch {
	case found.Err != nil:
		return g.loadUnpublished(ctx, f, load)
	case usable(found):
		return found.Data, nil
	}
	waiter := g.fleet.NewWaiter(f.ID)
	defer waiter.Close()
	var beside []byte // loaded beside a writer
	besideAt := -1
	failpoint.At("missed")
	asking := look // for the first lease; later requests come after a wait
	if look.Err() != nil {
		asking = ctx
	}
	for overtaken := 0; ; {
		waiter.Ready()
		f.Decide()
		grant := g.fleet.Begin(asking, fleet.Ask{ID: f.ID, Seen: found.Data})[0]
		asking = ctx
		wasBeside := besideAt
		besideAt = -1
		switch grant.Verdict {
		case fleet.Unknown:
			return g.loadUnpublished(ctx, f, load)
		case fleet.Found:
			if found = grant.Value; usable(found) {
				return found.Data, nil
			}
		case fleet.Busy:
			if !waiter.Wait(g.closing, grant.Remaining) {
				return g.loadUnpublished(ctx, f, load)
			}
		case fleet.Held:
			// A load during a write may see the new row before its invalidation. Its
			// value may be returned only if no later reader can find the old value in
			// Redis. During a hold Redis has no value: so there must be a hold after the load.
			if wasBeside >= 0 {
				f.TakeBack(wasBeside)
				return beside, nil
			}
			besideAt = f.Decide()
			data, _, err := g.load(ctx, f.ID, load)
			if err != nil {
				return nil, err
			}
			beside = data
		case fleet.Granted:
			data, done, err := g.loadAndPublish(ctx, f, grant.Lease, load)
			if overtaken++; done || err != nil || overtaken > maxOvertaken {
				return data, err
			}
		}
	}
}

// usable reports whether v is a complete value.
func usable(v fleet.Value) bool { return len(v.Data) > 0 && !v.TooLong }

// loadAndPublish loads under a lease and publishes. It returns done false if an invalidation has
// overtaken the load, which is then worth another try; the result is valid only for callers that
// had joined before the load.
func (g *Group) loadAndPublish(ctx context.Context, f *flight.Flight[[]byte], lease fleet.Lease, load Load) (data []byte, done bool, err error) {
	failpoint.At("granted")
	began := f.Decide()
	renewal := g.fleet.KeepRenewing(ctx, []fleet.Lease{lease})
	defer renewal.Stop() // after a panic
	data, ttl, err := g.load(ctx, f.ID, load)
	renewal.Stop()
	failpoint.At("loaded")
	if err != nil || !g.fleet.Storable(data, ttl) {
		g.fleet.Abort(ctx, lease)
		return data, true, err
	}
	failpoint.At("commit")
	f.Decide()
	outcome := g.fleet.Commit(ctx, fleet.Publication{Lease: lease, Data: data, TTL: ttl})[0]
	failpoint.At("committed")
	if !outcome.Published {
		f.TakeBack(began) // it was not published, so callers that joined later may not have it
	}
	return data, outcome.Published || outcome.Err != nil, nil
}

func (g *Group) loadUnpublished(ctx context.Context, f *flight.Flight[[]byte], load Load) ([]byte, error) {
	f.Decide()
	data, _, err := g.load(ctx, f.ID, load)
	return data, err
}

// load runs load on a goroutine of its own, for at most LoadTimeout, unless the group is closed.
func (g *Group) load(ctx context.Context, id string, load Load) (data []byte, ttl time.Duration, err error) {
	if g.closing.Err() != nil {
		return nil, 0, ErrClosed
	}
	ctx, cancel := context.WithTimeoutCause(g.flights.Loading(ctx, id), g.loadTimeout, ErrLoadTimeout)
	defer cancel()
	defer context.AfterFunc(g.closing, cancel)()
	if !g.loads.Begin() {
		return nil, 0, ErrClosed
	}
	value, _, err := contain.Race(ctx, func() (fleet.Publication, error) {
		defer g.loads.End()
		flight.Begin()
		defer flight.End()
		data, ttl, err := load(ctx)
		if flight.Doubtful(ctx) {
			ttl = 0 // it is returned, and not stored
		}
		return fleet.Publication{Data: data, TTL: ttl}, err
	})
	switch {
	case err == nil:
		return value.Data, value.TTL, nil
	case g.closing.Err() != nil:
		return nil, 0, ErrClosed
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, ErrLoadTimeout)):
		return nil, 0, ErrLoadTimeout
	}
	return nil, 0, err
}

// renamed returns the error of this package for an error of package flight.
func renamed(err error) error {
	switch {
	case errors.Is(err, flight.ErrClosed):
		return ErrClosed
	case errors.Is(err, flight.ErrReentrant):
		return ErrReentrant
	}
	return err
}
