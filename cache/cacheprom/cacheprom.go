// Package cacheprom gives the statistics of levee's caches, breakers, filters and lockers
// to Prometheus.
//
//	err := cacheprom.Register(prometheus.DefaultRegisterer, products, bySlug)
//
// A cache brings its breaker and its filter along, each once, whoever shares it. Names are
// those of the Options. What a cache does not use is absent: what concerns Redis without a
// client, a filter without one, a feed before Follow, an Audit before it has compared
// something, and a histogram without values.
//
// Nothing is counted twice: each scrape reads a snapshot, so a read of the cache costs
// what it costs without Prometheus. No key is ever a label.
//
// [Dashboard] is a dashboard for Grafana, [Alerts] are rules for Prometheus, in which each
// alert says what to do. docs/reference/stats.md of the module levee has a line for each metric.
package cacheprom

import (
	_ "embed"
	"errors"
	"fmt"

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

// A Cache is a *cache.Cache, of whatever types.
type Cache interface {
	Name() string
	Stats() cache.Stats
	Inside() inside.Cache
}

// Register has caches scraped, with their breakers and filters. The metrics of a cache begin
// with levee_cache_ and have the label cache; those of breakers and filters begin with
// levee_breaker_ and levee_filter_ and have the label name. A breaker or a filter that has
// no name takes that of its first cache.
//
// Register may be called again with other caches, and changes nothing for one that is
// registered already. Caches of one name are added up. Closed caches go on giving their last
// counters: see [Unregister]. The error is that of reg, to which everything is one
// collector.
func Register(reg prometheus.Registerer, caches ...Cache) error {
	return with(reg, func(s *metrics.Set) {
		for _, c := range caches {
			s.Add(c)
		}
	})
}

// RegisterSum is [Register] for many caches that are scraped as one, such as a cache for each
// tenant: the label cache is name, counters and histograms are added up, and so are sizes and
// numbers; of a state it says the worst. Their own breakers are added up too. Call it
// again, with the same name, for a cache that comes later, and Unregister for one that is
// closed.
func RegisterSum(reg prometheus.Registerer, name string, caches ...Cache) error {
	return with(reg, func(s *metrics.Set) {
		s.AddSum(name)
		for _, c := range caches {
			s.AddSum(name, c)
		}
	})
}

// Unregister ends the scraping of caches, and of breakers and filters that no other cache
// has. The counters of a sum keep what was counted in it.
func Unregister(reg prometheus.Registerer, caches ...Cache) {
	_ = with(reg, func(s *metrics.Set) {
		for _, c := range caches {
			s.Remove(c)
		}
	})
}

// RegisterBreaker has a breaker scraped that no registered cache has. It needs a
// breaker.Options.Name.
func RegisterBreaker(reg prometheus.Registerer, b *breaker.Breaker) error {
	if b.Name() == "" {
		return errors.New("cacheprom: the breaker has no name")
	}
	return with(reg, func(s *metrics.Set) { s.AddBreaker(b) })
}

// RegisterFilter has a filter scraped that no registered cache has. It needs a
// bloom.Options.Name.
func RegisterFilter(reg prometheus.Registerer, f *bloom.Filter) error {
	if f.Name() == "" {
		return errors.New("cacheprom: the filter has no name")
	}
	return with(reg, func(s *metrics.Set) { s.AddFilter(f) })
}

// RegisterLocker has a Locker scraped, with those made of it by With, which count together.
// Its metrics begin with levee_lock_ and have the label name, which is name.
func RegisterLocker(reg prometheus.Registerer, name string, l *lock.Locker) error {
	return with(reg, func(s *metrics.Set) { s.AddLocker(name, l) })
}

// with does something with the set of a registry.
func with(reg prometheus.Registerer, do func(*metrics.Set)) error {
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
	do(&c.set)
	return nil
}

// A collector makes all metrics of a registry at each scrape.
type collector struct {
	set   metrics.Set
	descs map[*metrics.Info]*prometheus.Desc
}

func newCollector() *collector {
	c := &collector{descs: map[*metrics.Info]*prometheus.Desc{}}
	for _, f := range metrics.Infos() {
		labels := []string{f.Label}
		if f.Outcomes != nil {
			labels = append(labels, "outcome")
		}
		c.descs[f] = prometheus.NewDesc(f.Name, f.Help, labels, nil)
	}
	return c
}

// Describe is called by the registry.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
}

// Collect is called by the registry.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.set.Read(func(f *metrics.Info, name string, p metrics.Point) {
		kind := prometheus.CounterValue
		if f.Gauge {
			kind = prometheus.GaugeValue
		}
		switch {
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

// constHistogram gives Prometheus a histogram as it wants it: each bucket holds those
// before it too.
func constHistogram(desc *prometheus.Desc, h cache.Histogram, name string) prometheus.Metric {
	buckets, sum := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, bound := range h.Bounds {
		sum += h.Counts[i]
		buckets[bound.Seconds()] = sum
	}
	return prometheus.MustNewConstHistogram(desc, h.Count(), h.Sum.Seconds(), buckets, name)
}
