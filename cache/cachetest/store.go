package cachetest

import (
	"context"
	"sync"

	"github.com/levee-go/levee/cache"
)

// A Store holds rows in memory, in place of a database. Its Load and LoadMany are loaders of a
// cache, which count the loads of each key. The zero value is empty and ready to use. A Store may
// be used concurrently; do not copy it.
type Store[K comparable, V any] struct {
	mu    sync.Mutex // guards what follows
	rows  map[K]V
	loads map[K]int
	err   error
}

// Put stores a row without telling any cache, as another program would. It works whatever Fail
// has said.
func (s *Store[K, V]) Put(key K, value V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows == nil {
		s.rows = map[K]V{}
	}
	s.rows[key] = value
}

// Delete removes a row, if there is one, as Put stores one.
func (s *Store[K, V]) Delete(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, key)
}

// Update changes a row, as a transaction of the code under test would. It returns the error of
// Fail, or cache.ErrNotFound if there is no row. Values share what pointers, slices and maps in
// them refer to with those that Load has returned: change must replace it and not write to it.
func (s *Store[K, V]) Update(key K, change func(*V)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.rows[key]
	switch {
	case s.err != nil:
		return s.err
	case !ok:
		return cache.ErrNotFound
	}
	change(&value)
	s.rows[key] = value
	return nil
}

// Load is a [cache.Loader]. It returns the error of Fail, or cache.ErrNotFound if there is no row.
// It counts as a load of key in any case.
func (s *Store[K, V]) Load(ctx context.Context, key K) (value V, err error) {
	found, err := s.LoadMany(ctx, []K{key})
	value, ok := found[key]
	if err == nil && !ok {
		err = cache.ErrNotFound
	}
	return value, err
}

// LoadMany is a [cache.BatchLoader]. It counts as a load of each key.
func (s *Store[K, V]) LoadMany(_ context.Context, keys []K) (map[K]V, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loads == nil {
		s.loads = map[K]int{}
	}
	found := map[K]V{}
	for _, key := range keys {
		s.loads[key]++
		if value, ok := s.rows[key]; ok {
			found[key] = value
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	return found, nil
}

// Loads returns how often key has been loaded, whether or not it exists and the load succeeded.
func (s *Store[K, V]) Loads(key K) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads[key]
}

// Fail makes every later Load, LoadMany and Update return err, until Fail(nil). After 20 loads of
// which half have failed the breaker of a cache opens for about 2 s, in a test too.
func (s *Store[K, V]) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}
