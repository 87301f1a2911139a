package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// The products of a category are loaded in its place. Otherwise it would wait for loads that wait for
// its place: 61 of 64 failed.
func TestLoadsThatReadAnotherCacheDoNotFailEachOther(t *testing.T) {
	everyShop(t, nested, func(s *nestedShop) {
		var calls sync.WaitGroup
		began := time.Now()
		s.gather(&calls, s.categories, span(0, 64)...)
		calls.Wait()
		s.check(time.Since(began), 4*time.Second)
	})
}

// Other callers opened the flights of the products, which wait for places behind loads that then want
// the same products. Catches a load that joins these flights.
func TestALoadLendsItsPlaceToAFlightThatOthersOpened(t *testing.T) {
	everyShop(t, nested, func(s *nestedShop) {
		var calls sync.WaitGroup
		opened := make(chan struct{})
		s.before = func() { <-opened }
		s.gather(&calls, s.categories, span(0, int64(s.limit))...)
		time.Sleep(5 * time.Millisecond) // they hold all places
		for _, category := range span(0, int64(s.limit)) {
			s.gather(&calls, s.products, productsOf(category)...)
		}
		calls.Go(func() {
			if _, err := s.products.GetMany(s.ctx, span(5000, 5300)); err != nil {
				s.Errorf("limit %d: GetMany: %v", s.limit, err)
			}
		})
		time.Sleep(5 * time.Millisecond) // they wait for places
		began := time.Now()
		close(opened)
		calls.Wait()
		s.check(time.Since(began), 4*time.Second)
	})
}

// Two processes want each other's products. Catches leases that are taken before a place is free: each
// process would wait for a load of the other one that waits for its place.
func TestProcessesDoNotHoldUpEachOthersLoadsForLong(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		a, b := openShop(r, 1, "Load"), openShop(r, 1, "Load")
		opened := make(chan struct{})
		for _, s := range []*nestedShop{a, b} {
			s.before = func() { <-opened }
		}
		var calls sync.WaitGroup
		a.gather(&calls, a.categories, 1)
		b.gather(&calls, b.categories, 100)
		time.Sleep(5 * time.Millisecond)
		a.gather(&calls, a.products, productsOf(100)...) // they wait for the place of a
		b.gather(&calls, b.products, productsOf(1)...)
		time.Sleep(5 * time.Millisecond)
		began := time.Now()
		close(opened)
		calls.Wait()
		a.check(time.Since(began), 2*time.Second)
		b.check(time.Since(began), 2*time.Second)
	})
}

// A load refreshes a key of another cache, and so waits for a second load, which runs in its place.
// Otherwise both would wait until they time out.
func TestALoadThatRefreshesLendsItsPlace(t *testing.T) {
	inCells(t, nested, func(r *rig) {
		b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1, MaxDegraded: 1, FailureRatio: -1}))
		with := func(name string) func(*cache.Options) {
			return func(o *cache.Options) { o.Name, o.Breaker = name, b }
		}
		load := func(context.Context, int64) (string, error) { return "v1", nil }
		inner := open(r, cache.Source[int64, string]{Load: load}, with("inner"))
		outer := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			return "v1", inner.Refresh(ctx, key)
		}}, with("outer"))
		began := time.Now()
		outer.gives(r, 1, "v1")
		if took := time.Since(began); took > time.Second {
			r.Errorf("it took %v", took)
		}
	})
}

// The schedule of one place:
//
//	load of category 1                   outside caller
//	1 takes the only place
//	                                     2 Gets product 7: the load waits for the place
//	3 Gets product 7
//
// Catches a load that joins the flight of the caller who waits for its place: both would
// wait for QueueTimeout. The product is loaded in the place of the category, at once, and the
// load that waited finds it.
func TestALoadDoesNotWaitForWhoWaitsForItsPlace(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
		b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 1}))
		with := func(name string) func(*cache.Options) {
			return func(o *cache.Options) { o.Name, o.Breaker = name, b }
		}
		source, queued := newRows(r, 7), make(chan struct{})
		products := open(r, source.source(), with("product"))
		categories := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, _ int64) (string, error) {
			<-queued
			return products.Get(ctx, 7)
		}}, with("category"))
		r.known(1)
		began := time.Now()
		category := categories.getting(r.ctx, 1)
		synctest.Wait()
		outside := products.getting(r.ctx, 7)
		synctest.Wait()
		if n := b.Stats().Waiting; n != 1 {
			r.Fatalf("%d loads wait for the place, want that of the outside caller", n)
		}
		close(queued)
		for who, answer := range map[string]<-chan gotten{"the category": category, "the outside caller": outside} {
			if got := <-answer; got.value != "v1" || got.err != nil || time.Since(began) > 100*time.Millisecond {
				r.Errorf("%s: got %q, %v after %v", who, got.value, got.err, time.Since(began))
			}
		}
		if n := source.loads(7); n != 1 {
			r.Errorf("%d loads of the product, want one", n)
		}
	})
}

// Every load of a category reads a product that is not cached. Catches a half-open breaker that refuses
// the load of the product because the load of the category is its trial: such loads alone never
// closed it.
func TestALoadThatReadsAColdKeyClosesTheBreaker(t *testing.T) {
	inCells(t, nested, func(r *rig) {
		b := redistest.Must(breaker.New(breaker.Options{MinRequests: 1}))
		with := func(name string) func(*cache.Options) {
			return func(o *cache.Options) { o.Name, o.Breaker = name, b }
		}
		down := true
		products := open(r, cache.Source[int64, string]{Load: func(context.Context, int64) (string, error) { return "v1", nil }}, with("product"))
		categories := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, key int64) (string, error) {
			if down {
				return "", errors.New("the source is down")
			}
			return products.Get(ctx, key)
		}}, with("category"))
		_, _ = categories.Get(r.ctx, 1)
		if b.State() != breaker.Open {
			r.Fatalf("the breaker is %v", b.State())
		}
		down = false
		time.Sleep(7 * time.Second)
		categories.gives(r, 2, "v1")
		if b.State() != breaker.Closed {
			r.Errorf("the breaker is %v", b.State())
		}
	})
}

// The schedule of two places, in ms, with Redis 10 ms away and a row that lives for 5:
//
//	    page 1                    page 2                      page 3
//	    takes a place             takes a place               waits for a place
//	 0  reads the row
//	 1                            reads the row, for 24 ms
//	10  opens the flight of it,
//	    asks for the lease
//	20  has loaded it,
//	    and stores it
//	25                            joins the flight, too late
//	30  has the row, and ends                                 takes the place, for 10 s
//	40                            the next flight has looked,
//	                              and asks for a place
//
// Catches a flight of nested callers that is nested for as long as the load that has opened
// it: it would wait behind those who wait for it, until QueueTimeout.
func TestAFlightOfLoadsIsNestedForAsLongAsOneOfThemWaits(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		b := redistest.Must(breaker.New(breaker.Options{MaxConcurrent: 2, FailureRatio: -1, QueueTimeout: time.Minute}))
		with := func(name string) func(*cache.Options) {
			return func(o *cache.Options) { o.Name, o.Breaker = name, b }
		}
		var away distant
		rdb := r.client()
		rdb.AddHook(away.hook())
		source, goOn := newRows(r, 7), make(chan struct{})
		rows := openOn(r, rdb, source.source(), with("row"), func(o *cache.Options) {
			o.TTL, o.StaleIfError, o.StaleWhileRevalidate, o.EarlyRefresh = 5*time.Millisecond, -1, -1, -1
			o.RedisTimeout = 10 * time.Second
		})
		pages := open(r, cache.Source[int64, string]{Load: func(ctx context.Context, page int64) (string, error) {
			<-goOn
			if page == 3 {
				time.Sleep(10 * time.Second)
				return "v1", nil
			}
			time.Sleep(time.Duration(page-1) * time.Millisecond)
			return rows.Get(ctx, 7)
		}}, with("page"))
		r.known(1)
		var answers []<-chan gotten
		for page := range int64(3) {
			answers = append(answers, pages.getting(r.ctx, page+1))
			synctest.Wait()
		}
		if n := b.Stats().Waiting; n != 1 {
			r.Fatalf("%d loads wait for a place, want that of page 3", n)
		}
		began := time.Now()
		away.Store(true)
		close(goOn)
		for i, answer := range answers[:2] {
			if got := <-answer; got.value != "v1" || got.err != nil || time.Since(began) > time.Second {
				r.Errorf("page %d: got %q, %v after %v", i+1, got.value, got.err, time.Since(began))
			}
		}
		if n := source.loads(7); n != 2 {
			r.Errorf("%d loads of the row, want one of each page: this tests nothing", n)
		}
		away.Store(false) // else a heartbeat may be on its way when the bubble ends
		<-answers[2]
	})
}
