package cache_test

import (
	"context"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
)

// pages is a source that knows whether what its caller has is the newest.
type pages struct {
	mu     sync.Mutex // guards what follows
	number int        // of the page that all keys have; 0: there is none
	asked  []seen     // what each load was given
	bodies int        // loads that brought a page
	during func(e *cache.Entry[string])
}

// A seen is what a load was given.
type seen struct {
	prev, version string
	primary       bool
}

func (p *pages) load(_ context.Context, _ int64, e *cache.Entry[string]) (string, error) {
	p.mu.Lock()
	given := seen{version: e.Version, primary: e.Primary}
	if e.Prev != nil {
		given.prev = *e.Prev
	}
	p.asked = append(p.asked, given)
	page, during := fmt.Sprint("page ", p.number), p.during
	p.mu.Unlock()
	if during != nil {
		during(e)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case page == "page 0":
		return "", cache.ErrNotFound
	case given.prev != "" && given.version == page:
		return "", fmt.Errorf("source: %w", cache.ErrNotModified)
	}
	p.bodies++
	e.Version = page
	return page, nil
}

func (p *pages) source() cache.Source[int64, string] {
	return cache.Source[int64, string]{LoadEntry: p.load, Tags: func(int64, string) []string { return []string{"page"} }}
}

// change sets the page, and what loads do once they have read it.
func (p *pages) change(number int, during func(*cache.Entry[string])) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.during = number, during
}

func (p *pages) loads() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]seen(nil), p.asked...)
}

// were fails the test unless the loads were given this.
func (p *pages) were(r *rig, want ...seen) {
	r.Helper()
	synctest.Wait()
	if got := p.loads(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("the loads were given %+v, want %+v", got, want)
	}
}

var entryCells = []cell{{redis: "mini"}, {redis: "mini", local: true}}

// unjittered is for tests that look at the moment at which a TTL ends.
func unjittered(o *cache.Options) { o.Jitter, o.EarlyRefresh = -1, -1 }

// replicaLag sets how far the replicas of the source may lag.
func replicaLag(lag time.Duration) func(*cache.Options) {
	return func(o *cache.Options) { o.ReplicaLag = lag }
}
