package audit

import (
	"bytes"
	"hash/fnv"
	"time"

	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/logonce"
)

// A judge compares what a cache gives with its source, for Run, a Shadow and a Ledger alike. It uses no
// clock but its own process's, and no time that a value carries, as that is of another host's clock.
type judge[K comparable, V any] struct {
	of    inside.Audit[K, V]
	equal func(cached, source V) bool // nil: see same
}

// A doubt is a stored value that differed from the source.
type doubt struct {
	stored any  // inside.Look.Stored
	sure   bool // it is older than what the source had: always, but for a source that may lag
}

// A verdict says what a look at a cache and then at its source has found.
type verdict int

const (
	nothing verdict = iota // a Get would load
	right                  // what the source has
	differs                // something else: a change may be about to be invalidated
	sure                   // the value of the doubt, which differs again, this time surely from a newer row: to be looked at again
	still                  // the value of a sure doubt, and it differs again
)

// verdict judges a look. d is the doubt of an earlier one; nil: there is none.
//
// The source is read after the cache. So a value that differs lacks a change that was committed before the
// source was read; unless the source lags, and is the older of the two. If the same stored value differs
// again later, that change was not invalidated in between. A second change makes no value old that was loaded
// after the first one: it is another stored value, and so a new doubt. A source that lags has caught up with the
// value in between; so from a second look on, a value that differs is the older of the two, even if the row never
// rests.
func (j *judge[K, V]) verdict(look inside.Look[V], d *doubt) (verdict, error) {
	if !look.There {
		return nothing, nil
	}
	same, err := j.same(look.Cached, look.Null, look.Source, look.Gone)
	switch {
	case err != nil:
		return nothing, err
	case same:
		return right, nil
	case d == nil || d.stored != look.Stored:
		return differs, nil
	case !d.sure:
		return sure, nil
	}
	return still, nil
}

// doubt returns the doubt that a look leaves which differs, or is sure.
func (j *judge[K, V]) doubt(look inside.Look[V], is verdict) *doubt {
	return &doubt{look.Stored, is == sure || j.of.ReplicaLag == 0}
}

// same reports whether two answers are equal, each a value or that there is none. By default values are equal if their
// fields are, or their bytes: what a Codec leaves out differs in none, and it may write the same map in another order
// each time.
func (j *judge[K, V]) same(a V, noA bool, b V, noB bool) (bool, error) {
	switch {
	case noA || noB:
		return noA == noB, nil
	case j.equal != nil:
		return j.equal(a, b), nil
	case same(a, b):
		return true, nil
	}
	one, err := j.of.Encode(a)
	other, otherErr := j.of.Encode(b)
	if (err == nil) != (otherErr == nil) {
		return false, nil // one of them cannot be stored
	}
	return bytes.Equal(one, other), err
}

func staleOf[K comparable, V any](key K, look inside.Look[V]) StaleValue[K, V] {
	return StaleValue[K, V]{Key: key, Cached: look.Cached, Null: look.Null, Source: look.Source, Gone: look.Gone, Age: look.Age}
}

// settle returns the default of Settle. A process notices within 3 s that no messages arrive, and serves
// what its memory has until then.
func settle(replicaLag time.Duration) time.Duration { return 4*time.Second + 2*replicaLag }

// shared reports whether the key with an id is one of a share of all keys, which is the same in all processes.
func shared(id string, share float64) bool {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	n := h.Sum64() // in which short ids differ in few of the bits: MurmurHash3's fmix64 spreads them
	n = (n ^ n>>33) * 0xff51afd7ed558ccd
	n = (n ^ n>>33) * 0xc4ceb9fe1a85ec53
	n ^= n >> 33
	return float64(n>>11) < share*(1<<53)
}

func notCompared(log *logonce.Log, err error) {
	log.Warn("a value could not be compared with the source", "error", err)
}
