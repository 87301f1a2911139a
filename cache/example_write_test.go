package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/levee-go/levee/bloom"
	"github.com/levee-go/levee/cache"
)

// A catalogue holds products under two unique columns, and makes ids when it inserts.
type catalogue struct {
	mu    sync.Mutex
	slugs map[int64]string
}

func (s *catalogue) Slug(_ context.Context, id int64) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slug, ok := s.slugs[id]; ok {
		return slug, nil
	}
	return "", cache.ErrNotFound
}

func (s *catalogue) ID(_ context.Context, slug string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, is := range s.slugs {
		if is == slug {
			return id, nil
		}
	}
	return 0, cache.ErrNotFound
}

// Rename stands for update products set slug = … where id = …
func (s *catalogue) Rename(_ context.Context, id int64, slug string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slugs[id] = slug
	return nil
}

// Insert stands for a transaction: insert into products … returning id; then, with that
// id and before the commit, what the caller wants to do; then the commit.
func (s *catalogue) Insert(ctx context.Context, slug string, beforeCommit func(ctx context.Context, id int64) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := int64(len(s.slugs) + 1)
	if err := beforeCommit(ctx, id); err != nil {
		return err // roll back
	}
	s.slugs[id] = slug
	return nil
}

// A row that is cached by id and by slug: one transaction changes keys of both caches,
// the old slug, the new one and the id.
func ExampleWrite() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &catalogue{slugs: map[int64]string{1: "lamp"}}
	slugs, err := cache.New(rdb, store.Slug, cache.Options{Name: "slug"})
	if err != nil {
		log.Fatal(err)
	}
	defer slugs.Close()
	ids, err := cache.New(rdb, store.ID, cache.Options{Name: "id-of-slug"})
	if err != nil {
		log.Fatal(err)
	}
	defer ids.Close()

	fmt.Println(ids.Get(ctx, "lamp"))
	err = cache.Write(ctx, func(ctx context.Context) error { return store.Rename(ctx, 1, "floor-lamp") },
		slugs.Changes(1), ids.Changes("lamp", "floor-lamp"))
	fmt.Println("renamed", err)
	fmt.Println(slugs.Get(ctx, 1))
	fmt.Println(ids.Get(ctx, "floor-lamp"))
	fmt.Println(ids.Get(ctx, "lamp"))
	// Output:
	// 1 <nil>
	// renamed <nil>
	// floor-lamp <nil>
	// 1 <nil>
	// 0 cache: not found
}

// An id that the INSERT makes is not known when Write begins. Also adds it before the commit:
// the filter knows it then, and a reader who asks meanwhile keeps nothing of its absence.
func ExampleAlso() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &catalogue{slugs: map[int64]string{}}
	exists, err := bloom.New(bloom.Options{Capacity: 1000, Complete: true})
	if err != nil {
		log.Fatal(err)
	}
	slugs, err := cache.New(rdb, store.Slug, cache.Options{Name: "slug", Filter: exists})
	if err != nil {
		log.Fatal(err)
	}
	defer slugs.Close()

	var id int64
	err = cache.Write(ctx, func(ctx context.Context) error {
		return store.Insert(ctx, "lamp", func(ctx context.Context, made int64) error {
			id = made
			return cache.Also(ctx, slugs.Changes(id))
		})
	})
	if err != nil && !errors.Is(err, cache.ErrNotInvalidated) {
		log.Fatal(err) // it was rolled back
	}
	fmt.Println("inserted", id)
	fmt.Println(slugs.Get(ctx, id))
	// Output:
	// inserted 1
	// lamp <nil>
}
