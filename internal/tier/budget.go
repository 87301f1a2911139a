package tier

import (
	"cmp"
	"sync"
)

// A Budget is memory that several caches share: set it in the Options of each. The entries
// that are read most stay, whichever cache they belong to. The caches also share the tables
// and goroutines that each would have otherwise.
//
//	shared := &localcache.Budget{MaxBytes: 256 << 20}
//
// The fields must not change once a cache uses the Budget. A Budget needs no Close: it frees
// everything when the last of its caches is closed. The entries of a cache that was closed
// earlier stay until others push them out.
type Budget struct {
	// MaxBytes and MaxNullBytes are as in [Options], for all caches together. A
	// negative MaxBytes is an error here.
	MaxBytes, MaxNullBytes int64

	mu            sync.Mutex // guards what follows
	caches        int
	values, nulls *store // nulls is nil if nulls are not kept
}

// join adds a cache and returns the stores of the budget, which the first cache creates.
func (b *Budget) join() (values, nulls *store) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.caches++; b.caches == 1 {
		b.values = newStore(b.maxBytes())
		if n := cmp.Or(b.MaxNullBytes, defaultNullBytes); n > 0 {
			b.nulls = newStore(n)
		}
	}
	return b.values, b.nulls
}

func (b *Budget) maxBytes() int64 { return cmp.Or(b.MaxBytes, defaultBytes) }

// leave removes a cache, in which no caller is any more. The last one closes the stores.
func (b *Budget) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.caches--; b.caches > 0 {
		return
	}
	b.values.close()
	if b.nulls != nil {
		b.nulls.close()
	}
	b.values, b.nulls = nil, nil
}
