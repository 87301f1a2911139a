package main

import (
	"context"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
)

// A Product is a row.
type Product struct {
	ID    int64
	Cents int
}

// A shop is the database.
type shop struct {
	mu    sync.Mutex
	cents map[int64]int
}

func newShop() *shop {
	s := &shop{cents: map[int64]int{}}
	for id := range int64(products) {
		s.cents[id] = 1000
	}
	return s
}

// load is the query of the service, and the loader of its cache.
func (s *shop) load(ctx context.Context, id int64) (Product, error) {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
		return Product{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cents, ok := s.cents[id]
	if !ok {
		return Product{}, cache.ErrNotFound
	}
	return Product{id, cents}, nil
}

// reprice is an UPDATE that commits at once.
func (s *shop) reprice(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cents[id]++
}
