package cachedebug

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/look"
)

// A report is the content of the page. Its JSON is for people and their shell, not for programs:
// its names follow Stats, and may change with it.
type report struct {
	At      time.Time      `json:"at"`
	Caches  []cacheReport  `json:"caches"`
	Filters []filterReport `json:"filters,omitempty"`
	Lookup  *lookup        `json:"lookup,omitempty"`
	Log     []string       `json:"log,omitempty"`
}

type cacheReport struct {
	Name    string      `json:"name"`
	Health  []mark      `json:"health"`
	Shares  []share     `json:"shares"` // of the Gets that ended
	TopKeys []HotKey    `json:"topKeys,omitempty"`
	Looks   []looks     `json:"looks,omitempty"` // of an audit.Ledger
	Stats   cache.Stats `json:"stats"`
}

type filterReport struct {
	Name   string      `json:"name"`
	Health []mark      `json:"health"`
	Stats  bloom.Stats `json:"stats"`
}

// A mark is a state, and whether that state is good.
type mark struct {
	What string `json:"what"`
	Is   string `json:"is"`
	OK   bool   `json:"ok"`
}

// A share is how many Gets ended in one way.
type share struct {
	Outcome string  `json:"outcome"`
	Gets    uint64  `json:"gets"`
	Share   float64 `json:"share"`
}

// A looks is how many looks of a Ledger a time after a change have found an old value.
type looks struct {
	After  string `json:"after"`
	Looked uint64 `json:"looked"`
	Old    uint64 `json:"old"`
}

func looksOf(s cache.LedgerStats) []looks {
	if s == (cache.LedgerStats{}) {
		return nil
	}
	return []looks{{"1 s", s.Looked1s, s.Old1s}, {"2 s", s.Looked2s, s.Old2s}, {"10 s", s.Looked10s, s.Old10s}, {"60 s", s.Looked60s, s.Old60s}}
}

func (h *Handler) report() report {
	r := report{At: time.Now(), Log: h.o.Log.Lines()}
	for _, c := range h.o.Caches {
		r.Caches = append(r.Caches, h.reportOf(c))
	}
	for _, name := range slices.Sorted(maps.Keys(h.o.Filters)) {
		stats := h.o.Filters[name].Stats()
		r.Filters = append(r.Filters, filterReport{name, healthOfFilter(stats), stats})
	}
	return r
}

func (h *Handler) reportOf(c Cache) cacheReport {
	s := c.Stats()
	return cacheReport{Name: c.Name(), Health: healthOf(s), Shares: sharesOf(s), TopKeys: TopKeys(c, h.o.TopKeys), Looks: looksOf(s.Ledger), Stats: s}
}

// sharesOf returns how the Gets ended, in the order of the read path.
func sharesOf(s cache.Stats) []share {
	shares := []share{
		{Outcome: "local", Gets: s.Local}, {Outcome: "null", Gets: s.Null}, {Outcome: "filter", Gets: s.Filter}, {Outcome: "redis", Gets: s.Redis},
		{Outcome: "joined", Gets: s.Joined}, {Outcome: "loaded", Gets: s.Loaded}, {Outcome: "stale", Gets: s.Stale},
		{Outcome: "not_cached", Gets: s.NotCached}, {Outcome: "error", Gets: s.Errors},
	}
	var all uint64
	for _, s := range shares {
		all += s.Gets
	}
	for i := range shares {
		shares[i].Share = float64(shares[i].Gets) / float64(max(all, 1))
	}
	return shares
}

func healthOf(s cache.Stats) []mark {
	circuit := mark{"breaker", s.Breaker.State.String(), s.Breaker.State == breaker.Closed}
	if s.Rebuild.InProcess {
		return []mark{{"Redis", "none: this process alone", true}, circuit}
	}
	redis := mark{"Redis", "answers", true}
	if s.Rebuild.Outage {
		redis = mark{"Redis", "outage", false}
	}
	messages := mark{"messages", "arrive", true}
	if !s.Live {
		messages = mark{"messages", "do not arrive", false}
	}
	pending := mark{"invalidations", "confirmed", true}
	if n := s.Rebuild.Unconfirmed; n > 0 {
		pending = mark{"invalidations", fmt.Sprintf("%d not confirmed", n), false}
	}
	return []mark{redis, messages, circuit, pending}
}

func healthOfFilter(s bloom.Stats) []mark {
	marks := []mark{{"answers", "no to what does not exist", true}}
	switch {
	case s.Saturated:
		marks = []mark{{"answers", "maybe to everything: too full", false}}
	case !s.Complete:
		marks = []mark{{"answers", "maybe to everything: not built yet", false}}
	case s.Abstaining:
		marks = []mark{{"answers", "maybe to everything: too far behind", false}}
	}
	if s.Rebuilding {
		marks = append(marks, mark{"rebuild", "under way in this process", true})
	}
	return marks
}

// A lookup is the result of looking up one key.
type lookup struct {
	Cache string      `json:"cache"`
	Key   string      `json:"key"`
	Error string      `json:"error,omitempty"`
	Found *look.Found `json:"found,omitempty"`
}

// lookup looks up a key in the cache with a name, or in the only cache if name is empty.
func (h *Handler) lookup(ctx context.Context, name, key string) *lookup {
	if name == "" && len(h.o.Caches) == 1 {
		name = h.o.Caches[0].Name()
	}
	l := &lookup{Cache: name, Key: key}
	c := h.find(name)
	if c == nil {
		l.Error = "there is no cache of this name"
		return l
	}
	h.lookups.Lock()
	defer h.lookups.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	i, err := Inspect(ctx, c, key)
	if err != nil {
		l.Error = err.Error()
	}
	if i.ID == "" && err != nil { // no key of this cache
		return l
	}
	l.Found = look.Of(i, err, c.Stats(), time.Now())
	if h.o.Values {
		l.Found.Local.Show(i.Local)
		l.Found.Redis.Show(i.Redis)
	}
	return l
}
