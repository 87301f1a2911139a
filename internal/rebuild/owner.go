package rebuild

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/guard"
)

// An Owner has the keys that an Engine rebuilds. The Engine does not look into what the Owner knows of a key,
// Run.Subject, nor into answers: both are any, and not type parameters, so that the Engine is compiled
// once and not for each type of keys and values. It calls the methods for different runs at one time.
type Owner interface {
	// Mark returns the present moment of id, for Keep and Current.
	Mark(id string) Mark
	// Meanwhile returns the answer that this process has by now.
	Meanwhile(r *Run) (answer any, ok bool)
	// Accept returns the answer that r gets from a value of Redis; ok is false if the value is no
	// answer. It keeps the answer as Keep does.
	Accept(r *Run, value fleet.Value) (answer any, ok bool)
	// Load loads the keys of runs, which have one purpose, in the breaker's place, and sets Run.Loaded of
	// each. Functions that outlive it must not touch the runs.
	Load(ctx context.Context, place *guard.Place, runs []*Run)
	// Encode returns what to publish of Run.Loaded. ok is false if Redis cannot store it, or must not.
	Encode(r *Run) (value fleet.Publication, ok bool)
	// Keep keeps Run.Loaded in this process, unless its id was invalidated since Run.Mark, and sets
	// Run.Kept. It reports whether nothing has cleared Run.Loaded since its load began.
	Keep(r *Run, until Until) (stands bool)
	// Current reports whether callers who come now would get the answer that r has kept.
	Current(r *Run, answer any) bool
	// Forget drops what this process has of id. Drop invalidates ids in all processes.
	Forget(id string)
	Drop(ctx context.Context, ids []string) error
}

// An Until bounds how long an Owner may keep an answer. The zero value is no bound.
type Until struct {
	Unconfirmed bool      // Redis does not have it, and no message may tell when it is invalidated: keep it for a short time
	Ends        time.Time // it must not answer after this, not even in place of an error; zero: it may
}
