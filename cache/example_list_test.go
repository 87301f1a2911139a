package cache_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"

	"github.com/levee-go/levee/cache"
)

// A Hotel is a row of a table that is listed by city.
type Hotel struct {
	ID    int64
	City  string
	Stars int
}

// A hotelTable stands for a database.
type hotelTable struct {
	mu   sync.Mutex
	rows map[int64]Hotel
}

// Hotels stands for SELECT … FROM hotel WHERE id IN (…).
func (t *hotelTable) Hotels(_ context.Context, ids []int64) (map[int64]Hotel, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[int64]Hotel)
	for _, id := range ids {
		if h, ok := t.rows[id]; ok {
			found[id] = h
		}
	}
	return found, nil
}

// In stands for SELECT id FROM hotel WHERE city = … ORDER BY id.
func (t *hotelTable) In(_ context.Context, city string) (ids []int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, h := range t.rows {
		if h.City == city {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	fmt.Println("  a query for the ids in", city)
	return ids, nil
}

// Best stands for SELECT … FROM hotel WHERE city = … ORDER BY stars DESC LIMIT …
func (t *hotelTable) Best(_ context.Context, k best) (hotels []Hotel, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.rows {
		if h.City == k.City {
			hotels = append(hotels, h)
		}
	}
	slices.SortFunc(hotels, func(a, b Hotel) int { return cmp.Or(b.Stars-a.Stars, cmp.Compare(a.ID, b.ID)) })
	fmt.Println("  a query for the best in", k.City)
	return hotels[:min(k.Limit, len(hotels))], nil
}

// Change stands for a transaction: SELECT city FROM hotel WHERE id = … FOR UPDATE; then, with the row that it has locked, what the
// caller wants to do; then the UPDATE and the commit.
func (t *hotelTable) Change(ctx context.Context, to Hotel, beforeCommit func(ctx context.Context, old Hotel) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := beforeCommit(ctx, t.rows[to.ID]); err != nil {
		return err // roll back
	}
	t.rows[to.ID] = to
	return nil
}

// An exact list of a group: a cache from the group to the ids of its rows, and one from the id to the row. A change of a row
// names the row, and the groups that it leaves and enters.
func Example_list() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &hotelTable{rows: map[int64]Hotel{1: {1, "Oslo", 3}, 2: {2, "Oslo", 5}, 3: {3, "Rome", 4}}}
	hotels, err := cache.NewFrom(rdb, cache.Source[int64, Hotel]{LoadMany: store.Hotels}, cache.Options{Name: "hotel"})
	if err != nil {
		log.Fatal(err)
	}
	defer hotels.Close()
	inCity, err := cache.New(rdb, store.In, cache.Options{Name: "hotel-city"}) // func(ctx, city string) ([]int64, error)
	if err != nil {
		log.Fatal(err)
	}
	defer inCity.Close()

	list := func(city string) ([]Hotel, error) {
		ids, err := inCity.Get(ctx, city)
		if err != nil {
			return nil, err
		}
		rows, err := hotels.GetMany(ctx, ids) // one round trip, and one query for those that are missing
		list := make([]Hotel, 0, len(ids))
		for _, id := range ids { // a map has no order
			if h, ok := rows[id]; ok && h.City == city { // it may have just moved
				list = append(list, h)
			}
		}
		return list, err // a *cache.BatchError[int64] names the rows that could not be read
	}
	change := func(to Hotel) error {
		return cache.Committed(cache.Write(ctx, func(ctx context.Context) error {
			return store.Change(ctx, to, func(ctx context.Context, old Hotel) error { // the locked row, before the commit
				return cache.Also(ctx, inCity.Changes(old.City))
			})
		}, hotels.Changes(to.ID), inCity.Changes(to.City)))
	}

	fmt.Println(list("Oslo"))
	fmt.Println(list("Lima"))
	fmt.Println(change(Hotel{2, "Lima", 5}))
	fmt.Println(list("Oslo"))
	fmt.Println(list("Lima"))
	fmt.Println(list("Lima"))
	// Output:
	//   a query for the ids in Oslo
	// [{1 Oslo 3} {2 Oslo 5}] <nil>
	//   a query for the ids in Lima
	// [] <nil>
	// <nil>
	//   a query for the ids in Oslo
	// [{1 Oslo 3}] <nil>
	//   a query for the ids in Lima
	// [{2 Lima 5}] <nil>
	// [{2 Lima 5}] <nil>
}

// The key of a list that is cached whole.
type best struct {
	City  string
	Limit int
}

// Many lists of one group, cached whole: the group is their tag, and a change of a row clears the tags of the groups that it
// leaves and enters.
func ExampleCache_Tagged() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &hotelTable{rows: map[int64]Hotel{1: {1, "Oslo", 3}, 2: {2, "Oslo", 5}, 3: {3, "Rome", 4}}}
	lists, err := cache.NewFrom(rdb, cache.Source[best, []Hotel]{
		Load: store.Best,
		Tags: func(k best, _ []Hotel) []string { return []string{"city:" + k.City} },
	}, cache.Options{Name: "hotel-best"})
	if err != nil {
		log.Fatal(err)
	}
	defer lists.Close()
	change := func(to Hotel) error {
		return cache.Committed(cache.Write(ctx, func(ctx context.Context) error {
			return store.Change(ctx, to, func(ctx context.Context, old Hotel) error {
				return cache.Also(ctx, lists.Tagged("city:"+old.City))
			})
		}, lists.Tagged("city:"+to.City)))
	}

	fmt.Println(lists.Get(ctx, best{"Oslo", 1}))
	fmt.Println(lists.Get(ctx, best{"Rome", 1}))
	fmt.Println(change(Hotel{1, "Oslo", 6}))
	fmt.Println(lists.Get(ctx, best{"Oslo", 1}))
	fmt.Println(lists.Get(ctx, best{"Rome", 1})) // another city: still cached
	// Output:
	//   a query for the best in Oslo
	// [{2 Oslo 5}] <nil>
	//   a query for the best in Rome
	// [{3 Rome 4}] <nil>
	// <nil>
	//   a query for the best in Oslo
	// [{1 Oslo 6}] <nil>
	// [{3 Rome 4}] <nil>
}

// Reads that must be fresh: SkipLocal sees each write of a process that uses the cache, Reload also a change that nobody has
// told the cache.
func ExampleReads() {
	ctx := context.Background()
	rdb, end := connect()
	defer end()
	store := &shop{rows: map[int64]string{42: "lamp"}}
	open := func() *cache.Cache[int64, Product] {
		c, err := cache.New(rdb, store.Product, cache.Options{Name: "product"})
		if err != nil {
			log.Fatal(err)
		}
		return c
	}
	products, other := open(), open() // of two processes
	defer products.Close()
	defer other.Close()
	show := func(p Product, err error) { fmt.Println(p.Name, err) }

	written := products.With(cache.Reads{SkipLocal: true})            // a round trip: what any process has written
	loaded := products.With(cache.Reads{Reload: true, NoStale: true}) // a query: what the loader finds, or its error
	show(products.Get(ctx, 42))
	err := other.Write(ctx, []int64{42}, func(ctx context.Context) error { return store.Rename(ctx, 42, "desk lamp") })
	fmt.Println("written", err)
	show(written.Get(ctx, 42))

	_ = store.Rename(ctx, 42, "torch") // by SQL, and nobody tells the cache
	show(written.Get(ctx, 42))
	show(loaded.Get(ctx, 42))
	show(products.Get(ctx, 42)) // and for all others from now on

	_, err = loaded.Get(ctx, 7)
	fmt.Println(errors.Is(err, cache.ErrNotFound))
	// Output:
	//   the database is asked for 42
	// lamp <nil>
	// written <nil>
	//   the database is asked for 42
	// desk lamp <nil>
	// desk lamp <nil>
	//   the database is asked for 42
	// torch <nil>
	// torch <nil>
	// true
}
