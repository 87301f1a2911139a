package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/wait"
)

// WarmOptions configures a Warm. The zero value is ready to use.
type WarmOptions struct {
	// Rate is how many keys are processed in a second at most. 0: 1,000; negative: as many as
	// Concurrency allows.
	Rate int
	// Concurrency is how many calls of the source run at a time: calls of LoadMany, with up to
	// 256 keys each, or otherwise of Load. 0: 8. The breaker's MaxBackground bounds it too.
	Concurrency int
	// Progress is called after every part of the keys and at the end, on the goroutine that
	// called Warm. done is how many keys are loaded or skipped so far, and failed how many have
	// failed. Nil: no function is called.
	Progress func(done, failed int)
}

// These bound a Warm whose source is overloaded or whose Redis does not answer: a call is
// put off by 0.4 s and more, and fails after four delays, 6 s in all, in which the Warm has
// loaded nothing at all.
const (
	maxPutOffs  = 4
	firstPutOff = 400 * time.Millisecond
	maxCauses   = 100 // errors that a Warm remembers
)

var errNoRedis = fmt.Errorf("%w: keys are not warmed", ErrUnavailable)

// Warm loads the values of keys that are not in Redis before anybody reads them, so that a cold
// start does not flood the source. It gives way to reads: its loads count as background for the
// breaker, its rate is limited, and keys that are read meanwhile are loaded under the same
// leases. It skips keys that are in Redis within their TTL, and keys that another caller is
// loading or writing; so several processes may warm the same keys, and each key is loaded once.
// The TTLs are spread over their whole length, so that values that were loaded together do not
// expire together. Values go to Redis, not to the local tier; without Redis, they go to the local
// tier.
//
// Warm returns when all keys are done or ctx ends; running loads then go on and publish. While
// the breaker refuses loads, or Redis does not answer, keys are put off for some seconds. If keys
// have no answer after that, the error is a [*BatchError]. Warm also returns ErrClosed, and the
// error of ctx, joined with that one.
func (c *Cache[K, V]) Warm(ctx context.Context, keys iter.Seq[K], o WarmOptions) error {
	if o.Rate == 0 {
		o.Rate = 1000
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 8
	}
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
	size := maxBatch
	if o.Rate > 0 {
		size = min(max(o.Rate/100, 1), maxBatch) // a hundred small parts a second disturb less than a few large ones
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	w := &warming[K, V]{c: c, ctx: ctx, loads: flight.Detached(ctx), o: o, began: time.Now(), slots: make(chan struct{}, o.Concurrency)}
	part := make([]K, 0, size)
	for key := range keys {
		if part = append(part, key); len(part) == size {
			w.take(part)
			part = part[:0]
		}
		if ctx.Err() != nil {
			break
		}
	}
	w.take(part)
	return w.end()
}

// A warming is a running Warm.
type warming[K comparable, V any] struct {
	c     *Cache[K, V]
	ctx   context.Context // ends with the caller's, and with the cache
	loads context.Context // for the loads, which go on after ctx has ended
	o     WarmOptions
	began time.Time
	slots chan struct{} // a place for each call of the source that runs or is put off

	mu     sync.Mutex // guards what follows
	counts counted
	causes BatchError
}

// counted counts keys. A key that is taken but neither loaded, skipped nor failed is still being
// loaded.
type counted struct{ taken, loaded, skipped, failed int }

// take processes a part of the keys when the rate allows it. It returns when the last of its
// loads has begun.
func (w *warming[K, V]) take(keys []K) {
	if w.o.Rate > 0 {
		wait.Sleep(w.ctx, time.Until(w.began.Add(time.Duration(float64(w.now().taken)/float64(w.o.Rate)*float64(time.Second)))))
	}
	if w.ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	w.counts.taken += len(keys)
	w.mu.Unlock()
	size := maxBatch
	if w.c.source.LoadMany == nil {
		size = 1
	}
	for jobs := range slices.Chunk(w.look(keys), size) {
		if w.slot() {
			go func() {
				defer func() { <-w.slots }()
				w.run(jobs)
			}()
			continue
		}
		for _, j := range jobs {
			w.c.finish(j, found[V]{}, w.ctx.Err())
		}
	}
	w.tell()
}

// slot waits for a slot. It returns false if the Warm has to end.
func (w *warming[K, V]) slot() bool {
	select {
	case w.slots <- struct{}{}:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// look returns jobs for the keys that are not in Redis.
func (w *warming[K, V]) look(keys []K) []*job[K, V] {
	wanted, ids := make([]K, 0, len(keys)), make([]string, 0, len(keys))
	for _, key := range keys {
		contain.Call(func() error { // Source.Key and the filter may panic: no flight is open yet
			id, err := w.wants(key)
			if err == nil {
				wanted, ids = append(wanted, key), append(ids, id)
			}
			return err
		}, func(err error) {
			if err != nil {
				w.count(key, err, true)
			}
		})
	}
	jobs := make([]*job[K, V], 0, len(wanted))
	for i, key := range wanted {
		f, err := w.c.flights.Apart(w.ctx, ids[i])
		if err != nil {
			w.count(key, err, true)
			continue
		}
		j := w.c.newJob(w.loads, key, f)
		j.class, j.warms = background, true
		jobs = append(jobs, j)
	}
	if len(jobs) > 0 { // a key for which Redis does not answer goes on to the lease step, which puts it off
		w.c.contained(jobs, func() { w.c.look(jobs[0].ctx, jobs) })
	}
	return slices.DeleteFunc(jobs, func(j *job[K, V]) bool {
		return j.done.Load() && !w.count(j.key, j.loaded.err, true)
	})
}

// wants returns the id of a key, or errElsewhere for one that needs no job.
func (w *warming[K, V]) wants(key K) (id string, err error) {
	c := w.c
	id, err = c.id(key)
	if err = cmp.Or(err, w.ctx.Err()); err != nil {
		return "", err
	}
	if !c.fleet.Shared() {
		if e := c.keptEntry(key); e != nil && c.stateOf(e, time.Now()) < stale {
			return "", errElsewhere
		}
	}
	if !c.exists(w.ctx, id) {
		return "", errElsewhere
	}
	return id, nil
}

// run loads the keys of jobs, and loads those again that were put off. It keeps its slot
// meanwhile, so that a Warm of a busy source rarely calls it.
func (w *warming[K, V]) run(jobs []*job[K, V]) {
	for putOffs, loaded := 0, 0; len(jobs) > 0; putOffs++ {
		if now := w.now().loaded; now > loaded {
			putOffs, loaded = 0, now
		}
		var call sync.WaitGroup
		call.Go(func() { w.c.contained(jobs, func() { w.c.rebuild(jobs) }) }) // a codec may call Goexit
		call.Wait()
		var again []K
		for _, j := range jobs {
			if w.count(j.key, j.loaded.err, putOffs == maxPutOffs) {
				again = append(again, j.key)
			}
		}
		if len(again) > 0 {
			wait.Sleep(w.ctx, wait.Jitter(firstPutOff<<putOffs, 0.25))
		}
		jobs = w.look(again)
	}
}

// count counts how a key has ended. It returns true, and counts nothing, if the key is put off:
// the source was not called, and this was not the last attempt.
func (w *warming[K, V]) count(key K, err error, last bool) (putOff bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.counts.loaded++
	case errors.Is(err, errElsewhere):
		w.counts.skipped++
	case w.ctx.Err() != nil, w.c.closed():
	case !last && !isOfLoader(err) && (errors.Is(err, breaker.ErrLimited) || errors.Is(err, breaker.ErrOpen) || errors.Is(err, errNoRedis)):
		return true
	default:
		if w.counts.failed++; len(w.causes.Causes) < maxCauses {
			w.causes.add(key, named(err))
		} else {
			w.causes.Others++
		}
	}
	return false
}

func (w *warming[K, V]) now() counted {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

func (w *warming[K, V]) tell() {
	now := w.now()
	w.o.Progress(now.loaded+now.skipped, now.failed)
}

// end waits for the loads and returns the error of the Warm.
func (w *warming[K, V]) end() error {
	for range cap(w.slots) {
		w.slot()
	}
	w.tell()
	var ended error
	if w.c.closed() {
		ended = ErrClosed
	} else if w.ctx.Err() != nil {
		ended = wait.Ended(w.ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.causes.Causes) > 0 { // loads that go on when ctx has ended are not counted, so they do not change causes
		return errors.Join(ended, &w.causes)
	}
	return ended
}
