package metrics

import (
	"maps"
	"slices"
	"sync"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/lock"
)

// A Cache is a *cache.Cache of any types.
type Cache interface {
	Name() string
	Stats() cache.Stats
	Inside() inside.Cache
}

// A Set is what an exporter shows: caches with their breakers and filters, each once, and other
// things that were added. Things of one name are added up and shown as one. The zero value is
// empty; it may be used concurrently.
type Set struct {
	mu       sync.Mutex // guards what follows
	members  []member
	breakers []*breaker.Breaker
	filters  []*bloom.Filter
	lockers  []locker
	sums     map[string]bool // names of AddSum
	gone     readings        // counters of removed caches that sums still include
}

// A member is a cache, and the name under which it is shown.
type member struct {
	Cache
	name string
}

type locker struct {
	*lock.Locker
	name string
}

// Add adds caches that are not in the set yet, each under its own name.
func (s *Set) Add(caches ...Cache) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range caches {
		s.add(c, c.Name())
	}
}

// AddSum adds caches that are not in the set yet, all under one name.
func (s *Set) AddSum(name string, caches ...Cache) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sums == nil {
		s.sums = map[string]bool{}
	}
	s.sums[name] = true
	for _, c := range caches {
		s.add(c, name)
	}
}

func (s *Set) add(c Cache, name string) {
	if !slices.ContainsFunc(s.members, func(m member) bool { return m.Cache == c }) {
		s.members = append(s.members, member{c, name})
	}
}

// AddBreaker adds a breaker, which need not belong to a cache.
func (s *Set) AddBreaker(b *breaker.Breaker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breakers = append(s.breakers, b)
}

// AddFilter adds a filter, which need not belong to a cache.
func (s *Set) AddFilter(f *bloom.Filter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filters = append(s.filters, f)
}

// AddLocker adds a Locker.
func (s *Set) AddLocker(name string, l *lock.Locker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.lockers, func(other locker) bool { return other.Locker == l }) {
		s.lockers = append(s.lockers, locker{l, name})
	}
}

// Remove removes caches. A sum keeps the counts of their counters, because a counter must not
// fall.
func (s *Set) Remove(caches ...Cache) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.read()
	s.members = slices.DeleteFunc(s.members, func(m member) bool { return slices.Contains(caches, m.Cache) })
	s.gone = nil
	after := s.read()
	for at, point := range before {
		if !s.sums[at.name] || at.Gauge {
			continue
		}
		if s.gone == nil {
			s.gone = readings{}
		}
		s.gone[at] = point.minus(after[at])
	}
}

// Read calls tell for each family that is in use and for each name.
func (s *Set) Read(tell func(f *Info, name string, p Point)) {
	s.mu.Lock()
	all := s.read()
	s.mu.Unlock()
	for at, point := range all {
		if !at.Histogram || point.Histogram.Count() > 0 {
			tell(at.Info, at.name, point)
		}
	}
}

func (s *Set) read() readings {
	all := readings{}
	for _, m := range s.members {
		stats := m.Stats()
		put(all, Caches, m.name, &stats, partsOf(m.Cache, &stats))
	}
	for b, name := range s.namedBreakers() {
		stats := b.Stats()
		put(all, Breakers, name, &stats, 0)
	}
	for f, name := range s.namedFilters() {
		stats := f.Stats()
		put(all, Filters, name, &stats, 0)
	}
	for _, l := range s.lockers {
		stats := l.Stats()
		put(all, Lockers, l.name, &stats, 0)
	}
	for at, point := range s.gone {
		all.add(at, point, nil)
	}
	return all
}

// partsOf returns the optional parts that a cache has.
func partsOf(c Cache, s *cache.Stats) (parts Part) {
	for part, has := range map[Part]bool{
		Redis:  !s.Rebuild.InProcess,
		Filter: c.Inside().Filter != nil,
		Feed:   s.Follow != feed.Stats{},
		Audit:  s.Audit.Compared+s.Audit.Failed > 0,
		Shadow: s.Shadow != cache.ShadowStats{},
		Ledger: s.Ledger != cache.LedgerStats{},
		Local:  s.LocalTier.Filled+s.LocalTier.Refused+s.LocalTier.Flushes > 0,
	} {
		if has {
			parts |= part
		}
	}
	return parts
}

// namedBreakers returns the breakers of the set, each once, with their names. A breaker without a
// name of its own gets the name under which its cache is shown.
func (s *Set) namedBreakers() map[*breaker.Breaker]string {
	all := map[*breaker.Breaker]string{}
	for _, b := range s.breakers {
		all[b] = b.Name()
	}
	for _, m := range s.members {
		if b := m.Inside().Breaker; b != nil {
			name(all, b, b.Name(), m)
		}
	}
	return all
}

// namedFilters returns the filters of the set, each once, with their names, as namedBreakers
// does.
func (s *Set) namedFilters() map[*bloom.Filter]string {
	all := map[*bloom.Filter]string{}
	for _, f := range s.filters {
		all[f] = f.Name()
	}
	for _, m := range s.members {
		if f, _ := m.Inside().Filter.(*bloom.Filter); f != nil {
			name(all, f, f.Name(), m)
		}
	}
	return all
}

// name names a part of a cache.
func name[T comparable](all map[T]string, part T, own string, of member) {
	if own == "" || own == of.Cache.Name() {
		own = of.name
	}
	if _, named := all[part]; !named {
		all[part] = own
	}
}

// Infos returns descriptions of all families.
func Infos() []*Info { return slices.Collect(maps.Values(infos)) }

// An Info describes a family for an exporter.
type Info struct {
	Name, Help string
	Label      string   // label for the name of a thing: "cache" for a cache, otherwise "name"
	Gauge      bool     // false: a counter or a histogram
	Histogram  bool     // it is a histogram
	Outcomes   []string // names of a Point's values; nil: it has one value
	Outcome    string   // label for these: "outcome" or "after"
}

// infos are the descriptions of all families, by name.
var infos = map[string]*Info{}

func init() {
	inform(Caches, "cache")
	inform(Breakers, "name")
	inform(Filters, "name")
	inform(Lockers, "name")
}

func inform[S any](families []Family[S], label string) {
	for _, f := range families {
		info := &Info{Name: f.Name, Help: f.Help, Label: label, Gauge: f.Gauge, Histogram: f.Histogram != nil, Outcome: "outcome"}
		if f.ByAge {
			info.Outcome = "after"
		}
		for _, o := range f.Outcomes {
			info.Outcomes = append(info.Outcomes, o.Name)
		}
		infos[f.Name] = info
	}
}
