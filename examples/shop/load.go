package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A crowd is who asks both shops: visitors, always, and a scraper, if it is let loose. Everybody asks when it is time, whether or not
// the earlier ones have been answered, and both shops at the same moment for the same product.
type crowd struct {
	fleets   [sides]*fleet
	size     catalogue
	rate     int           // visitors a second, and as many pages a second for the scraper
	patience time.Duration // of everybody
	most     int           // requests of one shop without an answer; those beyond are errors: nobody could connect
	scraper  atomic.Bool
	tallies  [sides]tally
	asking   [sides]atomic.Int64
	requests sync.WaitGroup
}

// come lets them come until ctx ends, and waits for the last.
func (c *crowd) come(ctx context.Context) {
	defer c.requests.Wait()
	const beat = 10 * time.Millisecond
	began, visitors, pages := time.Now(), 0, 0
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	for last := began; servers.Sleep(ctx, beat) == nil; {
		now := time.Now()
		for ; visitors < int(now.Sub(began).Seconds()*float64(c.rate)); visitors++ {
			id := 1 + rng.Int64N(c.size.Products)
			if rng.IntN(2) == 0 {
				id = hot
			}
			c.ask(ctx, id, false)
		}
		if c.scraper.Load() {
			for part := now.Sub(last).Seconds() * float64(c.rate); part > rng.Float64(); part-- {
				pages++
				// Every other page is one of those that were withdrawn, the rest were never there.
				if id := c.size.Products + 1 + rng.Int64N(c.size.Withdrawn); pages%2 == 0 {
					c.ask(ctx, id, true)
				} else {
					c.ask(ctx, 1_000_000+rng.Int64N(1e12), true)
				}
			}
		}
		last = now
	}
}

func (c *crowd) ask(ctx context.Context, id int64, scraper bool) {
	for side, f := range c.fleets {
		if c.asking[side].Add(1) > int64(c.most) {
			c.asking[side].Add(-1)
			c.tallies[side].note(reply{status: http.StatusServiceUnavailable}, 0, scraper)
			continue
		}
		c.requests.Go(func() {
			defer c.asking[side].Add(-1)
			ctx, cancel := context.WithTimeout(ctx, c.patience)
			defer cancel()
			began := time.Now()
			r := reply{status: http.StatusServiceUnavailable}
			if address := f.next(); address != "" {
				r = f.visit(ctx, address, id)
			}
			c.tallies[side].note(r, time.Since(began), scraper)
		})
	}
}

// A count is what was seen of one shop, in a time.
type count struct {
	Asked, Answered, Errors, Stale int // visitors
	Pages, PageErrors              int // the scraper
	Local, Filter, Redis, Source   int // of all that were answered
}

// A tally counts. It may be used concurrently.
type tally struct {
	mu   sync.Mutex // guards what follows
	now  count
	took []time.Duration // of visitors
}

func (t *tally) note(r reply, took time.Duration, scraper bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	answered := r.err == nil && (r.status == http.StatusOK || scraper && r.status == http.StatusNotFound)
	if scraper {
		t.now.Pages++
		if !answered {
			t.now.PageErrors++
		}
	} else {
		t.now.Asked++
		t.took = append(t.took, took)
		switch {
		case !answered:
			t.now.Errors++
		case r.stale:
			t.now.Stale++
			fallthrough
		default:
			t.now.Answered++
		}
	}
	if !answered {
		return
	}
	switch r.tier {
	case "local":
		t.now.Local++
	case "filter":
		t.now.Filter++
	case "redis":
		t.now.Redis++
	case "source":
		t.now.Source++
	}
}

// next returns what was counted since the last time.
func (t *tally) next() (n count, p50, p99 time.Duration) {
	t.mu.Lock()
	took := t.took
	n, t.now, t.took = t.now, count{}, nil
	t.mu.Unlock()
	slices.Sort(took)
	return n, percentile(took, 50), percentile(took, 99)
}

// percentile returns the time within which p of 100 were answered.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*p+99)/100-1]
}
