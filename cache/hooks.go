package cache

import (
	"context"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

// Hooks are functions that a cache calls for all operations beyond a hit in the local tier: for
// traces, see cacheotel, or for metrics of your own. A nil Hook costs nothing. [Cache.Stats] has
// the counters already.
type Hooks struct {
	// Read is called when keys are read from Redis, once for up to 256 keys of a GetMany.
	Read Hook
	// FlightWait is called when a caller waits for another caller of this process to read or load
	// the key. Outcome.Load is the context of that load.
	FlightWait Hook
	// Rebuild is called when a read of Redis did not bring a key's value. It ends with the
	// answer, after waits and loads, whose contexts derive from the context that the hook
	// returns. Warm and Refresh, which load many keys, do not call it.
	Rebuild Hook
	// LeaseWait is called when a Rebuild waits for the load of another process.
	LeaseWait Hook
	// Load is called when the loader runs. The loader gets the context that the hook returns.
	Load Hook
	// Write is called when a writer changes keys, see Op.Call. A "write" contains the calls
	// "hold", "tx" and "invalidate", whose contexts derive from its own; the transaction gets the
	// context of "tx". Each cache of a [Write] gets calls for its own "hold" and "invalidate";
	// the cache that is named first also gets "write" and "tx". A Write without Changes names no
	// cache: pass Changes() without keys if all keys are added by [Also].
	Write Hook
}

// JoinHooks returns Hooks that call each of hooks, for example cacheotel's and some of your own.
// At the beginning of an operation they are called in order, each with the context of the one
// before, and at its end in reverse order. If one panics at the beginning, the others do not see
// the operation.
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

// within returns a hook that calls outer, and then inner with the context that outer returned.
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

// A Hook is called when an operation begins, and the function that it returns is called when the
// operation ends. The operation uses the returned context, which must derive from ctx, for the
// work within it, if there is any. A nil function is not called.
//
// Both are called while callers wait, with no mutex held, and must not block. They may be called
// on different goroutines. If one panics, the cache logs it and goes on.
type Hook func(ctx context.Context, op Op) (context.Context, func(Outcome))

// An Op describes an operation that begins.
type Op struct {
	Cache      string // the cache's name
	Key        string // id of the first key, see Source.Key; it may be a secret, and of any bytes
	Keys       int    // number of keys
	Background bool   // no caller waits for it
	// Call names the writer's call, in Hooks.Write only: "write", "invalidate", "set",
	// "clear" or "announce"; and within a write "hold", "tx" and "invalidate".
	Call string
}

// An Outcome describes how an operation ended.
type Outcome struct {
	// Err is the error of the source, of Redis or of the caller's context. A key that does
	// not exist is no error.
	Err error
	// Hits is the number of keys that a Read has found.
	Hits int
	// Load is the context that Hooks.Load returned for the load that ended a FlightWait or a
	// Rebuild. The load may have been for other callers' keys too. It is nil if no load of this
	// process did.
	Load context.Context
}

// telemetry is how a cache tells what it does: counters, times, log lines and the user's hooks.
type telemetry struct {
	name   string // Options.Name
	hooks  Hooks
	log    *logonce.Log
	counts counters
	times  times
}

// begin calls a hook for an operation that begins. It never returns a nil function.
func (t *telemetry) begin(ctx context.Context, hook Hook, op Op) (context.Context, func(Outcome)) {
	if hook == nil {
		return ctx, unheard
	}
	return t.tell(ctx, hook, op)
}

func unheard(Outcome) {}

// tell does the work of begin for a hook that is not nil.
func (t *telemetry) tell(ctx context.Context, hook Hook, op Op) (inner context.Context, done func(Outcome)) {
	op.Cache = t.name
	inner, done = ctx, unheard
	t.call(func() {
		var end func(Outcome)
		if inner, end = hook(ctx, op); end != nil {
			done = func(o Outcome) {
				o.Err = named(o.Err)
				t.call(func() { end(o) })
			}
		}
	})
	if inner == nil { // also after a panic
		inner = ctx
	}
	return inner, done
}

// beginWrite calls Hooks.Write for a call. ids may be empty.
func (t *telemetry) beginWrite(ctx context.Context, call string, ids []string) (context.Context, func(Outcome)) {
	op := Op{Call: call, Keys: len(ids)}
	if len(ids) > 0 {
		op.Key = ids[0]
	}
	return t.begin(ctx, t.hooks.Write, op)
}

// call calls a user's function on the path of a reader or writer, and logs a panic of it.
func (t *telemetry) call(fn func()) {
	contain.Call(func() error { fn(); return nil }, func(err error) {
		if err != nil {
			t.log.Warn("a hook panicked", "error", err)
		}
	})
}
