package tier

import (
	"container/heap"
	"reflect"
	"slices"
	"sync"
	"time"
)

// A HotKey is a key that is read often.
type HotKey[K comparable] struct {
	Key K // as the callers of Get passed it
	// Share is the part of all recent Gets that read Key. It is an upper estimate: apart
	// from sampling errors it is never too low, and too high by at most Error.
	Share, Error float64
}

// TopKeys returns at most n keys that were read most in the last minutes, the hottest
// first; none if Options.HotKeys is 0. It uses a sample of one Get in 64, hits and misses
// alike.
func (c *Cache[K, V]) TopKeys(n int) []HotKey[K] {
	if c == nil {
		return nil
	}
	return c.hot.top(n)
}

// hot counts samples of keys in a fixed number of counters: Space-Saving (Metwally,
// Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
// Streams", ICDT 2005). A key without a counter takes the counter of the rarest key with
// its count, which is then the possible error of the new key's. So a key that makes up more
// than 1/counters of all samples surely has a counter. A nil *hot counts nothing.
type hot[K comparable] struct {
	limit int

	mu       sync.Mutex           // guards what follows
	counters map[uint64]*count[K] // by hash; a key that is not equal to itself gets a new one each time
	rarest   rarest[K]
	total    uint64
	halved   time.Time
}

type count[K comparable] struct {
	key      K
	hash     uint64
	n, error uint64
	place    int // in rarest
}

const (
	// hotBits makes one Get in 64 a sample.
	hotBits = roomyPassBits

	// halfLife is the time in which counts lose half of their weight, so that TopKeys
	// reports the last minutes.
	halfLife = time.Minute

	// longestHotKey is the length in bytes above which a key is not counted: counters store
	// their keys, which may come from anywhere.
	longestHotKey = 1 << 10
)

func newHot[K comparable](limit int) *hot[K] {
	if limit <= 0 {
		return nil
	}
	return &hot[K]{limit: limit, counters: map[uint64]*count[K]{}, halved: time.Now()}
}

// sample counts key if n, the number of its Get among those with the same outcome, is in the sample.
func (h *hot[K]) sample(n, hash uint64, key K) {
	if h == nil || !sampled(n, hotBits) {
		return
	}
	if textIn(reflect.ValueOf(key)) > longestHotKey {
		return
	}
	// A Get must not wait here. Dropping a sample while another is being counted favours no
	// key.
	if !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	h.note(hash, key)
}

// textIn returns how many bytes the strings in a key have.
func textIn(key reflect.Value) (n int) {
	switch key.Kind() {
	case reflect.String:
		return key.Len()
	case reflect.Interface:
		return textIn(key.Elem())
	case reflect.Struct:
		for i := range key.NumField() {
			n += textIn(key.Field(i))
		}
	case reflect.Array:
		for i := range key.Len() {
			n += textIn(key.Index(i))
		}
	}
	return n
}

// note counts one sample. The caller holds h.mu.
func (h *hot[K]) note(hash uint64, key K) {
	h.age(time.Now())
	h.total++
	c := h.counters[hash]
	switch {
	case c != nil:
		c.n++
		heap.Fix(&h.rarest, c.place)
	case len(h.rarest) < h.limit:
		c = &count[K]{key: key, hash: hash, n: 1}
		h.counters[hash] = c
		heap.Push(&h.rarest, c)
	default:
		c = h.rarest[0]
		delete(h.counters, c.hash)
		h.counters[hash] = c
		c.key, c.hash, c.error = key, hash, c.n
		c.n++
		heap.Fix(&h.rarest, 0)
	}
}

// age halves all counts once for each halfLife that has passed. Halving keeps their order,
// so rarest stays a heap. The caller holds h.mu.
func (h *hot[K]) age(now time.Time) {
	halves := now.Sub(h.halved) / halfLife
	if halves <= 0 {
		return
	}
	h.halved = h.halved.Add(halves * halfLife)
	h.total >>= uint(halves)
	for _, c := range h.rarest {
		c.n >>= uint(halves)
		c.error >>= uint(halves)
	}
}

func (h *hot[K]) top(n int) []HotKey[K] {
	if h == nil || n <= 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.age(time.Now())
	counts := slices.Clone(h.rarest)
	slices.SortFunc(counts, func(a, b *count[K]) int { return int(b.n) - int(a.n) })
	var keys []HotKey[K]
	for _, c := range counts[:min(n, len(counts))] {
		if c.n == 0 {
			break
		}
		total := float64(max(h.total, c.n)) // halving rounds down, so total may be below c.n
		keys = append(keys, HotKey[K]{Key: c.key, Share: float64(c.n) / total, Error: float64(c.error) / total})
	}
	return keys
}

// rarest is a heap of counters, the lowest count first.
type rarest[K comparable] []*count[K]

func (r rarest[K]) Len() int           { return len(r) }
func (r rarest[K]) Less(i, j int) bool { return r[i].n < r[j].n }

func (r rarest[K]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].place, r[j].place = i, j
}

func (r *rarest[K]) Push(c any) {
	added := c.(*count[K])
	added.place = len(*r)
	*r = append(*r, added)
}

func (r *rarest[K]) Pop() any { panic("localcache: no counter is ever taken away") }
