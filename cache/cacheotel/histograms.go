package cacheotel

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/levee-go/levee/cache/internal/metrics"
)

// Histograms exports the histograms of caches, which [Register] exports as a count and a sum only:
// OpenTelemetry's API has no histogram that is read when it is collected. It is a metric.Producer of
// the SDK, to be given to each reader once, before there are caches:
//
//	var histograms cacheotel.Histograms
//	reader := metric.NewPeriodicReader(exporter, metric.WithProducer(&histograms))
//	...
//	histograms.Add(products) // beside Register, for everything else
//
// levee_cache_load_seconds is the histogram levee.cache.load here, with the attribute levee.cache. Its
// temporality is always cumulative, also where the reader prefers another one. The zero value is
// empty and ready for use, also concurrently.
type Histograms struct{ set metrics.Set }

// Add adds caches. One that is there already is ignored.
func (h *Histograms) Add(caches ...Cache) {
	for _, c := range caches {
		h.set.Add(c)
	}
}

// AddSum adds caches as one of this name, as [RegisterSum] does.
func (h *Histograms) AddSum(name string, caches ...Cache) {
	for _, c := range caches {
		h.set.AddSum(name, c)
	}
}

// Remove removes caches, as is due before they are closed. A sum keeps what they have counted.
func (h *Histograms) Remove(caches ...Cache) {
	for _, c := range caches {
		h.set.Remove(c)
	}
}

// started is when the counting may have begun.
var started = time.Now()

// Produce implements metric.Producer. Its error is always nil.
func (h *Histograms) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	now, all := time.Now(), map[string]metricdata.Metrics{}
	h.set.Read(func(f *metrics.Info, of string, p metrics.Point) {
		if !f.Histogram {
			return
		}
		name, unit := named(f.Name)
		data, _ := all[name].Data.(metricdata.Histogram[float64])
		data.Temporality = metricdata.CumulativeTemporality
		data.DataPoints = append(data.DataPoints, pointOf(f, of, p, now))
		all[name] = metricdata.Metrics{Name: name, Description: f.Help, Unit: unit, Data: data}
	})
	if len(all) == 0 {
		return nil, nil
	}
	byName := func(a, b metricdata.Metrics) int { return cmp.Compare(a.Name, b.Name) }
	return []metricdata.ScopeMetrics{{
		Scope:   instrumentation.Scope{Name: scope},
		Metrics: slices.SortedFunc(maps.Values(all), byName),
	}}, nil
}

// pointOf makes a data point of the histogram of one name. A bucket includes its upper bound, here and
// in OpenTelemetry.
func pointOf(f *metrics.Info, of string, p metrics.Point, now time.Time) metricdata.HistogramDataPoint[float64] {
	bounds := make([]float64, len(p.Histogram.Bounds))
	for i, bound := range p.Histogram.Bounds {
		bounds[i] = bound.Seconds()
	}
	return metricdata.HistogramDataPoint[float64]{
		Attributes: attribute.NewSet(attribute.String("levee."+f.Label, of)),
		StartTime:  started, Time: now,
		Count: p.Histogram.Count(), Sum: p.Histogram.Sum.Seconds(),
		Bounds: bounds, BucketCounts: p.Histogram.Counts,
	}
}
