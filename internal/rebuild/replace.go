package rebuild

import (
	"fmt"

	"github.com/levee-go/levee/internal/fleet"
)

// A Replace takes the leases of its keys from whoever has them, since such a load may have begun
// before the change that its caller knows of. The old values go on to answer until the new ones are
// published. Whoever overtakes the load has taken its lease away and may not have published yet: so
// the run loads again, at most maxOvertaken times, and then drops the old value.

// claim takes the leases of runs. A key that a writer holds is dropped instead: its value is dropped
// at the end of the write anyway.
func (e *Engine) claim(runs []*Run) {
	var dropping []*Run
	for i, grant := range e.Fleet.Claim(runs[0].ctx, IDs(runs)...) {
		r := runs[i]
		r.verdict, r.lease, r.Stands = verdicts[grant.Verdict], grant.Lease, false
		switch r.verdict {
		case granted:
		case held:
			dropping = append(dropping, r)
		default:
			settle([]*Run{r}, ErrNoRedis)
		}
	}
	e.drop(dropping)
}

// replace publishes values, which runs have loaded, in place of the old ones. unused are the runs
// whose load has failed, and those whose value cannot be stored.
func (e *Engine) replace(runs []*Run, values []fleet.Publication, unused []*Run) {
	var failed, dropping []*Run
	for _, r := range unused {
		if r.Loaded.Err != nil {
			failed = append(failed, r)
		} else {
			dropping = append(dropping, r)
		}
	}
	e.abort(failed)
	defer func() { e.drop(dropping) }()
	if len(runs) == 0 {
		return
	}
	if !e.Fleet.Shared() {
		// The old value ends here, so that a caller that has read it cannot fill the local tier
		// later, and an invalidation from now on ends the new one.
		for _, r := range runs {
			e.Owner.Forget(r.ID)
			r.Mark = e.Owner.Mark(r.ID)
		}
	}
	for i, outcome := range e.Fleet.Replace(runs[0].ctx, values...) {
		switch r := runs[i]; {
		case outcome.Err != nil:
			e.Owner.Forget(r.ID) // the value may have been published
			settle([]*Run{r}, fmt.Errorf("%w: the new value is not confirmed", fleet.ErrUnavailable))
		case !outcome.Published && r.overtaken == maxOvertaken:
			dropping = append(dropping, r)
		case !outcome.Published:
			r.verdict = overtaken
		case e.Fleet.Shared():
			e.Owner.Forget(r.ID)
			settle([]*Run{r}, nil)
		default:
			r.verdict = published
		}
	}
}

// drop ends runs by dropping the old values, which the new ones cannot replace.
func (e *Engine) drop(runs []*Run) {
	if len(runs) == 0 {
		return
	}
	err := e.Owner.Drop(runs[0].ctx, IDs(runs))
	if err != nil { // no row has changed, so the cause does not matter
		err = fmt.Errorf("%w: the old value is not dropped yet", fleet.ErrUnavailable)
	}
	settle(runs, err)
}
