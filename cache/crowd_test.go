package cache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
)

// A crowd reads at a steady rate through some caches, one a "process", until it is
// told to stop, and remembers how each Get went.
type crowd struct {
	caches   []*probe[int64, string]
	callers  int           // of each cache
	pause    time.Duration // of a caller between two Gets
	patience time.Duration // of a caller in a Get
	pick     func() int64  // the next key
}

// A visit is one Get of a crowd.
type visit struct {
	key   int64
	value string
	began time.Time
	took  time.Duration
	err   error
}

// gather lets the crowd in. The function that it returns sends it home and tells
// what it met.
func (c crowd) gather(r *rig) (home func() visits) {
	ctx, stop := context.WithCancel(r.ctx)
	all := make([]visits, len(c.caches)*c.callers)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			for ctx.Err() == nil {
				all[i] = append(all[i], c.visit(r.ctx, c.caches[i%len(c.caches)]))
				time.Sleep(c.pause)
			}
		})
	}
	return func() visits {
		stop()
		wg.Wait()
		return slices.Concat(all...)
	}
}

func (c crowd) visit(ctx context.Context, from *probe[int64, string]) visit {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	v := visit{key: c.pick(), began: time.Now()}
	v.value, v.err = from.Get(ctx, v.key)
	v.took = time.Since(v.began)
	return v
}

type visits []visit

// between are the visits that began in a stretch of time.
func (all visits) between(from, to time.Time) (some visits) {
	for _, v := range all {
		if !v.began.Before(from) && v.began.Before(to) {
			some = append(some, v)
		}
	}
	return some
}

// took is the time within which a share of the visits were over.
func (all visits) took(share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	times := make([]time.Duration, len(all))
	for i, v := range all {
		times[i] = v.took
	}
	slices.Sort(times)
	return times[min(int(share*float64(len(times))), len(times)-1)]
}

// answered is the share of visits with an answer, which "not found" is too.
func (all visits) answered() float64 {
	n := 0
	for _, v := range all {
		if v.err == nil || errors.Is(v.err, cache.ErrNotFound) {
			n++
		}
	}
	return float64(n) / float64(max(len(all), 1))
}

// failed are the visits with an error other than those.
func (all visits) failed(but ...error) (some visits) {
	for _, v := range all {
		if v.err != nil && !slices.ContainsFunc(but, func(err error) bool { return errors.Is(v.err, err) }) {
			some = append(some, v)
		}
	}
	return some
}

// recovered is how long after since it took until each second that began later had answers
// to at least 99 in 100 visits. In a tenth of a second two visits would be more than one in a
// hundred, and any process stands still for that long now and then.
func (all visits) recovered(since time.Time) time.Duration {
	const step = 100 * time.Millisecond
	var last time.Time
	for _, v := range all {
		if v.began.After(last) {
			last = v.began
		}
	}
	good := since
	for at := since; at.Before(last); at = at.Add(step) {
		if all.between(at, at.Add(time.Second)).answered() < 0.99 {
			good = at.Add(step)
		}
	}
	return good.Sub(since)
}

func (all visits) String() string {
	if len(all) == 0 {
		return "no visits"
	}
	s := fmt.Sprintf("%d visits, %.2f %% answered, p50 %v, p99 %v, longest %v",
		len(all), 100*all.answered(), all.took(0.5).Round(time.Microsecond), all.took(0.99).Round(time.Microsecond), all.took(1).Round(time.Microsecond))
	if bad := all.failed(cache.ErrNotFound); len(bad) > 0 {
		s += fmt.Sprintf(", as %v", bad[0].err)
	}
	return s
}

// usesRedis reports whether Redis takes an invalidation, and what one cache has
// published another finds there.
func usesRedis(r *rig, caches []*probe[int64, string]) bool {
	if caches[0].Invalidate(r.ctx, 1) != nil {
		return false
	}
	_, _ = caches[1].Get(r.ctx, 1)
	got, err := caches[2].Fetch(r.ctx, 1)
	return err == nil && got.Tier == cache.TierRedis
}
