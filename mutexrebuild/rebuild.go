package mutexrebuild

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
	"github.com/levee-go/levee/internal/rebuild"
)

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
	caller, opened, err := g.engine.Join(ctx, id, flight.Callers{}, nil)
	if err != nil {
		return nil, renamed(err)
	}
	if opened != nil {
		opened.Subject, opened.Look = &subject{load: load}, true
		g.engine.Start(ctx, opened)
	}
	answer, _, err := caller.Wait(ctx, flight.Patience{})
	data, _ := answer.([]byte)
	return data, err
}

// A subject is what a group knows of an id that is rebuilt.
type subject struct {
	load Load
	ttl  time.Duration // that load has returned
}

// An owner answers what the engine asks of a group, which knows values as bytes and keeps none.
type owner struct{ g *Group }

func (o owner) Mark(string) rebuild.Mark { return 0 }

func (o owner) Meanwhile(*rebuild.Run) (answer any, ok bool) { return nil, false }

// Accept takes a complete value.
func (o owner) Accept(_ *rebuild.Run, value fleet.Value) (answer any, ok bool) {
	return value.Data, len(value.Data) > 0 && !value.TooLong
}

func (o owner) Load(ctx context.Context, _ *guard.Place, runs []*rebuild.Run) {
	r := runs[0]
	s := r.Subject.(*subject)
	data, ttl, err := o.g.load(ctx, r.ID, s.load)
	s.ttl, r.Loaded = ttl, rebuild.Loaded{Answer: data, Err: err}
}

func (o owner) Encode(r *rebuild.Run) (value fleet.Publication, ok bool) {
	value = fleet.Publication{Data: r.Loaded.Answer.([]byte), TTL: r.Subject.(*subject).ttl}
	return value, o.g.fleet.Storable(value.Data, value.TTL)
}

func (o owner) Keep(*rebuild.Run, rebuild.Until) (stands bool) { return true }

func (o owner) Current(*rebuild.Run, any) bool { return false }

func (o owner) Forget(id string) { o.g.flights.Forget(id) }

func (o owner) Drop(ctx context.Context, ids []string) error { return o.g.Invalidate(ctx, ids...) }

// load runs load on a goroutine of its own, until it is over or ctx ends.
func (g *Group) load(ctx context.Context, id string, load Load) (data []byte, ttl time.Duration, err error) {
	if g.closing.Err() != nil || !g.loads.Begin() {
		return nil, 0, ErrClosed
	}
	ctx = g.flights.Loading(ctx, id)
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
		err = ErrClosed
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		err = context.Cause(ctx)
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
