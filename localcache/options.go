package localcache

import (
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Options are the settings of a Cache. The zero value works.
type Options struct {
	// MaxBytes is the budget of the values in bytes: their sizes as given to Set and Fill, and
	// some 300 bytes for each. It is for this cache alone unless there is a Budget. Tables take
	// another 5 MiB from the first entry on. If the sizes are right, the heap stays within 1.25
	// times the budget; if they are too small, it grows by the difference. 0: 64 MiB; negative:
	// off, New returns nil. Otherwise from 64 KiB to 1 TiB.
	MaxBytes int64

	// MaxNullBytes is the budget in bytes of the nulls, which only package cache stores. It is
	// separate, so that a flood of keys that do not exist cannot push values out. 0: 4 MiB, some
	// 13,000 nulls; negative: nulls are not kept. Otherwise from 64 KiB to 1 TiB.
	MaxNullBytes int64

	// Budget is memory that this cache shares with others. MaxBytes and MaxNullBytes must then be
	// 0, or negative. Nil: the cache has a budget of its own.
	Budget *Budget

	// TTL is how long an entry lives at most. 0: 30 s; at least 100 ms. Negative is an error.
	TTL time.Duration

	// DistrustTTL is how long entries of a cache.Cache live while no messages of its Redis
	// arrive: an invalidation by another process may have been missed. 0: 1 s; negative: entries
	// are not served then. Otherwise at least 100 ms. It has no effect in this package.
	DistrustTTL time.Duration

	// HotKeys is how many keys a cache.Cache counts Gets of, for its TopKeys: ten times as many
	// as you want to tell apart are enough. Counted keys stay in memory and are shown by
	// cachedebug, so leave it off if keys are secrets. 0: none; at most 10,000. Negative is an
	// error.
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
