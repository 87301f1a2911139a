// Package cacheotel exports the statistics of levee's caches, breakers, filters and lockers to
// OpenTelemetry, and makes spans of the operations of a cache beyond a hit in its process.
//
//	products, err := cache.New(rdb, store.Product, cache.Options{
//		Name:  "product",
//		Hooks: cacheotel.Hooks(otel.GetTracerProvider()),
//	})
//	metrics, err := cacheotel.Register(otel.GetMeterProvider(), products)
//	defer metrics.Unregister()
//
// Registering a cache also registers its breaker and its filter; metrics of features that it does not
// use are absent. Metrics are read by callback when they are collected, so they do not slow down reads
// of the cache. Spans are made only within a span that is recording; otherwise a hook
// costs a few nanoseconds, and a hit in the process calls no hook. No key is in a metric or a
// span.
//
// The metrics have their names in Prometheus with dots in place of the first two underscores,
// without the suffixes that OpenTelemetry adds there: levee_cache_gets_total is levee.cache.gets.
// docs/reference/stats.md of the module levee has a line for each of them.
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

// A Cache is a *cache.Cache of any types.
type Cache interface {
	Name() string
	Stats() cache.Stats
	Inside() inside.Cache
}

// Register exports the statistics of caches, with their breakers and filters. Metrics of a cache
// have the attribute levee.cache, the cache's name; metrics of breakers and filters have
// levee.name. A breaker or a filter without a name gets the name of its first cache. Of a histogram
// Register exports the count and the sum: [Histograms] exports it whole.
//
// Register caches that share a breaker or a filter in one call: otherwise it is observed twice.
// Call Unregister of the result when the caches are closed. Register returns the errors of the
// MeterProvider for the instruments.
func Register(to metric.MeterProvider, caches ...Cache) (metric.Registration, error) {
	return register(to, func(s *metrics.Set) {
		for _, c := range caches {
			s.Add(c)
		}
	})
}

// RegisterSum exports many caches as one, such as a cache for each tenant: levee.cache is name;
// counters, sizes and numbers are added up, and of states the worst is exported. The breakers
// that the caches have made themselves are added up too. Otherwise it works as [Register].
func RegisterSum(to metric.MeterProvider, name string, caches ...Cache) (metric.Registration, error) {
	return register(to, func(s *metrics.Set) {
		for _, c := range caches {
			s.AddSum(name, c)
		}
	})
}

// RegisterBreaker exports a breaker that no registered cache uses. The breaker must have a name.
func RegisterBreaker(to metric.MeterProvider, b *breaker.Breaker) (metric.Registration, error) {
	if b.Name() == "" {
		return nil, errors.New("cacheotel: the breaker has no name")
	}
	return register(to, func(s *metrics.Set) { s.AddBreaker(b) })
}

// RegisterFilter exports a filter that no registered cache uses. The filter must have a name.
func RegisterFilter(to metric.MeterProvider, f *bloom.Filter) (metric.Registration, error) {
	if f.Name() == "" {
		return nil, errors.New("cacheotel: the filter has no name")
	}
	return register(to, func(s *metrics.Set) { s.AddFilter(f) })
}

// RegisterLocker exports a Locker, together with the Lockers that its With has made, which share
// its counters. The attribute levee.name is name.
func RegisterLocker(to metric.MeterProvider, name string, l *lock.Locker) (metric.Registration, error) {
	return register(to, func(s *metrics.Set) { s.AddLocker(name, l) })
}

// register exports the members of a set.
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

// A registry contains the instruments of a callback, by their names.
type registry struct {
	meter       metric.Meter
	instruments map[string]metric.Float64Observable
	errs        []error
}

// add makes the instruments of a family. OpenTelemetry's API has no histograms that are read by
// callback, so a histogram gets a count and a sum here; [Histograms] has its buckets.
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

// observe reports the values of a family to its instruments.
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
			attributes = append(attributes, attribute.String("levee."+f.Outcome, f.Outcomes[i]))
		}
		o.ObserveFloat64(r.instruments[name], value, metric.WithAttributes(attributes...))
	}
}

// named returns the OpenTelemetry name and the unit of a metric of Prometheus.
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
