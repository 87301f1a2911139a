// Package look formats the state of a key for pages and JSON that people read.
package look

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
)

// Found is an inside.Inspection with times as text, and without values unless Show adds them.
type Found struct {
	Verdict      string    `json:"verdict"` // what a Get returns now, and why, in a sentence
	ID           string    `json:"id"`
	Filter       string    `json:"filter,omitempty"`
	Local        *Standing `json:"local"`
	LocalUnknown bool      `json:"localUnknown,omitempty"`
	Redis        *Standing `json:"redis"`
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

// A Standing is what one tier holds of a key.
type Standing struct {
	State string `json:"state"`
	Null  bool   `json:"null"`
	Age   string `json:"age"`
	TTL   string `json:"ttl"`
	Left  string `json:"left"`
	Bytes int    `json:"bytes"`
	Value string `json:"value,omitempty"`
}

// Of formats an Inspection of now, without values. err is the error that came with it, and stats are
// those of its cache.
func Of(i inside.Inspection, err error, stats cache.Stats, now time.Time) *Found {
	f := &Found{
		Verdict: question{i, err, stats, now}.verdict(), ID: i.ID, Filter: i.Filter, Local: standing(i.Local), LocalUnknown: i.LocalUnknown, Redis: standing(i.Redis),
		RedisKey: i.RedisKey, Loading: i.Loading, Leased: i.Leased, Awaited: i.Awaited,
		Foreign: i.Foreign, Outage: i.Outage, Unconfirmed: i.Unconfirmed,
	}
	if i.HeldError != nil {
		f.HeldError = i.HeldError.Error()
	}
	if i.LeaseLeft > 0 {
		f.LeaseLeft = short(i.LeaseLeft)
	}
	for _, hold := range i.Holds {
		f.Holds = append(f.Holds, short(hold))
	}
	return f
}

func standing(s *inside.Standing) *Standing {
	if s == nil {
		return nil
	}
	shown := &Standing{State: s.State, Null: s.Null, Age: short(s.Age), TTL: short(s.TTL), Left: short(s.Left), Bytes: s.Bytes}
	if s.Left <= 0 {
		shown.Left = "–"
	}
	return shown
}

// Show adds the value of of, which s was made from. Both may be nil.
func (s *Standing) Show(of *inside.Standing) {
	if of != nil && of.Value != nil {
		s.Value = valueText(of.Value)
	}
}

const longestValue = 4 << 10

// valueText returns a value as JSON if possible. The value is the user's, and its methods may
// panic.
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

// short formats a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
