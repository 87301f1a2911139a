package localcache

import (
	"fmt"
	"time"
)

const (
	// Below these a budget or a life is a mistake rather than a wish: the
	// budget would hold a handful of entries, and a life loses up to lead.
	minBytes = 64 << 10
	minLife  = 2 * lead

	// More would allocate gigabytes of access counters at once.
	maxBytes = 1 << 40
)

// Options are the settings of a Cache. The zero value works.
type Options struct {
	// MaxBytes is the budget of the values in bytes: what they take encoded,
	// their keys, and some 250 bytes for each. On top come 1.5 MiB and what the
	// sizes given to fills are wrong by; the heap stays within 1.25 times the
	// budget if they are right.
	// Zero means 64 MiB. Negative means off: New returns nil. Otherwise from
	// 64 KiB to 1 TiB.
	MaxBytes int64

	// MaxNullBytes is the budget of the nulls. It is apart, so that a flood of
	// keys that do not exist cannot push values out.
	// Zero means 4 MiB, some 16,000 nulls. Negative means that nulls are not
	// kept. Otherwise from 64 KiB to 1 TiB.
	MaxNullBytes int64

	// TTL caps the life of every entry, whatever a fill asks for.
	// Zero means 30 s. Negative is an error, and so is less than 100 ms.
	TTL time.Duration

	// DistrustTTL caps the life of every entry while the cache is distrusted,
	// see [Cache.Distrust].
	// Zero means 1 s. Negative means that no entry counts then. Otherwise at
	// least 100 ms.
	DistrustTTL time.Duration
}

// resolved puts in the defaults and reports the first field that cannot be.
func (o Options) resolved() (Options, error) {
	orDefault(&o.MaxBytes, 64<<20)
	orDefault(&o.MaxNullBytes, 4<<20)
	orDefault(&o.TTL, 30*time.Second)
	orDefault(&o.DistrustTTL, time.Second)

	const format = "localcache: %s must be %v to %v, not %v"
	switch {
	case o.MaxBytes >= 0 && (o.MaxBytes < minBytes || o.MaxBytes > maxBytes):
		return o, fmt.Errorf(format, "MaxBytes", minBytes, maxBytes, o.MaxBytes)
	case o.MaxNullBytes >= 0 && (o.MaxNullBytes < minBytes || o.MaxNullBytes > maxBytes):
		return o, fmt.Errorf(format, "MaxNullBytes", minBytes, maxBytes, o.MaxNullBytes)
	case o.TTL < minLife:
		return o, fmt.Errorf("localcache: TTL must be at least %v, not %v", minLife, o.TTL)
	case o.DistrustTTL >= 0 && o.DistrustTTL < minLife:
		return o, fmt.Errorf("localcache: DistrustTTL must be at least %v, not %v", minLife, o.DistrustTTL)
	}
	return o, nil
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
