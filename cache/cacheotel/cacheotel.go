// Package cacheotel gives the statistics of levee's caches, breakers, filters and lockers to
// OpenTelemetry, and makes spans of what a cache does beyond a hit in its process.
//
//	products, err := cache.New(rdb, store.Product, cache.Options{
//		Name:  "product",
//		Hooks: cacheotel.Hooks(otel.GetTracerProvider()),
//	})
//	metrics, err := cacheotel.Cache(otel.GetMeterProvider(), "product", products)
//	defer metrics.Unregister()
//
// Metrics are read by callback when they are collected: a read of the cache costs what it
// costs without them. Spans are made within a span that is recording; without one a hook
// costs a few nanoseconds, and a hit in the process calls none. No key is in a metric or a
// span.
//
// The names of the metrics are those in Prometheus with dots between their words, without
// what OpenTelemetry adds there: levee_cache_gets_total is levee.cache.gets. docs/stats.md
// of the module levee has a line for each of them.
package cacheotel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/metrics"
	"github.com/levee-go/levee/lock"
)

// scope names this library to OpenTelemetry.
const scope = "github.com/levee-go/levee/cache/cacheotel"

// Cache has the statistics of c, which is a *cache.Cache, collected with the attribute
// levee.cache, which is name. Call it once for each cache: a second registration is observed
// too, and doubles its counters. Unregister what it returns when the cache is closed. It
// returns the errors of the MeterProvider for the instruments, and none of its own.
func Cache(to metric.MeterProvider, name string, c interface{ Stats() cache.Stats }) (metric.Registration, error) {
	return register(to, "levee.cache", name, c.Stats, metrics.Cache)
}

// Breaker is [Cache] for a breaker, whose attribute is levee.name. Call it once for a breaker
// that several caches share.
func Breaker(to metric.MeterProvider, name string, b *breaker.Breaker) (metric.Registration, error) {
	return register(to, "levee.name", name, b.Stats, metrics.Breaker)
}

// Filter is [Cache] for a filter, whose attribute is levee.name.
func Filter(to metric.MeterProvider, name string, f *bloom.Filter) (metric.Registration, error) {
	return register(to, "levee.name", name, f.Stats, metrics.Filter)
}

// Locker is [Cache] for a Locker and those made of it by With, which count together. Its
// attribute is levee.name.
func Locker(to metric.MeterProvider, name string, l *lock.Locker) (metric.Registration, error) {
	return register(to, "levee.name", name, l.Stats, metrics.Lock)
}

// An observation gives one value of a snapshot to its instrument.
type observation[S any] func(metric.Observer, *S)

// register has the families of a thing collected.
func register[S any](to metric.MeterProvider, key attribute.Key, name string, stats func() S, families []metrics.Family[S]) (metric.Registration, error) {
	r := registry[S]{meter: to.Meter(scope), name: key.String(name)}
	for _, f := range families {
		r.add(f)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, fmt.Errorf("cacheotel: %w", err)
	}
	return r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		for _, observe := range r.observations {
			observe(o, &s)
		}
		return nil
	}, r.instruments...)
}

// A registry is what a callback needs.
type registry[S any] struct {
	meter        metric.Meter
	name         attribute.KeyValue
	instruments  []metric.Observable
	observations []observation[S]
	errs         []error
}

func (r *registry[S]) add(f metrics.Family[S]) {
	name, unit := named(f.Name)
	switch {
	case f.Histogram != nil: // OpenTelemetry has none that are read by callback
		r.counter(name+".count", "1", f.Help, func(s *S) float64 { return float64(f.Histogram(s).Count()) })
		r.counter(name+".sum", unit, f.Help, func(s *S) float64 { return f.Histogram(s).Sum.Seconds() })
	case f.Outcomes != nil:
		instrument := r.make(f.Gauge, name, unit, f.Help)
		for _, outcome := range f.Outcomes {
			r.observe(instrument, func(s *S) float64 { return float64(outcome.Value(s)) }, attribute.String("levee.outcome", outcome.Name))
		}
	default:
		r.observe(r.make(f.Gauge, name, unit, f.Help), f.Value)
	}
}

func (r *registry[S]) counter(name, unit, help string, value func(*S) float64) {
	r.observe(r.make(false, name, unit, help), value)
}

// make makes an instrument.
func (r *registry[S]) make(gauge bool, name, unit, help string) (instrument metric.Float64Observable) {
	var err error
	if gauge {
		instrument, err = r.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
	} else {
		instrument, err = r.meter.Float64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
	}
	r.instruments, r.errs = append(r.instruments, instrument), append(r.errs, err)
	return instrument
}

// observe adds a value of an instrument.
func (r *registry[S]) observe(instrument metric.Float64Observable, value func(*S) float64, more ...attribute.KeyValue) {
	attributes := metric.WithAttributeSet(attribute.NewSet(append(more, r.name)...))
	r.observations = append(r.observations, func(o metric.Observer, s *S) {
		o.ObserveFloat64(instrument, value(s), attributes)
	})
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
