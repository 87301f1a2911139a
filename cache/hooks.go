package cache

import (
	"context"
	"errors"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/wait"
)

// Hooks are called for what a cache does beyond a hit in the local tier: for traces, see
// cacheotel, or for metrics of your own. Each may be nil, which costs nothing. What is to
// be counted is in [Cache.Stats] already.
type Hooks struct {
	// Read: keys are read from Redis. Up to 256 keys of a GetMany are one call.
	Read Hook
	// FlightWait: a caller waits for what another caller of this process is reading or
	// loading. Outcome.Load is that of the load.
	FlightWait Hook
	// Rebuild: a key was not to be had from Redis. It ends with the answer, after waits
	// and loads; their contexts come from that of the Rebuild. Warm and Refresh, which
	// load many keys, give none.
	Rebuild Hook
	// LeaseWait: a Rebuild waits for the load of another process.
	LeaseWait Hook
	// Load: the loader runs. It gets the context that the hook returns.
	Load Hook
	// Write: a writer changes keys, see Op.Call. A "write" has the calls "hold", "tx" and
	// "invalidate" within it, whose contexts come from its own; tx gets the one of "tx".
	// Each cache of a [Write] has calls for its own "hold" and "invalidate", and the cache that
	// is named first of "write" and "tx". A Write without Changes names none: pass Changes(),
	// of no keys, if all of them come by [Also].
	Write Hook
}

// JoinHooks returns Hooks that tell each of hooks, for example those of cacheotel and some of
// your own. They are called for a beginning in their order, each with the context of the one
// before, and of the end in the opposite order. One that panics at the beginning hides the
// operation from the others.
func JoinHooks(hooks ...Hooks) (joined Hooks) {
	for _, h := range hooks {
		joined = Hooks{
			Read: within(joined.Read, h.Read), FlightWait: within(joined.FlightWait, h.FlightWait),
			Rebuild: within(joined.Rebuild, h.Rebuild), LeaseWait: within(joined.LeaseWait, h.LeaseWait),
			Load: within(joined.Load, h.Load), Write: within(joined.Write, h.Write),
		}
	}
	return joined
}

// within returns a hook that tells outer, and inner within its context.
func within(outer, inner Hook) Hook {
	switch {
	case outer == nil:
		return inner
	case inner == nil:
		return outer
	}
	return func(ctx context.Context, op Op) (context.Context, func(Outcome)) {
		outerCtx, endOuter := outer(ctx, op)
		if outerCtx == nil {
			outerCtx = ctx
		}
		innerCtx, endInner := inner(outerCtx, op)
		if innerCtx == nil {
			innerCtx = outerCtx
		}
		return innerCtx, func(o Outcome) {
			if endOuter != nil {
				defer endOuter(o) // also if the other one panics
			}
			if endInner != nil {
				endInner(o)
			}
		}
	}
}

// A Hook is called when an operation begins, and what it returns when that ends. The
// context, which must come from ctx, is that of what the operation does; where nothing is
// done within, it is not used. A nil function is not called.
//
// Both are called while callers wait, with no mutex held, and must not block.
// They may be called on different goroutines. What they panic with is logged.
type Hook func(ctx context.Context, op Op) (context.Context, func(Outcome))

// An Op is what begins.
type Op struct {
	Cache      string // the cache's name
	Key        string // the first key, as Source.Key gives it; it may be a secret, and of any bytes
	Keys       int    // how many
	Background bool   // no caller waits for it
	// Call is what a writer does, for Hooks.Write alone: "write", "invalidate", "set",
	// "clear" or "announce"; and within a write "hold", "tx" and "invalidate".
	Call string
}

// An Outcome is how an operation ended.
type Outcome struct {
	// Err is that of the source, of Redis or of the caller's context. That a key does
	// not exist is no error.
	Err error
	// Hits is how many keys a Read has found.
	Hits int
	// Load is the context that Hooks.Load returned for the load that brought the answer
	// of a FlightWait or a Rebuild, which may have been of other callers' keys too. Nil:
	// there was none in this process.
	Load context.Context
}

// begin tells a hook of an operation. The function that it returns is never nil.
func (c *Cache[K, V]) begin(ctx context.Context, hook Hook, op Op) (context.Context, func(Outcome)) {
	if hook == nil {
		return ctx, unheard
	}
	return c.tell(ctx, hook, op)
}

func unheard(Outcome) {}

// tell is begin for a hook that is there.
func (c *Cache[K, V]) tell(ctx context.Context, hook Hook, op Op) (inner context.Context, done func(Outcome)) {
	op.Cache = c.o.Name
	inner, done = ctx, unheard
	c.call(func() {
		var end func(Outcome)
		if inner, end = hook(ctx, op); end != nil {
			done = func(o Outcome) {
				o.Err = named(o.Err)
				c.call(func() { end(o) })
			}
		}
	})
	if inner == nil { // also after a panic
		inner = ctx
	}
	return inner, done
}

// beginWrite tells Hooks.Write of a call. The ids may be none.
func (c *Cache[K, V]) beginWrite(ctx context.Context, call string, ids []string) (context.Context, func(Outcome)) {
	op := Op{Call: call, Keys: len(ids)}
	if len(ids) > 0 {
		op.Key = ids[0]
	}
	return c.begin(ctx, c.o.Hooks.Write, op)
}

// call calls a function of the user's in the way of readers and writers.
func (c *Cache[K, V]) call(fn func()) {
	contain.Call(func() error { fn(); return nil }, func(err error) {
		if err != nil {
			c.log.Warn("a hook panicked", "error", err)
		}
	})
}

// readOne reads a key from Redis. It is the path of every hit. What Redis did not answer
// is counted elsewhere and is in no histogram: most of it was never sent.
func (c *Cache[K, V]) readOne(ctx context.Context, id string) (value fleet.Value, now time.Time) {
	if !c.fleet.Shared() {
		return c.fleet.GetOne(ctx, id), time.Now()
	}
	ctx, done := c.begin(ctx, c.o.Hooks.Read, Op{Key: id, Keys: 1})
	ctx, stop := wait.Half(ctx, ctx, c.o.RedisTimeout) // the source has the other half
	defer stop()
	began := time.Now()
	value = c.fleet.GetOne(ctx, id)
	if now = time.Now(); value.Err == nil {
		c.times.read.add(&latencies, now.Sub(began))
	}
	outcome := Outcome{Err: value.Err}
	if len(value.Data) > 0 {
		outcome.Hits = 1
	}
	done(outcome)
	return value, now
}

// readMany is readOne for keys that are read together.
func (c *Cache[K, V]) readMany(ctx context.Context, ids []string) (values []fleet.Value, now time.Time) {
	if len(ids) == 0 || !c.fleet.Shared() {
		return c.fleet.Get(ctx, ids...), time.Now()
	}
	ctx, done := c.begin(ctx, c.o.Hooks.Read, Op{Key: ids[0], Keys: len(ids)})
	ctx, stop := wait.Half(ctx, ctx, c.o.RedisTimeout)
	defer stop()
	began := time.Now()
	values = c.fleet.Get(ctx, ids...)
	now = time.Now()
	var outcome Outcome
	for _, value := range values {
		if outcome.Err == nil {
			outcome.Err = value.Err
		}
		if len(value.Data) > 0 {
			outcome.Hits++
		}
	}
	if outcome.Err == nil {
		c.times.read.add(&latencies, now.Sub(began))
	}
	done(outcome)
	return values, now
}

// An observed is what hooks and histograms have to know of a job.
type observed struct {
	outer     context.Context // that of the job before its rebuild
	rebuilt   func(Outcome)   // ends Hooks.Rebuild; nil: it has not begun
	waitsFrom time.Time       // for the lease that another process has; zero: it does not
	waited    func(Outcome)   // ends Hooks.LeaseWait
}

// beginRebuild tells of a job that goes on from Redis. It may be called again.
func (c *Cache[K, V]) beginRebuild(j *job[K, V]) {
	if c.o.Hooks.Rebuild == nil || j.warms || j.observed.rebuilt != nil {
		return
	}
	j.observed.outer = j.ctx
	j.ctx, j.observed.rebuilt = c.begin(j.ctx, c.o.Hooks.Rebuild, Op{Key: j.id, Keys: 1, Background: j.class == background})
}

// endRebuild tells of the end of a job. The next flight of its callers starts from the
// context from before: a chain of flights must not make a chain of contexts.
func (c *Cache[K, V]) endRebuild(j *job[K, V], answer found[V], err error) {
	if j.observed.rebuilt == nil {
		return
	}
	if errors.Is(err, errElsewhere) {
		err = nil
	}
	j.ctx = j.observed.outer
	j.observed.rebuilt(Outcome{Err: err, Load: answer.load.context()})
}

// beginLeaseWait tells of a job that waits for another process. It may be called again.
func (c *Cache[K, V]) beginLeaseWait(j *job[K, V]) {
	if !j.observed.waitsFrom.IsZero() {
		return
	}
	j.observed.waitsFrom = time.Now()
	_, j.observed.waited = c.begin(j.ctx, c.o.Hooks.LeaseWait, Op{Key: j.id, Keys: 1, Background: j.class == background})
}

func (c *Cache[K, V]) endLeaseWait(j *job[K, V]) {
	if j.observed.waitsFrom.IsZero() {
		return
	}
	c.times.leaseWait.add(&latencies, time.Since(j.observed.waitsFrom))
	j.observed.waitsFrom = time.Time{}
	j.observed.waited(Outcome{})
}
