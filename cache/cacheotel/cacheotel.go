// Package cacheotel gives the statistics of levee's caches, breakers, filters and lockers to
// OpenTelemetry, and makes spans of what a cache does beyond a hit in its process.
//
//	products, err := cache.New(rdb, store.Product, cache.Options{
//		Name:  "product",
//		Hooks: cacheotel.Hooks(otel.GetTracerProvider()),
//	})
//	metrics, err := cacheotel.Register(otel.GetMeterProvider(), products)
//	defer metrics.Unregister()
//
// A cache brings its breaker and its filter along, and what it does not use is absent. Metrics
// are read by callback when they are collected: a read of the cache costs what it
// costs without them. Spans are made within a span that is recording; without one a hook
// costs a few nanoseconds, and a hit in the process calls none. No key is in a metric or a
// span.
//
// The names of the metrics are those in Prometheus with dots between their words, without
// what OpenTelemetry adds there: levee_cache_gets_total is levee.cache.gets. docs/reference/stats.md
// of the module levee has a line for each of them.
package cacheotel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/cache/internal/metrics"
	"github.com/levee-go/levee/lock"
)

// scope names this library to OpenTelemetry.
const scope = "github.com/levee-go/levee/cache/cacheotel"

// A Cache is a *cache.Cache, of whatever types.
type Cache interface {
	Name() string
	Stats() cache.Stats
	Inside() inside.Cache
}

// Register has the statistics of caches collected, with their breakers and filters: those of
// a cache with the attribute levee.cache, which is its name, those of breakers and filters with
// levee.name. A breaker or a filter that has no name takes that of its first cache.
//
// Give caches that share a breaker or a filter to one call: what is registered twice is
// observed twice. Unregister what Register returns when the caches are closed. The errors are
// those of the MeterProvider for the instruments.
func Register(to metric.MeterProvider, caches ...Cache) (metric.Registration, error) {
	return register(to, func(s *metrics.Set) {
		for _, c := range caches {
			s.Add(c)
		}
	})
}

// RegisterSum is [Register] for many caches that are collected as one, such as a cache for
// each tenant: levee.cache is name, counters are added up, and so are sizes and numbers; of a
// state it says the worst. Their own breakers are added up too.
func RegisterSum(to metric.MeterProvider, name string, caches ...Cache) (metric.Registration, error) {
	return register(to, func(s *metrics.Set) {
		for _, c := range caches {
			s.AddSum(name, c)
		}
	})
}

// RegisterBreaker has a breaker collected that no registered cache has, with its name.
func RegisterBreaker(to metric.MeterProvider, b *breaker.Breaker) (metric.Registration, error) {
	if b.Name() == "" {
		return nil, errors.New("cacheotel: the breaker has no name")
	}
	return register(to, func(s *metrics.Set) { s.AddBreaker(b) })
}

// RegisterFilter has a filter collected that no registered cache has, with its name.
func RegisterFilter(to metric.MeterProvider, f *bloom.Filter) (metric.Registration, error) {
	if f.Name() == "" {
		return nil, errors.New("cacheotel: the filter has no name")
	}
	return register(to, func(s *metrics.Set) { s.AddFilter(f) })
}

// RegisterLocker has a Locker collected, with those made of it by With, which count together.
// Its attribute is levee.name, which is name.
func RegisterLocker(to metric.MeterProvider, name string, l *lock.Locker) (metric.Registration, error) {
	return register(to, func(s *metrics.Set) { s.AddLocker(name, l) })
}

// register has a set collected.
func register(to metric.MeterProvider, add func(*metrics.Set)) (metric.Registration, error) {
	var set metrics.Set
	add(&set)
	r := registry{meter: to.Meter(scope), instruments: map[string]metric.Float64Observable{}}
	for _, f := range metrics.Infos() {
		r.add(f)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, fmt.Errorf("cacheotel: %w", err)
	}
	all := slices.Collect(maps.Values(r.instruments))
	observables := make([]metric.Observable, len(all))
	for i, instrument := range all {
		observables[i] = instrument
	}
	return r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		set.Read(func(f *metrics.Info, name string, p metrics.Point) { r.observe(o, f, name, p) })
		return nil
	}, observables...)
}

// A registry is the instruments of a callback, by their names.
type registry struct {
	meter       metric.Meter
	instruments map[string]metric.Float64Observable
	errs        []error
}

// add makes the instruments of a family. OpenTelemetry has no histograms that are read by
// callback.
func (r *registry) add(f *metrics.Info) {
	name, unit := named(f.Name)
	if f.Histogram {
		r.make(false, name+".count", "1", f.Help)
		r.make(false, name+".sum", unit, f.Help)
		return
	}
	r.make(f.Gauge, name, unit, f.Help)
}

func (r *registry) make(gauge bool, name, unit, help string) {
	var instrument metric.Float64Observable
	var err error
	if gauge {
		instrument, err = r.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
	} else {
		instrument, err = r.meter.Float64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	}
	r.instruments[name], r.errs = instrument, append(r.errs, err)
}

// observe gives the values of a family to its instruments.
func (r *registry) observe(o metric.Observer, f *metrics.Info, of string, p metrics.Point) {
	name, _ := named(f.Name)
	key := attribute.String("levee."+f.Label, of)
	if f.Histogram {
		o.ObserveFloat64(r.instruments[name+".count"], float64(p.Histogram.Count()), metric.WithAttributes(key))
		o.ObserveFloat64(r.instruments[name+".sum"], p.Histogram.Sum.Seconds(), metric.WithAttributes(key))
		return
	}
	for i, value := range p.Values {
		attributes := []attribute.KeyValue{key}
		if f.Outcomes != nil {
			attributes = append(attributes, attribute.String("levee.outcome", f.Outcomes[i]))
		}
		o.ObserveFloat64(r.instruments[name], value, metric.WithAttributes(attributes...))
	}
}

// named makes the name that a metric of Prometheus has here, and its unit.
func named(prometheus string) (name, unit string) {
	name, unit = strings.TrimSuffix(prometheus, "_total"), "1"
	switch {
	case strings.HasSuffix(name, "_seconds"):
		name, unit = strings.TrimSuffix(name, "_seconds"), "s"
	case strings.HasSuffix(name, "_bytes"):
		unit = "By"
	}
	return strings.Replace(name, "_", ".", 2), unit
}
