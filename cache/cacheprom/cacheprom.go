// Package cacheprom gives the statistics of levee's caches, breakers, filters and lockers
// to Prometheus.
//
//	prometheus.MustRegister(
//		cacheprom.Cache("product", products),
//		cacheprom.Breaker("catalog", db),
//		cacheprom.Filter("product", exists),
//		cacheprom.Locker("orders", locker),
//	)
//
// Nothing is counted twice: each scrape reads a snapshot, so a read of the cache costs
// what it costs without Prometheus. No key is ever a label.
//
// [Dashboard] is a dashboard for Grafana, [Alerts] are rules for Prometheus, in which each
// alert says what to do. docs/stats.md of the module levee has a line for each metric.
package cacheprom

import (
	_ "embed"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/metrics"
	"github.com/levee-go/levee/lock"
)

// Dashboard is a dashboard for Grafana 10 and later, to be imported or provisioned. It asks
// for its data source.
//
//go:embed dashboard.json
var Dashboard string

// Alerts is a file of alerting rules for Prometheus.
//
//go:embed alerts.yml
var Alerts string

// Cache returns a collector of the statistics of c, which is a *cache.Cache. Its metrics begin
// with levee_cache_ and have the label cache, which is name. It may be collected concurrently
// and does not block: a scrape reads Stats once. Register refuses a second collector of the same
// name. A closed cache goes on giving its last counters: unregister its collector.
func Cache(name string, c interface{ Stats() cache.Stats }) prometheus.Collector {
	return newCollector("cache", name, c.Stats, metrics.Cache)
}

// Breaker is [Cache] for a breaker. Its metrics begin with levee_breaker_ and have the label
// name. Register a breaker that several caches share once.
func Breaker(name string, b *breaker.Breaker) prometheus.Collector {
	return newCollector("name", name, b.Stats, metrics.Breaker)
}

// Filter is [Cache] for a filter. Its metrics begin with levee_filter_ and have the label name.
func Filter(name string, f *bloom.Filter) prometheus.Collector {
	return newCollector("name", name, f.Stats, metrics.Filter)
}

// Locker is [Cache] for a Locker and those made of it by With, which count together. Its
// metrics begin with levee_lock_ and have the label name.
func Locker(name string, l *lock.Locker) prometheus.Collector {
	return newCollector("name", name, l.Stats, metrics.Lock)
}

// A collector makes the metrics of one thing at each scrape.
type collector[S any] struct {
	stats    func() S
	families []metrics.Family[S]
	descs    []*prometheus.Desc // of families
}

func newCollector[S any](label, name string, stats func() S, families []metrics.Family[S]) *collector[S] {
	c := &collector[S]{stats: stats, families: families}
	for _, f := range families {
		var labels []string
		if f.Outcomes != nil {
			labels = []string{"outcome"}
		}
		c.descs = append(c.descs, prometheus.NewDesc(f.Name, f.Help, labels, prometheus.Labels{label: name}))
	}
	return c
}

// Describe is called by the registry.
func (c *collector[S]) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

// Collect is called by the registry.
func (c *collector[S]) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	for i, f := range c.families {
		kind := prometheus.CounterValue
		if f.Gauge {
			kind = prometheus.GaugeValue
		}
		switch {
		case f.Histogram != nil:
			out <- constHistogram(c.descs[i], f.Histogram(&s))
		case f.Outcomes != nil:
			for _, o := range f.Outcomes {
				out <- prometheus.MustNewConstMetric(c.descs[i], kind, float64(o.Value(&s)), o.Name)
			}
		default:
			out <- prometheus.MustNewConstMetric(c.descs[i], kind, f.Value(&s))
		}
	}
}

// constHistogram gives Prometheus a histogram as it wants it: each bucket holds those
// before it too.
func constHistogram(desc *prometheus.Desc, h cache.Histogram) prometheus.Metric {
	buckets, sum := make(map[float64]uint64, len(h.Buckets)), uint64(0)
	for _, b := range h.Buckets {
		sum += b.Count
		buckets[b.Bound.Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(desc, sum+h.Over, h.Sum.Seconds(), buckets)
}
