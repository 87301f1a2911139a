package localcache

import (
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Options are the settings of a Cache. The zero value works.
type Options struct {
	// MaxBytes is the budget of the values in bytes: their sizes as given to Set and Fill, their
	// own unsafe.Sizeof, some 290 bytes for each, and 384 KiB for a queue and tables. It is for this cache
	// alone unless there is a Budget. Tables take another 6 MiB from the first entry on, less of a
	// small budget. If the sizes are right, the heap stays within 1.25
	// times the budget; if they are too small, it grows by the difference. 0: 64 MiB; negative:
	// off, New returns nil. Otherwise from 64 KiB to 1 TiB.
	MaxBytes int64

	// MaxNullBytes is the budget in bytes of the nulls of a cache.Cache; it has no effect in this
	// package. It is separate, so that a flood of keys that do not exist cannot push values out.
	// Leave it 0, which is 4 MiB, some 12,000 nulls, or take 16 MiB if more keys than that are
	// requested in vain within a cache's NullTTL. Negative: nulls are not kept. Otherwise from 64
	// KiB to 1 TiB.
	MaxNullBytes int64

	// Budget is memory that this cache shares with others. MaxBytes and MaxNullBytes must then be
	// 0, or negative. Nil: the cache has a budget of its own.
	Budget *Budget

	// TTL is how long an entry lives at most. 0: 30 s, in a cache.Cache 5 min, and without Redis no
	// bound; at least 100 ms. Negative is an error.
	TTL time.Duration

	// DistrustTTL is how long entries of a cache.Cache live while no messages of its Redis
	// arrive, or one tells of a Clear or ClearTags that cannot be read from Redis: an invalidation
	// by another process may have been missed. It has no effect in this
	// package. Leave it 0, which is 1 s, or make it negative where an old value does more harm
	// than a read of Redis: entries are not served then. Otherwise at least 100 ms.
	DistrustTTL time.Duration

	// HotKeys is how many keys a cache.Cache counts Gets of, for cachedebug, which shows them. It
	// has no effect in this package. Take 100 to see the ten hottest keys: ten times as many as you
	// want to tell apart are enough. Counted keys stay in memory, so leave it 0, none, if keys are
	// secrets. At most 10,000; negative is an error.
	HotKeys int
}

// A Budget is memory that several caches share: name it in the Options of each. The entries that
// are wanted most stay, whichever cache they belong to. A Budget also saves the tables and
// goroutines that each cache would have otherwise.
//
//	shared := &localcache.Budget{MaxBytes: 256 << 20}
//
// Its fields are MaxBytes and MaxNullBytes, as in [Options], for all caches together; a negative
// MaxBytes is an error here. Do not change them once a cache uses the Budget. A Budget needs no
// Close: it frees everything with the last of its caches. If a cache is closed before the others,
// its entries stay until others push them out.
type Budget = tier.Budget
