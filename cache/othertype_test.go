package cache_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// Two releases of a type, whose developer forgot to raise Schema.
type (
	priced   struct{ ID, Price int64 }
	inCents  struct{ ID, PriceCents int64 }
	priceToo struct{ Price, ID int64 } // stored as priced is
)

// releases opens a cache of each release in a process of its own, and counts its loads.
func oldRelease(r *rig, loads *int, changes ...func(*cache.Options)) *probe[int64, priced] {
	return open(r, cache.Source[int64, priced]{Load: func(_ context.Context, id int64) (priced, error) {
		*loads++
		return priced{id, 5}, nil
	}}, changes...)
}

func newRelease(r *rig, loads *int, changes ...func(*cache.Options)) *probe[int64, inCents] {
	return open(r, cache.Source[int64, inCents]{Load: func(_ context.Context, id int64) (inCents, error) {
		*loads++
		return inCents{id, 500}, nil
	}}, changes...)
}

// Without the fingerprint the new release reads a price of 0.
func TestAChangedTypeIsAMissAndAWarningNotZeros(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		var log redistest.Log
		logged := func(o *cache.Options) { o.Logger = log.Logger() }
		var loads int
		oldRelease(r, &loads).gives(r, 1, priced{1, 5})
		young := newRelease(r, &loads, logged)
		young.gives(r, 1, inCents{1, 500})
		young.gives(r, 1, inCents{1, 500})
		if loads != 2 {
			r.Errorf("%d loads", loads)
		}
		if s := young.Stats(); s.OtherType != 1 || s.Unfit != 0 {
			r.Errorf("%d counted as of another type, %d as unfit", s.OtherType, s.Unfit)
		}
		log.Await(r, "raise Schema by one")
		if n := log.Count("level=WARN"); n != 1 {
			r.Errorf("%d warnings", n)
		}
	})
}

// While both releases run, each of their processes loads a key about once in the life of
// its local tier. When the last process of one of them has gone, the other loads a key as
// often as ever.
func TestTwoReleasesWithOneSchemaDoNotThrashForLongerThanTheDeployment(t *testing.T) {
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		steady := func(o *cache.Options) { o.TTL, o.Jitter, o.EarlyRefresh = time.Hour, -1, -1 }
		var oldLoads, newLoads int
		old, young := oldRelease(r, &oldLoads, steady), newRelease(r, &newLoads, steady)
		for range 10 * 60 { // rolled forward and back, for ten minutes
			old.gives(r, 1, priced{1, 5})
			young.gives(r, 1, inCents{1, 500})
			time.Sleep(time.Second)
		}
		if total := oldLoads + newLoads; total > 2*10*60/(5*60)+4 {
			r.Errorf("%d loads in ten minutes by two processes", total)
		}
		for range 5*60 + 10 { // the old one is gone
			young.gives(r, 1, inCents{1, 500})
			time.Sleep(time.Second)
		}
		before := newLoads
		for range 10 * 60 {
			young.gives(r, 1, inCents{1, 500})
			time.Sleep(time.Second)
		}
		if newLoads != before {
			r.Errorf("%d loads after the deployment", newLoads-before)
		}
		if s := r.rdb.Get(r.ctx, valueKey(1)).Val(); !strings.Contains(s, "PriceCents") {
			r.Errorf("in Redis stands %q", s)
		}
	})
}

// A Set is a write of the owner's: it is not held back.
func TestASetReplacesAValueOfAnotherTypeAtOnce(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		var loads int
		old, young := oldRelease(r, &loads), newRelease(r, &loads)
		for range 3 {
			old.gives(r, 1, priced{1, 5})
			if err := young.Set(r.ctx, 1, inCents{1, 600}); err != nil {
				r.Fatal(err)
			}
			young.gives(r, 1, inCents{1, 600})
		}
	})
}

func TestASecondTypeUnderOneNameIsRefused(t *testing.T) {
	inBubble(t, cell{redis: "mini"}, func(r *rig, _ *redistest.MiniServer) {
		load := func(context.Context, int64) (priced, error) { return priced{}, nil }
		other := func(context.Context, int64) (inCents, error) { return inCents{}, nil }
		text := func(context.Context, int64) (string, error) { return "", nil }
		o := r.options(nil)
		first := redistest.Must(cache.New(r.rdb, load, o))
		elsewhere, own, raised := o, o, o
		elsewhere.Name, raised.Schema = "other", 1
		own.Codec = new(testCodec)
		for says, err := range map[string]error{
			"values of type cache_test.inCents are not": second(r, other, o),
			"would store them as they are":              second(r, text, o),
			"would store them with the Codec *cache_te": second(r, load, own), // of one type: the message named it twice
		} {
			if err == nil || !strings.Contains(err.Error(), `"test"`) || !strings.Contains(err.Error(), says) {
				r.Errorf("%s: %v", says, err)
			}
		}
		for name, err := range map[string]error{
			"the same":                 second(r, load, o),
			"one that is stored alike": second(r, func(context.Context, int64) (priceToo, error) { return priceToo{}, nil }, o),
			"another Name":             second(r, other, elsewhere),
			"another Schema":           second(r, other, raised),
		} {
			if err != nil {
				r.Errorf("%s: %v", name, err)
			}
		}
		_ = first.Close()
		_ = first.Close()
		if err := second(r, other, o); err != nil {
			r.Errorf("the first is closed: %v", err)
		}
		if err := second(r, other, own); err != nil {
			r.Error(err)
		}
	})
}

// second opens and closes a cache on the rig's own client.
func second[V any](r *rig, load cache.Loader[int64, V], o cache.Options) error {
	c, err := cache.New(r.rdb, load, o)
	if err == nil {
		_ = c.Close()
	}
	return err
}

func TestNewRefusesValuesThatCannotBeStored(t *testing.T) {
	load := func(context.Context, int64) (any, error) { return nil, nil }
	_, err := cache.New(nil, load, cache.Options{Name: "test"})
	if err == nil || !strings.HasPrefix(err.Error(), "cache: values of type interface {} cannot be stored without a Codec: ") {
		t.Errorf("New: %v", err)
	}
	c, err := cache.New(nil, load, cache.Options{Name: "test", Codec: new(testCodec)})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
