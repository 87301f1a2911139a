package cachedebug

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
)

// A report is what the page shows. Its JSON is for people and their shell, not for
// programs: names follow those of Stats, and may change with them.
type report struct {
	At      time.Time      `json:"at"`
	Caches  []cacheReport  `json:"caches"`
	Filters []filterReport `json:"filters,omitempty"`
	Lookup  *lookup        `json:"lookup,omitempty"`
	Log     []string       `json:"log,omitempty"`
}

type cacheReport struct {
	Name    string         `json:"name"`
	Health  []mark         `json:"health"`
	Shares  []share        `json:"shares"` // of the Gets that ended
	TopKeys []cache.HotKey `json:"topKeys,omitempty"`
	Stats   cache.Stats    `json:"stats"`
}

type filterReport struct {
	Name   string      `json:"name"`
	Health []mark      `json:"health"`
	Stats  bloom.Stats `json:"stats"`
}

// A mark is a state, and whether it is as it should be.
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
	return cacheReport{Name: c.Name(), Health: healthOf(s), Shares: sharesOf(s), TopKeys: c.TopKeys(h.o.TopKeys), Stats: s}
}

// sharesOf says how the Gets ended, in the order of the read path.
func sharesOf(s cache.Stats) []share {
	shares := []share{
		{Outcome: "local", Gets: s.Local}, {Outcome: "null", Gets: s.Null}, {Outcome: "filter", Gets: s.Filter}, {Outcome: "redis", Gets: s.Redis},
		{Outcome: "joined", Gets: s.Joined}, {Outcome: "loaded", Gets: s.Loaded}, {Outcome: "stale", Gets: s.Stale}, {Outcome: "errors", Gets: s.Errors},
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

// A lookup is where one key stands.
type lookup struct {
	Cache string `json:"cache"`
	Key   string `json:"key"`
	Error string `json:"error,omitempty"`
	Found *found `json:"found,omitempty"`
}

// found is a cache.Inspection with times as text, and without values unless they are to
// be shown.
type found struct {
	ID           string    `json:"id"`
	Filter       string    `json:"filter,omitempty"`
	Local        *standing `json:"local"`
	LocalUnknown bool      `json:"localUnknown,omitempty"`
	Redis        *standing `json:"redis"`
	RedisKey     string    `json:"redisKey,omitempty"`
	Loading      bool      `json:"loading"`
	HeldError    string    `json:"heldError,omitempty"`
	Leased       bool      `json:"leased"`
	LeaseLeft    string    `json:"leaseLeft,omitempty"`
	Awaited      bool      `json:"awaited"`
	Holds        []string  `json:"holds,omitempty"`
	Foreign      bool      `json:"foreign,omitempty"`
	Outage       bool      `json:"outage"`
	Unconfirmed  bool      `json:"unconfirmed"`
}

type standing struct {
	State string `json:"state"`
	Null  bool   `json:"null"`
	Age   string `json:"age"`
	TTL   string `json:"ttl"`
	Left  string `json:"left"`
	Bytes int    `json:"bytes"`
	Value string `json:"value,omitempty"`
}

// lookup looks a key up in the cache of a name, or in the only one there is.
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
	i, err := c.Inspect(ctx, key)
	if err != nil {
		l.Error = err.Error()
	}
	if i.ID == "" && err != nil { // no key of this cache
		return l
	}
	l.Found = &found{
		ID: i.ID, Filter: i.Filter, Local: h.standing(i.Local), LocalUnknown: i.LocalUnknown, Redis: h.standing(i.Redis),
		RedisKey: i.RedisKey, Loading: i.Loading, Leased: i.Leased, Awaited: i.Awaited,
		Foreign: i.Foreign, Outage: i.Outage, Unconfirmed: i.Unconfirmed,
	}
	if i.HeldError != nil {
		l.Found.HeldError = i.HeldError.Error()
	}
	if i.LeaseLeft > 0 {
		l.Found.LeaseLeft = short(i.LeaseLeft)
	}
	for _, hold := range i.Holds {
		l.Found.Holds = append(l.Found.Holds, short(hold))
	}
	return l
}

func (h *Handler) standing(s *cache.Standing) *standing {
	if s == nil {
		return nil
	}
	shown := &standing{State: s.State, Null: s.Null, Age: short(s.Age), TTL: short(s.TTL), Left: short(s.Left), Bytes: s.Bytes}
	if s.Left <= 0 {
		shown.Left = "–"
	}
	if h.o.Values && s.Value != nil {
		shown.Value = valueText(s.Value)
	}
	return shown
}

const longestValue = 4 << 10

// valueText is JSON where that works. The value is the user's, and may do anything when it
// is written.
func valueText(value any) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprintf("the value cannot be shown: %v", v)
		}
	}()
	data, err := json.Marshal(value)
	if err != nil {
		data = fmt.Appendf(nil, "%+v", value)
	}
	if raw, ok := value.([]byte); ok { // else base64
		data = fmt.Appendf(nil, "%q", raw[:min(len(raw), longestValue)])
	}
	if len(data) <= longestValue {
		return string(data)
	}
	return strings.ToValidUTF8(string(data[:longestValue]), "") + " …"
}

// short is a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
