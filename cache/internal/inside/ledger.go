package inside

import (
	"context"
	"sync/atomic"

	"github.com/levee-go/levee/cache/feed"
)

// A Ledger is what an audit.Ledger needs of a cache besides the rest of an Audit.
type Ledger[K comparable, V any] struct {
	Redis, Local bool // the tiers that the cache has
	Counts       *LedgerCounts
	Keyed        bool // Key knows the keys of ids
	// Hear has hear called with the ids that each call of a writer has changed, after the call and on its
	// goroutine, until stop is called. stop is nil if somebody else hears already.
	Hear func(hear func(ids []string)) (stop func())
	Key  func(id string) (key K, known bool)
	Row  func(row feed.Row, columns []string) ([]K, error) // the key of a row by its primary key; none if the cache does not take it
	Fits error                                             // why Row cannot read keys; nil: it can
	In   func(context.Context, K, bool) (Look[V], error)   // Served, by the local tier alone or by Redis alone
}

// LedgerCounts are the counters of cache.LedgerStats.
type LedgerCounts struct {
	Changes, Skipped, Failed atomic.Uint64
	Looked, Old              [4]atomic.Uint64 // after 1, 2, 10 and 60 s
}
