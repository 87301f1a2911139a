package look

import (
	"errors"
	"testing"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/mutexrebuild"
)

// Each verdict has a row. Every row but the last ones stands alone: nothing else is wrong.
func TestEachVerdict(t *testing.T) {
	type seen = inside.Inspection
	now := time.Date(2026, 11, 28, 4, 32, 0, 0, time.UTC)
	old := &inside.Standing{State: "fallback", Age: time.Hour, Left: 30 * time.Minute}
	redis := &inside.Standing{State: "fresh", Age: time.Minute, TTL: 9 * time.Minute, Left: 69 * time.Minute}
	local := &inside.Standing{State: "fresh", Age: time.Minute, TTL: 9 * time.Minute, Left: 10 * time.Second}
	elder := &inside.Standing{State: "fresh", Age: 2 * time.Minute, TTL: 8 * time.Minute, Left: 10 * time.Second}
	stale := &inside.Standing{State: "stale", Age: 11 * time.Minute, Left: 20 * time.Second}
	kept := &inside.Standing{State: "kept", Age: 5 * time.Minute, TTL: 5 * time.Minute}
	null := &inside.Standing{State: "fresh", Null: true, TTL: time.Minute, Left: time.Minute}
	dead := &inside.Standing{State: "dead", Left: time.Minute}
	down := errors.New("the database is down")
	open := func(s *cache.Stats) { s.Breaker.State = breaker.Open }
	deaf := func(s *cache.Stats) { s.Live = false }
	alone := func(s *cache.Stats) { s.Rebuild = mutexrebuild.Stats{InProcess: true} }
	for _, row := range []struct {
		seen   seen
		err    error
		change func(*cache.Stats)
		want   string
	}{
		{seen{Local: local, Redis: redis}, nil, nil, "served from this process, read from the source at 04:31:00; ends here at 04:32:10"},
		{seen{Local: local, Redis: redis, Filter: "absent"}, nil, nil, "served from this process, read from the source at 04:31:00; ends here at 04:32:10"},
		{seen{Local: local}, nil, alone, "served from this process, read from the source at 04:31:00; ends here at 04:32:10"},
		{seen{Local: local}, nil, nil, "served from this process, read from the source at 04:31:00; Redis has no value; ends here at 04:32:10"},
		{seen{Local: local}, down, nil, "served from this process, read from the source at 04:31:00; Redis does not reply; ends here at 04:32:10"},
		{seen{Local: local, Outage: true}, down, nil, "served from this process, read from the source at 04:31:00; Redis does not reply; ends here at 04:32:10"},
		{seen{Local: elder, Redis: redis}, nil, nil, "served from this process, though Redis has a newer value, whose message has not arrived; ends here at 04:32:10"},
		{seen{Local: elder, Redis: redis}, nil, deaf, "served from this process, though Redis has a newer value: messages of other processes do not arrive; ends here at 04:32:10"},
		{seen{Local: stale, Redis: stale, HeldError: down}, nil, nil, "served stale from this process, read from the source at 04:21:00: its load fails: the database is down; ends here at 04:32:20"},
		{seen{Local: null}, nil, nil, "absent: the source did not have it; this ends at 04:33:00; if the row exists now, invalidate the key"},

		{seen{Filter: "absent"}, nil, nil, "absent: the filter denies it; if the row exists, announce the key, then rebuild the filter"},
		{seen{Filter: "absent", Redis: redis}, nil, nil, "absent: the filter denies it, though Redis has a value: announce the key, then rebuild the filter"},

		{seen{Foreign: true}, nil, nil, "not cached: in Redis a key of another type has its name; each process loads it for itself"},
		{seen{Unconfirmed: true, Redis: redis}, nil, nil, "not read from Redis: an invalidation of this process is not confirmed yet; each process loads it for itself"},
		{seen{Outage: true}, down, nil, "not read from Redis: levee does not call it during an outage; each process loads it for itself"},
		{seen{Outage: true, Local: kept}, down, nil, "not read from Redis: levee does not call it during an outage; if a load fails or is refused, the value that this process has kept is served, read from the source at 04:27:00"},
		{seen{Outage: true}, down, open, "not read from Redis: levee does not call it during an outage; the breaker is open: readers get ErrOverloaded"},
		{seen{}, down, nil, "Redis did not reply to this look-up; each process loads it for itself"},

		{seen{Redis: redis, Filter: "may exist"}, nil, nil, "served from Redis, read from the source at 04:31:00; its TTL ends at 04:41:00"},
		{seen{Redis: null}, nil, nil, "absent: the source did not have it; this ends at 04:33:00; if the row exists now, invalidate the key"},
		{seen{Redis: stale}, nil, nil, "served stale from Redis, read from the source at 04:21:00: the next reader loads it; it ends at 04:32:20"},
		{seen{Redis: stale, Leased: true}, nil, nil, "served stale from Redis, read from the source at 04:21:00: it is being loaded now; it ends at 04:32:20"},
		{seen{Redis: stale}, nil, open, "served stale from Redis, read from the source at 04:21:00: the breaker is open, and nothing is loaded; it ends at 04:32:20"},
		{seen{Local: stale0(stale)}, nil, alone, "served stale from this process, read from the source at 04:21:00: the next reader loads it"},

		{seen{Redis: old, HeldError: down}, nil, nil, "served stale in place of an error, read from the source at 03:32:00: its load fails: the database is down; it ends at 05:02:00"},
		{seen{Redis: old}, nil, open, "served stale in place of an error, read from the source at 03:32:00: the breaker is open, and nothing is loaded; it ends at 05:02:00"},
		{seen{Local: kept, HeldError: down}, nil, nil, "served stale in place of an error, read from the source at 04:27:00: its load fails: the database is down"},
		{seen{Redis: old, Loading: true}, nil, nil, "past its TTL: it is being loaded now; the old value, read from the source at 03:32:00, is served only if that fails; it ends at 05:02:00"},
		{seen{HeldError: down}, nil, nil, "not cached, readers get an error: its load fails: the database is down"},
		{seen{Redis: dead}, nil, open, "not cached, readers get an error: the breaker is open, and nothing is loaded"},
		{seen{Holds: []time.Duration{20 * time.Hour, time.Second}}, nil, nil, "not cached: a writer, or the lag of replicas, holds it until 2026-11-29 00:32:00 at most; readers load it"},
		{seen{Redis: dead, Leased: true}, nil, nil, "not cached: it is being loaded now"},
		{seen{}, nil, nil, "not cached: the next reader loads it"},
		{seen{LocalUnknown: true}, nil, nil, "not cached: the next reader loads it; what this process holds of it is unknown"},
	} {
		stats := cache.Stats{Live: true}
		if row.change != nil {
			row.change(&stats)
		}
		if got := Of(row.seen, row.err, stats, now).Verdict; got != row.want {
			t.Errorf("%+v, %v\ngot  %s\nwant %s", row.seen, row.err, got, row.want)
		}
	}
}

// stale0 is v past its time in the local tier.
func stale0(v *inside.Standing) *inside.Standing {
	past := *v
	past.Left = 0
	return &past
}
