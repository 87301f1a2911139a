package cache

import (
	"math/rand/v2"
	"time"

	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/logonce"
)

// values says what an entry is worth: what stored bytes mean, how far the life of a value has gone, and
// whether a clear has ended it.
type values[V any] struct {
	*telemetry
	windows
	format format[V]
	fleet  *fleet.Group // knows the clears
	clone  func(V) V    // Source.Clone; nil: callers share values
	absent *entry[V]    // the entry of a key that does not exist and whose times are unknown
}

// stateOf returns the state of an entry at now, for one reader.
func (v *values[V]) stateOf(e *entry[V], now time.Time) state {
	return v.windows.of(e.life, now, 1-rand.Float64())
}

// judge decodes a value from Redis and returns it with its state.
func (v *values[V]) judge(id string, value fleet.Value, now time.Time) (found[V], state) {
	e, ok := v.format.decode(id, value.Data)
	switch {
	case value.TooLong || !ok && !v.format.isOfOtherType(id, value.Data):
		v.counts.unfit.Add(1)
		v.log.Warn("redis holds something that is no value of this cache; it is replaced", logonce.Name("key", id), "bytes", len(value.Data))
		return found[V]{}, dead
	case !ok:
		v.counts.otherType.Add(1)
		v.log.Warn("redis holds a value of another type than this process stores: raise Schema by one whenever the type of the values changes", logonce.Name("key", id))
		return found[V]{}, dead
	}
	if v.fleet.Cleared(e.epoch, e.tags()) {
		v.counts.cleared.Add(1)
		return found[V]{}, dead
	}
	e.expired = e.expired || v.fleet.Expired(e.epoch, e.tags())
	state := v.stateOf(e, now)
	return found[V]{entry: e, tier: TierRedis, stale: state >= stale, fallback: state == fallback}, state
}

// isWithinTTL reports whether value is one of id within its TTL, which a Warm leaves as it is.
func (v *values[V]) isWithinTTL(id string, value fleet.Value, now time.Time) bool {
	if value.Err != nil || len(value.Data) == 0 {
		return false
	}
	_, state := v.judge(id, value, now)
	return state < stale
}

// own returns the value of e for a caller, who may change it if there is a Clone.
func (v *values[V]) own(e *entry[V]) (value V) {
	if e == nil || e.null {
		return value
	}
	return v.cloned(&e.value)
}

func (v *values[V]) cloned(value *V) V {
	if v.clone != nil {
		return v.clone(*value)
	}
	return *value
}

// cleared reports whether a Clear, a ClearTags or the expiry of a tag came after the load of e
// began.
func (v *values[V]) cleared(e *entry[V]) bool {
	return v.fleet.Cleared(e.epoch, e.tags()) || v.fleet.Expired(e.epoch, e.tags())
}

// mayReplaceAnError reports whether a value that this process has kept may be served in place of
// an error: also within its TTL, since a read failed, unless StaleIfError is off.
func (v *values[V]) mayReplaceAnError(e *entry[V], now time.Time) bool {
	return v.stateOf(e, now) <= fallback && (e.past(now) || v.windows.fallback > 0)
}

// countsAsStale reports whether a kept value counts as stale: it is past its TTL, or another
// process may have changed it without our knowledge.
func (v *values[V]) countsAsStale(e *entry[V]) bool { return v.fleet.Shared() || e.past(time.Now()) }
