package cache

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/wait"
)

// WarmOptions adjusts a Warm. The zero value is ready to use.
type WarmOptions struct {
	// Rate is how many keys a second are taken up, at most. 0: 1,000; negative: as many
	// as Concurrency allows.
	Rate int
	// Concurrency is how many calls of the source run at a time: of LoadMany, which takes
	// up to 256 keys, or else of Load. 0: 8. The breaker's MaxBackground bounds it too.
	Concurrency int
	// Progress is called after every part of the keys and at the end, on the goroutine
	// that called Warm. Nil: it is not.
	Progress func(WarmProgress)
}

// A WarmProgress says how far a Warm is. The keys that are counted by nothing but Keys
// are under way.
type WarmProgress struct {
	Keys    int // taken up so far
	Loaded  int // loaded and published, unless they are not for Redis: a value over MaxValue, a null that is missed for the first time
	Skipped int // there already, being loaded or written by somebody, or denied by the filter
	Failed  int // without an answer
}

// These bound a Warm whose source is overloaded or whose Redis does not answer: a call is
// put off by 0.4 s and more, and has failed when four put-offs, 6 s in all, have passed in
// which the Warm has loaded nothing at all.
const (
	maxPutOffs  = 4
	firstPutOff = 400 * time.Millisecond
	maxCauses   = 100 // that a Warm remembers
)

var errNoRedis = fmt.Errorf("%w: keys are not warmed", ErrUnavailable)

// Warm loads the values of keys that are not in Redis, before somebody asks for them,
// so that a cold start is no flood. It gives way to reads: loads count as background for
// the breaker, run at a rate, and what is read meanwhile is loaded under the same leases.
// It skips keys that are there within their TTL, and keys that somebody else is loading
// or writing; so several processes may warm the same keys, and each is loaded once. The
// TTLs are spread over their whole length, so that what was loaded together does not
// expire together. Values go to Redis and not to the local tier; without Redis, to the
// local tier.
//
// Warm returns when all keys are done or ctx ends; loads under way then go on, and publish.
// While the breaker refuses loads, or Redis does not answer, keys are put off for some
// seconds. If keys have no answer after that, the error is a [*BatchError]. It returns
// ErrClosed, and the error of ctx, joined with that.
func (c *Cache[K, V]) Warm(ctx context.Context, keys iter.Seq[K], o WarmOptions) error {
	if o.Rate == 0 {
		o.Rate = 1000
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 8
	}
	w := &warming[K, V]{c: c, ctx: ctx, o: o, began: time.Now(), slots: make(chan struct{}, o.Concurrency)}
	size := maxBatch
	if o.Rate > 0 {
		size = min(max(o.Rate/100, 1), maxBatch) // a hundred small parts a second disturb less than a few large ones
	}
	part := make([]K, 0, size)
	for key := range keys {
		if part = append(part, key); len(part) < size {
			continue
		}
		if !w.take(part) {
			return w.end()
		}
		part = part[:0]
	}
	w.take(part)
	return w.end()
}

// A warming is a Warm that runs.
type warming[K comparable, V any] struct {
	c     *Cache[K, V]
	ctx   context.Context
	o     WarmOptions
	began time.Time
	slots chan struct{}  // one for each call of the source that may run
	calls sync.WaitGroup // of the source that run or are put off

	mu       sync.Mutex // guards what follows
	progress WarmProgress
	failed   BatchError
}

// take takes up a part of the keys when it is time for them. It reports false when the
// Warm has to end.
func (w *warming[K, V]) take(keys []K) bool {
	if w.o.Rate > 0 {
		w.sleep(time.Until(w.began.Add(time.Duration(float64(w.now().Keys) / float64(w.o.Rate) * float64(time.Second)))))
	}
	if w.stopped() {
		return false
	}
	w.mu.Lock()
	w.progress.Keys += len(keys)
	w.mu.Unlock()
	w.look(keys)
	if w.o.Progress != nil {
		w.o.Progress(w.now())
	}
	return !w.stopped()
}

// end waits for the loads and returns the error of the Warm.
func (w *warming[K, V]) end() error {
	loaded := make(chan struct{})
	go func() { w.calls.Wait(); close(loaded) }()
	var ended error
	select {
	case <-loaded:
	case <-w.ctx.Done():
	}
	switch {
	case w.c.closed():
		ended = ErrClosed
	case w.ctx.Err() != nil:
		ended = wait.Ended(w.ctx)
	}
	if w.o.Progress != nil {
		w.o.Progress(w.now())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if failed := w.failed; len(failed.Causes) > 0 {
		failed.Causes = maps.Clone(failed.Causes) // a load that goes on may still fail
		return errors.Join(ended, &failed)
	}
	return ended
}

// look looks into Redis and starts the loads of the keys that are missing there. It
// returns when the last load has started.
func (w *warming[K, V]) look(keys []K) {
	c, tries := w.c, warmTries{}
	for len(keys) > 0 {
		call := &warmCall[K, V]{w: w}
		jobs := w.jobs(keys, call)
		if len(jobs) == 0 {
			return
		}
		var missing, unanswered []*job[K, V]
		c.contained(jobs, func() { missing, unanswered = c.look(jobs[0].ctx, jobs) })
		for _, j := range unanswered {
			c.finish(j, found[V]{}, errNoRedis)
		}
		size := maxBatch
		if c.source.LoadMany == nil {
			size = 1
		}
		for jobs := range slices.Chunk(missing, size) {
			w.start(jobs)
		}
		keys = w.putOff(&tries, call.refused)
	}
}

// jobs makes the jobs of keys, whose ends call hears of.
func (w *warming[K, V]) jobs(keys []K, call *warmCall[K, V]) []*job[K, V] {
	jobs, ctx := make([]*job[K, V], 0, len(keys)), flight.Detached(w.ctx)
	for _, key := range keys {
		contain.Call(func() error { // Source.Key and the filter are the user's
			j, err := w.newJob(ctx, key)
			if err == nil {
				call.adopt(j)
				jobs = append(jobs, j)
			}
			return err
		}, func(err error) {
			if err != nil {
				w.count(key, err)
			}
		})
	}
	return jobs
}

// newJob makes the job of a key, or returns errElsewhere for one that needs none.
func (w *warming[K, V]) newJob(ctx context.Context, key K) (*job[K, V], error) {
	c := w.c
	id, err := c.id(key)
	if err != nil {
		return nil, err
	}
	if !c.fleet.Shared() {
		if e := c.local.Kept(key); e != nil && c.stateOf(e, time.Now()) < stale {
			return nil, errElsewhere
		}
	}
	if c.o.Filter != nil && !c.o.Filter.MayContain(w.ctx, id) {
		return nil, errElsewhere
	}
	f, err := c.flights.Apart(w.ctx, id)
	if err != nil {
		return nil, err
	}
	j := c.newJob(ctx, key, f)
	j.class, j.warms = background, true
	return j, nil
}

// start loads the keys of jobs with one call of the source, when there is a place for it.
func (w *warming[K, V]) start(jobs []*job[K, V]) {
	var err error
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
		err = w.ctx.Err()
	case <-w.c.closing.Done():
		err = ErrClosed
	}
	if err != nil {
		for _, j := range jobs {
			w.c.finish(j, found[V]{}, err)
		}
		return
	}
	w.calls.Go(func() {
		defer func() { <-w.slots }()
		w.run(jobs)
	})
}

// run loads the keys of jobs, again and again as long as the source is not asked for some
// of them. It keeps its place meanwhile, so that a Warm of a busy source asks seldom.
func (w *warming[K, V]) run(jobs []*job[K, V]) {
	for tries := (warmTries{}); len(jobs) > 0; {
		call := &warmCall[K, V]{w: w}
		for _, j := range jobs {
			call.adopt(j)
		}
		w.c.contained(jobs, func() { w.c.rebuild(jobs) })
		call.left.Wait()
		jobs = w.jobs(w.putOff(&tries, call.refused), &warmCall[K, V]{w: w})
	}
}

// warmTries counts the put-offs since the Warm has loaded something.
type warmTries struct{ putOffs, loaded int }

// putOff waits before keys that were refused are tried again, and returns them: none if
// they have failed or the Warm has to end.
func (w *warming[K, V]) putOff(t *warmTries, refused []warmRefusal[K]) (keys []K) {
	if len(refused) == 0 {
		return nil
	}
	if loaded := w.now().Loaded; loaded > t.loaded {
		t.loaded, t.putOffs = loaded, 0
	}
	if t.putOffs == maxPutOffs {
		for _, r := range refused {
			w.count(r.key, r.err)
		}
		return nil
	}
	w.sleep(wait.Jitter(firstPutOff<<t.putOffs, 0.25))
	t.putOffs++
	for _, r := range refused {
		keys = append(keys, r.key)
	}
	if w.stopped() {
		return nil
	}
	return keys
}

// A warmCall hears of the ends of jobs that go through a step together.
type warmCall[K comparable, V any] struct {
	w       *warming[K, V]
	left    sync.WaitGroup
	refused []warmRefusal[K] // guarded by warming.mu
}

// A warmRefusal is a key that the source was not asked for.
type warmRefusal[K comparable] struct {
	key K
	err error
}

// adopt has the call hear of the end of j, and nobody else.
func (call *warmCall[K, V]) adopt(j *job[K, V]) {
	call.left.Add(1)
	j.ended = call.ended
}

func (call *warmCall[K, V]) ended(j *job[K, V], err error) {
	defer call.left.Done()
	if errors.Is(err, breaker.ErrLimited) || errors.Is(err, breaker.ErrOpen) || errors.Is(err, errNoRedis) {
		call.w.mu.Lock()
		defer call.w.mu.Unlock()
		call.refused = append(call.refused, warmRefusal[K]{j.key, err})
		return
	}
	call.w.count(j.key, err)
}

// count notes how a key has ended.
func (w *warming[K, V]) count(key K, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.progress.Loaded++
	case errors.Is(err, errElsewhere):
		w.progress.Skipped++
	case w.stopped():
	default:
		if w.progress.Failed++; len(w.failed.Causes) < maxCauses {
			w.failed.add(key, named(err))
		} else {
			w.failed.Others++
		}
	}
}

func (w *warming[K, V]) now() WarmProgress {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.progress
}

func (w *warming[K, V]) stopped() bool { return w.ctx.Err() != nil || w.c.closed() }

// sleep returns after d, or when the Warm has to end.
func (w *warming[K, V]) sleep(d time.Duration) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	defer context.AfterFunc(w.c.closing, cancel)()
	wait.Sleep(ctx, d)
}
