package tier

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

const (
	// Less is surely a mistake: a smaller budget has room for a handful of entries, and
	// a shorter life loses more than half to lead.
	minBytes = 64 << 10
	minLife  = 2 * lead

	// A larger budget would allocate gigabytes of access counters at once.
	maxBytes = 1 << 40

	maxHotKeys = 10_000
)

// Options has the fields of localcache.Options, which documents them.
type Options struct {
	MaxBytes     int64
	MaxNullBytes int64
	Budget       *Budget
	TTL          time.Duration
	DistrustTTL  time.Duration
	HotKeys      int
}

const (
	defaultBytes     = 64 << 20
	defaultNullBytes = 4 << 20
)

// withDefaults returns o with its zero fields set to their defaults, or an error that names a
// field that is wrong.
func (o Options) withDefaults() (Options, error) {
	o.TTL = cmp.Or(o.TTL, 30*time.Second)
	o.DistrustTTL = cmp.Or(o.DistrustTTL, time.Second)
	switch {
	case o.Budget != nil && (o.MaxBytes > 0 || o.MaxNullBytes > 0):
		return o, errors.New("localcache: with a Budget, MaxBytes and MaxNullBytes must be 0 or negative")
	case o.Budget != nil && o.Budget.MaxBytes < 0:
		return o, fmt.Errorf("localcache: Budget.MaxBytes must not be negative, got %v", o.Budget.MaxBytes)
	case o.TTL < minLife:
		return o, fmt.Errorf("localcache: TTL must be at least %v, got %v", minLife, o.TTL)
	case o.HotKeys < 0 || o.HotKeys > maxHotKeys:
		return o, fmt.Errorf("localcache: HotKeys must be 0 to %d, got %d", maxHotKeys, o.HotKeys)
	case o.DistrustTTL >= 0 && o.DistrustTTL < minLife:
		return o, fmt.Errorf("localcache: DistrustTTL must be at least %v, got %v", minLife, o.DistrustTTL)
	}
	prefix := "Budget."
	if o.Budget == nil {
		prefix, o.Budget = "", &Budget{MaxBytes: o.MaxBytes, MaxNullBytes: o.MaxNullBytes}
	}
	return o, errors.Join(checkBytes(prefix+"MaxBytes", o.Budget.MaxBytes), checkBytes(prefix+"MaxNullBytes", o.Budget.MaxNullBytes))
}

// checkBytes returns an error if n is too small or too large for a budget. 0 and negative
// numbers are valid: they mean the default and off.
func checkBytes(field string, n int64) error {
	if n > 0 && (n < minBytes || n > maxBytes) {
		return fmt.Errorf("localcache: %s must be %v to %v, got %v", field, int64(minBytes), int64(maxBytes), n)
	}
	return nil
}
