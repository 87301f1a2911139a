package localcache

import (
	"time"

	"github.com/levee-go/levee/internal/tier"
)

// Options are the settings of a Cache. The zero value works.
type Options struct {
	// MaxBytes is the budget of the values in bytes: their sizes as given to Set and Fill, and some
	// 300 bytes for each. It is for this cache alone unless there is a Budget. Tables take
	// another 5 MiB from the first entry on. If the sizes are right, the
	// heap stays within 1.25 times the budget; if they are too small, it grows by the
	// difference.
	// 0: 64 MiB; negative: off, New returns nil. Otherwise from 64 KiB to 1 TiB.
	MaxBytes int64

	// MaxNullBytes is the budget of the nulls, which package cache keeps. It is separate, so that a flood of
	// keys that do not exist cannot push values out.
	// 0: 4 MiB, some 13,000 nulls; negative: nulls are not kept. Otherwise from
	// 64 KiB to 1 TiB.
	MaxNullBytes int64

	// Budget is memory that this cache shares with others. MaxBytes and MaxNullBytes
	// are 0 then, or negative.
	// nil: the cache has its own.
	Budget *Budget

	// TTL is how long an entry lives, at most.
	// 0: 30 s; at least 100 ms. Negative is an error.
	TTL time.Duration

	// DistrustTTL limits the life of every entry of a cache.Cache while no messages of its Redis
	// arrive: an invalidation by another process may have been missed.
	// 0: 1 s; negative: no entry counts then. Otherwise at least 100 ms.
	DistrustTTL time.Duration

	// HotKeys is how many keys a cache.Cache counts Gets of, for its TopKeys. Ten times
	// as many as are to be told apart are enough. Counted keys stay in memory and are
	// shown to whoever looks, so leave it off where keys are secrets.
	// 0: none; at most 10,000. Negative is an error.
	HotKeys int
}

// A Budget is memory that several caches share: name it in the Options of each. What is
// wanted more, of whichever cache, stays. It also saves the tables and goroutines that
// each cache would have otherwise.
//
//	shared := &localcache.Budget{MaxBytes: 256 << 20}
//
// Its fields are MaxBytes and MaxNullBytes, as in [Options], for all caches together; a negative
// MaxBytes is an error here. They must not change once a cache has it. A Budget needs no Close:
// it frees everything with the last of its caches. Entries of a cache that was closed before the
// others stay until others push them out.
type Budget = tier.Budget
