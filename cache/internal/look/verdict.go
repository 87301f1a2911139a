package look

import (
	"fmt"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
)

// A question is what a verdict is made from.
type question struct {
	inside.Inspection
	err   error // of the read of Redis
	stats cache.Stats
	now   time.Time
}

// verdict says in a sentence what a Get of the key returns in this process now, and why. Its steps
// have the order of the read path: local tier, filter, Redis, load.
func (q question) verdict() string {
	for _, step := range []func() string{q.fromHere, q.byFilter, q.withoutRedis, q.fromStored, q.byLoad} {
		if said := step(); said != "" {
			if q.LocalUnknown {
				said += "; what this process holds of it is unknown"
			}
			return said
		}
	}
	return ""
}

// newer is by how much the value in Redis must be newer than the process's before the verdict says
// so: the clocks of two hosts may differ a little.
const newer = time.Second

func (q question) fromHere() string {
	v := q.Local
	if v == nil || v.Left <= 0 {
		return ""
	}
	there := q.Redis != nil && q.Redis.State != "dead"
	switch until := "ends here at " + q.at(v.Left); {
	case v.Null:
		return q.absent(v)
	case there && v.Age-q.Redis.Age > newer && !q.stats.Live:
		return fmt.Sprintf("served from this process, though Redis has a newer value: messages of other processes do not arrive; %s", until)
	case there && v.Age-q.Redis.Age > newer:
		return fmt.Sprintf("served from this process, though Redis has a newer value, whose message has not arrived; %s", until)
	case v.State == "stale":
		return fmt.Sprintf("served stale from this process, %s: %s; %s", q.read(v), q.why(), until)
	case q.err != nil || q.Outage:
		return fmt.Sprintf("served from this process, %s; Redis does not reply; %s", q.read(v), until)
	case !there && !q.stats.Rebuild.InProcess:
		return fmt.Sprintf("served from this process, %s; Redis has no value; %s", q.read(v), until)
	default:
		return fmt.Sprintf("served from this process, %s; %s", q.read(v), until)
	}
}

func (q question) byFilter() string {
	switch {
	case q.Filter != "absent":
		return ""
	case q.Redis != nil && q.Redis.State != "dead" && !q.Redis.Null:
		return "absent: the filter denies it, though Redis has a value: announce the key, then rebuild the filter"
	}
	return "absent: the filter denies it; if the row exists, announce the key, then rebuild the filter"
}

func (q question) withoutRedis() string {
	why := ""
	switch {
	case q.Foreign:
		why = "not cached: in Redis a key of another type has its name"
	case q.Unconfirmed:
		why = "not read from Redis: an invalidation of this process is not confirmed yet"
	case q.Outage:
		why = "not read from Redis: levee does not call it during an outage"
	case q.err != nil:
		why = "Redis did not reply to this look-up"
	default:
		return ""
	}
	switch kept := q.kept(); {
	case kept != nil:
		return why + fmt.Sprintf("; if a load fails or is refused, the value that this process has kept is served, %s", q.read(kept))
	case q.refused():
		return why + "; the breaker is open: readers get ErrOverloaded"
	}
	return why + "; each process loads it for itself"
}

// stored returns the value that a read finds past the local tier, and where it is. A cache without
// Redis has what its process has kept.
func (q question) stored() (v *inside.Standing, where string) {
	if q.stats.Rebuild.InProcess {
		return q.kept(), "this process"
	}
	return q.Redis, "Redis"
}

func (q question) fromStored() string {
	switch v, where := q.stored(); {
	case v == nil:
		return ""
	case v.Null && v.State != "dead":
		return q.absent(v)
	case v.State == "fresh", v.State == "kept":
		return fmt.Sprintf("served from %s, %s; its TTL ends at %s", where, q.read(v), q.at(v.TTL))
	case v.State == "stale":
		return fmt.Sprintf("served stale from %s, %s: %s%s", where, q.read(v), q.why(), q.ends(v))
	}
	return ""
}

func (q question) byLoad() string {
	old := q.kept()
	if v := q.Redis; v != nil && v.State == "fallback" {
		old = v
	}
	switch fails := q.HeldError != nil || q.refused(); {
	case fails && old != nil:
		return fmt.Sprintf("served stale in place of an error, %s: %s%s", q.read(old), q.why(), q.ends(old))
	case fails:
		return fmt.Sprintf("not cached, readers get an error: %s", q.why())
	case len(q.Holds) > 0:
		return fmt.Sprintf("not cached: a writer, or the lag of replicas, holds it until %s at most; readers load it", q.at(q.Holds[0]))
	case old != nil:
		return fmt.Sprintf("past its TTL: %s; the old value, %s, is served only if that fails%s", q.why(), q.read(old), q.ends(old))
	}
	return "not cached: " + q.why()
}

// why says how the load of the key is getting on.
func (q question) why() string {
	switch {
	case q.refused(): // HeldError is often breaker.ErrOpen then
		return "the breaker is open, and nothing is loaded"
	case q.HeldError != nil:
		return fmt.Sprintf("its load fails: %.200s", q.HeldError)
	case q.Loading, q.Leased:
		return "it is being loaded now"
	}
	return "the next reader loads it"
}

// ends says when a value is served no more, if that is known.
func (q question) ends(v *inside.Standing) string {
	if v.Left <= 0 {
		return ""
	}
	return "; it ends at " + q.at(v.Left)
}

func (q question) absent(null *inside.Standing) string {
	return fmt.Sprintf("absent: the source did not have it; this ends at %s; if the row exists now, invalidate the key", q.at(max(null.Left, null.TTL)))
}

// kept returns the value that this process has past its time in the local tier. With a negative
// StaleIfError it is served only in a cache without Redis; an Inspection does not say so.
func (q question) kept() *inside.Standing {
	if v := q.Local; v != nil && v.State != "dead" && !v.Null {
		return v
	}
	return nil
}

func (q question) refused() bool { return q.stats.Breaker.State == breaker.Open }

func (q question) read(v *inside.Standing) string { return "read from the source at " + q.at(-v.Age) }

// at returns the time of the day in d, with its date if that is another one.
func (q question) at(d time.Duration) string {
	then := q.now.Add(d)
	layout := time.TimeOnly
	if then.Format(time.DateOnly) != q.now.Format(time.DateOnly) {
		layout = time.DateTime
	}
	return then.Format(layout)
}
