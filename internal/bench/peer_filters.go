package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"strconv"
	"sync"
	"sync/atomic"

	bab "github.com/bits-and-blooms/bloom/v3"

	"github.com/levee-go/levee/bloom"
)

// A filter knows which ids cannot exist. Its methods may be called concurrently.
type filter interface {
	Add(id string)
	MayContain(id string) bool
}

// A batchFilter has a call for many ids. The others are asked for one after the other.
type batchFilter interface {
	MayContainMany(ids []string) []bool
}

// openFilter opens a filter for a number of ids and one false positive in a hundred.
func openFilter(contender string, ids int) (filter, error) {
	switch contender {
	case "levee":
		f, err := bloom.New(bloom.Options{Capacity: uint64(ids), Complete: true})
		return ourFilter{f}, err
	case "bits-and-blooms":
		return &lockedFilter{f: bab.NewWithEstimates(uint(ids), 0.01)}, nil
	case "one line":
		return newLineFilter(ids), nil
	}
	return nil, fmt.Errorf("there is no filter %q", contender)
}

type ourFilter struct{ *bloom.Filter }

func (f ourFilter) Add(id string) {
	if err := f.Filter.Add(context.Background(), id); err != nil {
		panic(err) // one in process has no reason to fail
	}
}

func (f ourFilter) MayContain(id string) bool { return f.Filter.MayContain(context.Background(), id) }

func (f ourFilter) MayContainMany(ids []string) []bool {
	return f.Filter.MayContainMany(context.Background(), ids)
}

// lockedFilter makes bits-and-blooms, which is for one goroutine, safe for several.
type lockedFilter struct {
	mu sync.RWMutex
	f  *bab.BloomFilter // guarded by mu
}

func (f *lockedFilter) Add(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.f.AddString(id)
}

func (f *lockedFilter) MayContain(id string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.f.TestString(id)
}

// lineFilter is the floor: the bits of an id lie in one cache line, which it reads without a lock. A line that many ids
// share makes false positives, so it takes a bit more memory for the same rate.
type lineFilter struct {
	seed  maphash.Seed
	lines [][8]uint64
}

const (
	lineBits     = 512
	bitsOfID     = 6
	bitsForAnID  = 9.9 // of memory, which makes one false positive in a hundred
	positionBits = 9
)

func newLineFilter(ids int) *lineFilter {
	return &lineFilter{maphash.MakeSeed(), make([][8]uint64, int(float64(ids)*bitsForAnID/lineBits)+1)}
}

// place returns the line of an id and the hash that its bits are taken from.
func (f *lineFilter) place(id string) (*[8]uint64, uint64) {
	hash := maphash.String(f.seed, id)
	line, rest := bits.Mul64(hash, uint64(len(f.lines)))
	return &f.lines[line], rest * 0x9e3779b97f4a7c15
}

func (f *lineFilter) Add(id string) {
	line, hash := f.place(id)
	for range bitsOfID {
		atomic.OrUint64(&line[hash>>61], 1<<(hash>>55&63))
		hash <<= positionBits
	}
}

func (f *lineFilter) MayContain(id string) bool {
	line, hash := f.place(id)
	for range bitsOfID {
		if atomic.LoadUint64(&line[hash>>61])>>(hash>>55&63)&1 == 0 {
			return false
		}
		hash <<= positionBits
	}
	return true
}

// behindBloom is a source behind a bare filter.
type behindBloom[V any] struct {
	opening[V]
	filter filter
}

func openBehindBloom[V any](o opening[V]) (reader[V], error) {
	f, err := openFilter("bits-and-blooms", o.rows)
	for id := 0; err == nil && id < o.rows; id++ {
		f.Add(strconv.Itoa(id))
	}
	return behindBloom[V]{o, f}, err
}

func (r behindBloom[V]) Get(ctx context.Context, key string) (v V, err error) {
	if !r.filter.MayContain(key[len(keyPrefix):]) {
		return v, errAbsent
	}
	return r.load(ctx, key)
}

func (behindBloom[V]) Close() {}
