package cache_test

import (
	"context"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
)

// rows is the source of most tests: a table in memory that counts its loads.
type rows struct {
	mu      sync.Mutex // guards what follows
	values  map[int64]string
	counts  map[int64]int
	running map[int64]int
	most    int                                        // loads of one key at one time
	mostAll int                                        // loads at one time
	slow    func(ctx context.Context, key int64) error // runs in each load after the row has been read
}

// newRows makes a table of the values "v1" for keys that the rig's filter knows.
func newRows(r *rig, keys ...int64) *rows {
	s := &rows{values: map[int64]string{}, counts: map[int64]int{}, running: map[int64]int{}}
	for _, key := range keys {
		s.values[key] = "v1"
	}
	r.known(keys...)
	return s
}

func (s *rows) load(ctx context.Context, key int64) (string, error) {
	value, ok, slow := s.read(key)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running[key]--
	}()
	if slow != nil {
		if err := slow(ctx, key); err != nil {
			return "", err
		}
	}
	if !ok {
		return "", cache.ErrNotFound
	}
	return value, nil
}

func (s *rows) read(key int64) (value string, ok bool, slow func(context.Context, int64) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[key]++
	s.running[key]++
	s.most = max(s.most, s.running[key])
	all := 0
	for _, n := range s.running {
		all += n
	}
	s.mostAll = max(s.mostAll, all)
	value, ok = s.values[key]
	return value, ok, s.slow
}

func (s *rows) source() cache.Source[int64, string] {
	return cache.Source[int64, string]{Load: s.load}
}

func (s *rows) put(key int64, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
}

func (s *rows) remove(key int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.values, key)
}

// slowly sets what each load does after it has read its row.
func (s *rows) slowly(slow func(ctx context.Context, key int64) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = slow
}

// loads returns how often the source was asked for a key.
func (s *rows) loads(key int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[key]
}

// all returns how often the source was asked.
func (s *rows) all() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, count := range s.counts {
		n += count
	}
	return n
}

// forget begins to count anew.
func (s *rows) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.counts)
	s.most, s.mostAll = 0, 0
}

// atOnce is the most loads of one key that ran at one time.
func (s *rows) atOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// allAtOnce is the most loads that ran at one time.
func (s *rows) allAtOnce() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mostAll
}

// A latch stops loads: each says that it has come, and waits until it is opened.
type latch struct {
	come chan int64
	open chan struct{}
}

func newLatch() *latch { return &latch{come: make(chan int64, 1000), open: make(chan struct{})} }

// arrived waits until a load is at the latch.
func (l *latch) arrived(r *rig) int64 {
	r.Helper()
	select {
	case key := <-l.come:
		return key
	case <-time.After(20 * time.Second):
		r.Fatal("no load comes")
		return 0
	}
}

func (l *latch) wait(ctx context.Context, key int64) error {
	l.come <- key
	select {
	case <-l.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
