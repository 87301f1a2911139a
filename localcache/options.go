package localcache

import (
	"errors"
	"fmt"
	"time"
)

const (
	// Less is surely a mistake: such a budget would hold a handful of entries, and
	// such a life would lose most of itself to lead.
	minBytes = 64 << 10
	minLife  = 2 * lead

	// More would allocate gigabytes of access counters at once.
	maxBytes = 1 << 40

	maxHotKeys = 10_000
)

// Options are the settings of a Cache. The zero value works.
type Options struct {
	// MaxBytes is the budget of the values in bytes: their sizes as given to Fill, and some
	// 300 bytes for each. It is for this cache alone unless there is a Budget. Tables take
	// another 5 MiB from the first entry on. If the sizes given to Fill are right, the
	// heap stays within 1.25 times the budget; if they are too small, it grows by the
	// difference.
	// 0: 64 MiB; negative: off, New returns nil. Otherwise from 64 KiB to 1 TiB.
	MaxBytes int64

	// MaxNullBytes is the budget of the nulls. It is separate, so that a flood of
	// keys that do not exist cannot push values out.
	// 0: 4 MiB, some 13,000 nulls; negative: nulls are not kept. Otherwise from
	// 64 KiB to 1 TiB.
	MaxNullBytes int64

	// Budget is memory that this cache shares with others. MaxBytes and MaxNullBytes
	// are 0 then, or negative.
	// nil: the cache has its own.
	Budget *Budget

	// TTL limits the life of every entry, whatever Fill asks for.
	// 0: 30 s; at least 100 ms. Negative is an error.
	TTL time.Duration

	// DistrustTTL limits the life of every entry while the cache is not trusted, see
	// [Cache.Trust].
	// 0: 1 s; negative: no entry counts then. Otherwise at least 100 ms.
	DistrustTTL time.Duration

	// HotKeys is how many keys the cache counts Gets of, for [Cache.TopKeys]. Ten times
	// as many as are to be told apart are enough. Counted keys stay in memory and are
	// shown to whoever asks, so leave it off where keys are secrets.
	// 0: none; at most 10,000. Negative is an error.
	HotKeys int
}

const (
	defaultBytes     = 64 << 20
	defaultNullBytes = 4 << 20
)

// withDefaults fills in the defaults and reports the first field that is wrong.
func (o Options) withDefaults() (Options, error) {
	o.TTL = orDefault(o.TTL, 30*time.Second)
	o.DistrustTTL = orDefault(o.DistrustTTL, time.Second)
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

// checkBytes reports a budget that is too small or too large. 0 and negatives have
// meanings of their own.
func checkBytes(field string, n int64) error {
	if n > 0 && (n < minBytes || n > maxBytes) {
		return fmt.Errorf("localcache: %s must be %v to %v, got %v", field, minBytes, maxBytes, n)
	}
	return nil
}

func orDefault[T int64 | time.Duration](field, zero T) T {
	if field == 0 {
		return zero
	}
	return field
}
