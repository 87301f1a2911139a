package localcache

import (
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
)

// Options are the settings of a Cache. The zero value works.
type Options struct {
	// MaxBytes is the budget of the values in bytes: their size encoded, their keys,
	// and some 250 bytes for each. Tables take another 1.5 MiB. If the sizes given to
	// Fill are right, the heap stays within 1.25 times the budget; if they are too
	// small, it grows by the difference.
	// 0: 64 MiB; negative: off, New returns nil. Otherwise from 64 KiB to 1 TiB.
	MaxBytes int64

	// MaxNullBytes is the budget of the nulls. It is separate, so that a flood of
	// keys that do not exist cannot push values out.
	// 0: 4 MiB, some 16,000 nulls; negative: nulls are not kept. Otherwise from
	// 64 KiB to 1 TiB.
	MaxNullBytes int64

	// TTL limits the life of every entry, whatever Fill asks for.
	// 0: 30 s; at least 100 ms. Negative is an error.
	TTL time.Duration

	// DistrustTTL limits the life of every entry while the cache is not trusted, see
	// [Cache.Trust].
	// 0: 1 s; negative: no entry counts then. Otherwise at least 100 ms.
	DistrustTTL time.Duration
}

// withDefaults fills in the defaults and reports the first field that is wrong.
func (o Options) withDefaults() (Options, error) {
	setDefault(&o.MaxBytes, 64<<20)
	setDefault(&o.MaxNullBytes, 4<<20)
	setDefault(&o.TTL, 30*time.Second)
	setDefault(&o.DistrustTTL, time.Second)

	const format = "localcache: %s must be %v to %v, got %v"
	switch {
	case o.MaxBytes >= 0 && (o.MaxBytes < minBytes || o.MaxBytes > maxBytes):
		return o, fmt.Errorf(format, "MaxBytes", minBytes, maxBytes, o.MaxBytes)
	case o.MaxNullBytes >= 0 && (o.MaxNullBytes < minBytes || o.MaxNullBytes > maxBytes):
		return o, fmt.Errorf(format, "MaxNullBytes", minBytes, maxBytes, o.MaxNullBytes)
	case o.TTL < minLife:
		return o, fmt.Errorf("localcache: TTL must be at least %v, got %v", minLife, o.TTL)
	case o.DistrustTTL >= 0 && o.DistrustTTL < minLife:
		return o, fmt.Errorf("localcache: DistrustTTL must be at least %v, got %v", minLife, o.DistrustTTL)
	}
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
