package tier

import (
	"cmp"
	"sync"
)

// A Budget is memory that several caches share: name it in the Options of each. What is
// wanted more, of whichever cache, stays. It also saves the tables and goroutines that
// each cache would have otherwise.
//
//	shared := &localcache.Budget{MaxBytes: 256 << 20}
//
// The fields must not change once a cache has it. A Budget needs no Close: it frees
// everything with the last of its caches. Entries of a cache that was closed before the
// others stay until others push them out.
type Budget struct {
	// MaxBytes and MaxNullBytes are as in [Options], for all caches together. A
	// negative MaxBytes is an error here.
	MaxBytes, MaxNullBytes int64

	mu            sync.Mutex // guards what follows
	caches        int
	values, nulls *store // nulls is nil if they are not kept
}

// join returns the stores of the budget, and makes them for the first cache.
func (b *Budget) join() (values, nulls *store) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.caches++; b.caches == 1 {
		b.values = newStore(cmp.Or(b.MaxBytes, defaultBytes))
		if n := cmp.Or(b.MaxNullBytes, defaultNullBytes); n > 0 {
			b.nulls = newStore(n)
		}
	}
	return b.values, b.nulls
}

// leave is called by a cache that nobody is inside of any more.
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
