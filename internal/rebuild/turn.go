package rebuild

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/guard"
)

// take takes a turn of runs, which have one purpose: a place, the leases, a load and the
// publication. It leaves a verdict in each of them. It calls placed when they have their place.
func (e *Engine) take(runs []*Run, placed func()) {
	e.begin(runs)
	ctx, stop := e.LoadContext(runs[0].ctx)
	defer stop()
	place, refusal := e.acquire(ctx, runs)
	defer place.Release()
	if refusal != nil && !e.mayBeLoadedElsewhere(runs[0], refusal) {
		refuse(runs, refusal)
		return
	}
	placed()
	if !e.Fleet.Shared() && runs[0].Purpose == Read { // else the lease finds what was published while they waited for their place
		runs = slices.DeleteFunc(slices.Clone(runs), e.answeredMeanwhile)
	}
	leased, loading := e.lease(runs)
	if refusal != nil {
		e.abort(leased)
		refuse(loading, refusal)
		return
	}
	if len(loading) == 0 {
		return
	}
	unended := leased
	defer func() { e.abort(unended) }() // after a panic
	renewal := e.renewing(leased)
	defer renewal.Stop() // after a panic
	e.Owner.Load(ctx, place, loading)
	renewal.Stop()
	for _, r := range loading {
		if r.Loaded.Err != nil && r.verdict != granted {
			r.verdict = settled
		}
	}
	if len(leased) > 0 {
		failpoint.At("loaded")
		e.publish(leased)
	}
	unended = nil
}

// begin prepares runs for their first turn.
func (e *Engine) begin(runs []*Run) {
	if runs[0].Purpose == Read && runs[0].waiter == nil {
		defer failpoint.At("missed")
	}
	for _, r := range runs {
		switch {
		case r.Purpose == Degraded:
			r.endWait()
		case r.Purpose == Read && r.waiter == nil:
			r.waiter = e.Fleet.NewWaiter(r.ID)
		}
		if r.verdict = none; e.Rebuilding == nil || r.rebuilt != nil || r.Purpose >= Warm {
			continue
		}
		outer := r.ctx
		inner, rebuilt := e.Rebuilding(outer, r)
		r.ctx, r.rebuilt = inner, func(answer any, err error) {
			r.ctx = outer // or a chain of flights would make a chain of contexts
			rebuilt(answer, err)
		}
	}
}

// LoadContext returns a context for a load and for its wait for a place. It ends with the owner, and
// after LoadTimeout.
func (e *Engine) LoadContext(ctx context.Context) (load context.Context, stop func()) {
	load, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(e.Closing, func() { cancel(e.Closed) })
	end := func() {}
	if e.LoadTimeout > 0 {
		load, end = context.WithTimeoutCause(load, e.LoadTimeout, e.TooLate)
	}
	return load, func() { end(); unhook(); cancel(nil) }
}

// LoadError replaces err by Closed or TooLate if that is what ended ctx, which LoadContext has returned.
func (e *Engine) LoadError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && (errors.Is(cause, e.Closed) || errors.Is(cause, e.TooLate)) {
		return cause
	}
	return err
}

// acquire takes a place at the breaker for runs. It waits as long as any caller waits for them.
func (e *Engine) acquire(ctx context.Context, runs []*Run) (*guard.Place, error) {
	flights, try := make([]*flight.Flight, len(runs)), true
	for i, r := range runs {
		flights[i], try = r.flight, try && r.Impatient
	}
	waiting, stop := e.Flights.Waiting(ctx, flights...)
	defer stop()
	class, acquire := runs[0].Class(), e.Breaker.Acquire
	if class == guard.Degraded && try {
		acquire = e.Breaker.TryAcquire
	}
	place, err := acquire(waiting, class)
	return place, e.LoadError(ctx, err)
}

// mayBeLoadedElsewhere reports whether a run that got no place asks for its lease anyway: another
// process may have published its key, or be loading it.
func (e *Engine) mayBeLoadedElsewhere(r *Run, refusal error) bool {
	return r.Purpose == Read && e.Closing.Err() == nil && !errors.Is(refusal, flight.ErrDeserted)
}

// refuse settles runs that got no place.
func refuse(runs []*Run, refusal error) {
	settle(runs, refusal)
	for _, r := range runs {
		r.refused = errors.Is(refusal, guard.ErrLimited)
	}
}

// settle ends runs with err.
func settle(runs []*Run, err error) {
	for _, r := range runs {
		r.verdict, r.Loaded = settled, Loaded{Err: err}
	}
}

// lease takes the leases of runs, as their purpose says. It returns those that have one, and all that
// are to be loaded, the former among them.
func (e *Engine) lease(runs []*Run) (leased, loading []*Run) {
	if len(runs) == 0 {
		return nil, nil
	}
	switch runs[0].Purpose {
	case Degraded:
		for _, r := range runs {
			e.decide(r)
			r.verdict = unleased
		}
		return nil, runs
	case Replace:
		e.claim(runs)
	default:
		e.ask(runs)
	}
	for _, r := range runs {
		switch {
		case r.verdict == granted:
			leased, loading = append(leased, r), append(loading, r)
		case r.verdict == held && !purposes[r.Purpose].yields:
			loading = append(loading, r)
		default:
			continue
		}
		r.joined = r.flight.Decide()
	}
	if len(leased) > 0 {
		failpoint.At("granted")
	}
	return leased, loading
}

// verdicts are those of package fleet as verdicts of a run.
var verdicts = [...]verdict{fleet.Unknown: unknown, fleet.Granted: granted, fleet.Found: found, fleet.Busy: busy, fleet.Held: held}

// ask asks for the leases of runs. It decides, since it may find values that are in Redis by then.
func (e *Engine) ask(runs []*Run) {
	ctx, half, all := runs[0].ctx, time.Time{}, true // the latest of the runs', if all have one: a caller in a hurry costs the others no lease
	asks := make([]fleet.Ask, len(runs))
	for i, r := range runs {
		r.waiter.Ready()
		e.decide(r)
		asks[i] = fleet.Ask{ID: r.ID, Seen: r.Seen}
		if all = all && !r.half.IsZero(); r.half.After(half) {
			half = r.half
		}
		r.half = time.Time{}
	}
	if all && time.Until(half) > e.Fleet.RedisTimeout()/100 { // else they have waited for their place until now, and Redis may be well
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, half)
		defer stop()
	}
	now := time.Now()
	for i, grant := range e.Fleet.Begin(ctx, asks...) {
		r := runs[i]
		r.verdict, r.lease, r.value, r.remaining = verdicts[grant.Verdict], grant.Lease, grant.Value, grant.Remaining
		r.Stands, r.ends = grant.Stands, now.Add(grant.Remaining)
		if r.verdict != busy {
			r.endWait()
		}
	}
}

// abort gives the leases of runs back.
func (e *Engine) abort(runs []*Run) {
	if len(runs) > 0 {
		e.Fleet.Abort(runs[0].ctx, leasesOf(runs)...)
	}
}

// renewing renews the leases of runs until the Renewal is stopped.
func (e *Engine) renewing(runs []*Run) *fleet.Renewal {
	if len(runs) == 0 {
		return nil
	}
	return e.Fleet.KeepRenewing(runs[0].ctx, leasesOf(runs))
}

func leasesOf(runs []*Run) []fleet.Lease {
	leases := make([]fleet.Lease, len(runs))
	for i, r := range runs {
		leases[i] = r.lease
	}
	return leases
}

// IDs returns the ids of runs.
func IDs(runs []*Run) []string {
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.ID
	}
	return ids
}

// publish publishes what runs have loaded under their leases. If Redis cannot store a value, publish
// drops the old one, which must not answer any longer.
func (e *Engine) publish(runs []*Run) {
	var publishing, unused []*Run
	values := make([]fleet.Publication, 0, len(runs))
	for _, r := range runs {
		if r.verdict = settled; r.Loaded.Err == nil {
			r.verdict = unpublished
			value, storable := e.Owner.Encode(r)
			if !storable {
				value.Data = nil
			}
			if storable || len(r.Seen) > 0 && r.Purpose != Replace {
				value.Lease = r.lease
				publishing, values = append(publishing, r), append(values, value)
				continue
			}
		}
		unused = append(unused, r)
	}
	if runs[0].Purpose == Replace {
		e.replace(publishing, values, unused)
		return
	}
	e.abort(unused)
	if len(publishing) > 0 {
		e.commit(publishing, values)
	}
}

func (e *Engine) commit(runs []*Run, values []fleet.Publication) {
	for _, r := range runs {
		r.flight.Decide()
	}
	failpoint.At("commit")
	outcomes := e.Fleet.Commit(runs[0].ctx, values...)
	failpoint.At("committed")
	for i, r := range runs {
		switch outcome := outcomes[i]; {
		case outcome.Published && len(values[i].Data) > 0:
			r.verdict = published
		case outcome.Err != nil && r.Purpose == Warm: // no caller waits for the value, and Redis may not have it
			r.verdict = unknown
		case !outcome.Published && outcome.Err == nil:
			r.verdict = overtaken
		}
	}
}
