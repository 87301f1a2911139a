// Package cacheprom exports the statistics of levee's caches, breakers, filters and lockers
// to Prometheus.
//
//	err := cacheprom.Register(prometheus.DefaultRegisterer, products, bySlug)
//
// Registering a cache also registers its breaker and its filter, each once, even if caches share
// it. Names come from the Options. Metrics of features that a cache does not use are absent:
// metrics of Redis without a client, of a filter without one, of a feed before Follow, of an
// Audit before it has compared a value, of a Shadow and a Ledger before they have looked, and
// histograms without values.
//
// The package counts nothing itself: each scrape reads a snapshot, so it does not slow down reads of
// the cache. No key is ever a label.
//
// [Dashboard] is a dashboard for Grafana. [Alerts] are rules for Prometheus; each alert says
// what to do. Both are by job and namespace, and prometheusrule.yaml beside them has the alerts
// for the operator of Prometheus. [Fewer] exports fewer series, for many processes with many caches. docs/reference/stats.md of the module levee has a line for each metric.
package cacheprom

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/cache/internal/metrics"
	"github.com/levee-go/levee/lock"
)

// Dashboard is a dashboard for Grafana 10 and later, to be imported or provisioned. Grafana lets
// you choose its data source.
//
//go:embed dashboard.json
var Dashboard string

// Alerts is a file of alerting rules for Prometheus.
//
//go:embed alerts.yml
var Alerts string

// A Cache is a *cache.Cache of any types.
type Cache interface {
	Name() string
	Stats() cache.Stats
	Inside() inside.Cache
}

// Register exports caches, with their breakers and filters. The metrics of a cache begin with
// levee_cache_, those of an audit.Ledger with levee_audit_, and have the label cache; metrics of breakers and filters begin with
// levee_breaker_ and levee_filter_ and have the label name. A breaker or a filter without a name
// gets the name of its first cache.
//
// Register may be called again with other caches; a cache that is registered already is ignored.
// Caches of one name are added up. A closed cache keeps exporting its last counters: see
// [Unregister]. Register returns the error of reg, where all metrics are one collector.
func Register(reg prometheus.Registerer, caches ...Cache) error {
	return with(reg, func(s *metrics.Set) {
		for _, c := range caches {
			s.Add(c)
		}
	})
}

// RegisterSum exports many caches as one, such as a cache for each tenant: the label cache is
// name; counters, histograms, sizes and numbers are added up, and of states the worst is
// exported. The breakers that the caches have made themselves are added up too. Call RegisterSum
// again, with the same name, for a cache that is made later, and Unregister for one that is
// closed. Otherwise it works as [Register].
func RegisterSum(reg prometheus.Registerer, name string, caches ...Cache) error {
	return with(reg, func(s *metrics.Set) {
		s.AddSum(name)
		for _, c := range caches {
			s.AddSum(name, c)
		}
	})
}

// Unregister ends the export of caches, and of breakers and filters that no other registered
// cache uses. A sum keeps the counts of its removed caches.
func Unregister(reg prometheus.Registerer, caches ...Cache) {
	_ = with(reg, func(s *metrics.Set) {
		for _, c := range caches {
			s.Remove(c)
		}
	})
}

// RegisterBreaker exports a breaker that no registered cache uses. It needs a
// breaker.Options.Name.
func RegisterBreaker(reg prometheus.Registerer, b *breaker.Breaker) error {
	if b.Name() == "" {
		return errors.New("cacheprom: the breaker has no name")
	}
	return with(reg, func(s *metrics.Set) { s.AddBreaker(b) })
}

// RegisterFilter exports a filter that no registered cache uses. It needs a bloom.Options.Name.
func RegisterFilter(reg prometheus.Registerer, f *bloom.Filter) error {
	if f.Name() == "" {
		return errors.New("cacheprom: the filter has no name")
	}
	return with(reg, func(s *metrics.Set) { s.AddFilter(f) })
}

// RegisterLocker exports a Locker, together with the Lockers that its With has made, which share
// its counters. Its metrics begin with levee_lock_ and have the label name, which is name.
func RegisterLocker(reg prometheus.Registerer, name string, l *lock.Locker) error {
	return with(reg, func(s *metrics.Set) { s.AddLocker(name, l) })
}

// Fewer makes reg export fewer series, about six in ten of a cache's: histograms without buckets,
// as a sum and a count, and none of the metrics that neither an alert nor a panel of the dashboard
// uses. All alerts work without them; panels of percentiles show the mean alone. It may be
// called before or after things are registered, and cannot be undone.
func Fewer(reg prometheus.Registerer) error {
	return withCollector(reg, func(c *collector) { c.fewer.Store(true) })
}

// with calls do with the set of a registry.
func with(reg prometheus.Registerer, do func(*metrics.Set)) error {
	return withCollector(reg, func(c *collector) { do(&c.set) })
}

// withCollector calls do with the collector of a registry, and registers one if there is none.
func withCollector(reg prometheus.Registerer, do func(*collector)) error {
	c := newCollector()
	err := reg.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		registered, ours := there.ExistingCollector.(*collector)
		if !ours {
			return fmt.Errorf("cacheprom: another collector has levee's metrics: %w", err)
		}
		c, err = registered, nil
	}
	if err != nil {
		return fmt.Errorf("cacheprom: %w", err)
	}
	do(c)
	return nil
}

// A collector makes all metrics of a registry at each scrape.
type collector struct {
	set   metrics.Set
	descs map[*metrics.Info]*prometheus.Desc
	fewer atomic.Bool // Fewer was called
}

func newCollector() *collector {
	c := &collector{descs: map[*metrics.Info]*prometheus.Desc{}}
	for _, f := range metrics.Infos() {
		labels := []string{f.Label}
		if f.Outcomes != nil {
			labels = append(labels, f.Outcome)
		}
		c.descs[f] = prometheus.NewDesc(f.Name, f.Help, labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	fewer := c.fewer.Load()
	c.set.Read(func(f *metrics.Info, name string, p metrics.Point) {
		if fewer && slices.Contains(seldom, f.Name) {
			return
		}
		kind := prometheus.CounterValue
		if f.Gauge {
			kind = prometheus.GaugeValue
		}
		switch {
		case f.Histogram && fewer:
			out <- prometheus.MustNewConstSummary(c.descs[f], p.Histogram.Count(), p.Histogram.Sum.Seconds(), nil, name)
		case f.Histogram:
			out <- constHistogram(c.descs[f], p.Histogram, name)
		case f.Outcomes != nil:
			for i, outcome := range f.Outcomes {
				out <- prometheus.MustNewConstMetric(c.descs[f], kind, p.Values[i], name, outcome)
			}
		default:
			out <- prometheus.MustNewConstMetric(c.descs[f], kind, p.Values[0], name)
		}
	})
}

// seldom are the metrics that Fewer leaves out: those of neither a panel nor an alert nor its runbook.
var seldom = []string{
	"levee_cache_cleared_total", "levee_cache_local_flushes_total", "levee_cache_outages_total",
	"levee_breaker_service_seconds", "levee_breaker_timeouts_total", "levee_breaker_shed_total",
	"levee_filter_complete", "levee_filter_rebuilding", "levee_filter_fill", "levee_filter_bytes",
	"levee_filter_adds_total", "levee_filter_removes_total", "levee_filter_rebuilds_total", "levee_filter_downloads_total",
	"levee_lock_messages_live",
}

// constHistogram makes a histogram of Prometheus, in which each bucket includes the smaller ones.
func constHistogram(desc *prometheus.Desc, h cache.Histogram, name string) prometheus.Metric {
	buckets, sum := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, bound := range h.Bounds {
		sum += h.Counts[i]
		buckets[bound.Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(desc, h.Count(), h.Sum.Seconds(), buckets, name)
}
