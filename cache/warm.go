package cache

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/fleet"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/rebuild"
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
	causes BatchError[K]
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
	for missing := range slices.Chunk(w.look(keys), w.c.engine.Batch) {
		if w.slot() {
			go func() {
				defer func() { <-w.slots }()
				w.run(missing)
			}()
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

// A missing is a key that is not in Redis, or for which Redis has not answered.
type missing[K comparable] struct {
	key  K
	id   string
	seen []byte // what Redis holds, if that is no value within its TTL
}

// look returns those of the keys that are not in Redis. A key for which Redis does not answer is
// among them: the run that asks for its lease puts it off.
func (w *warming[K, V]) look(keys []K) []missing[K] {
	wanted, ids := make([]missing[K], 0, len(keys)), make([]string, 0, len(keys))
	for _, key := range keys {
		contain.Call(func() error { // Source.Key and the filter may panic
			id, err := w.wants(key)
			if err == nil {
				wanted, ids = append(wanted, missing[K]{key: key, id: id}), append(ids, id)
			}
			return err
		}, func(err error) {
			if err != nil {
				w.count(key, err, true)
			}
		})
	}
	var values []fleet.Value
	var now time.Time
	contain.Call(func() error { values, now = w.c.remote.readMany(w.loads, ids); return nil }, func(err error) {
		if err != nil { // a hook of the user's client has panicked
			for _, m := range wanted {
				w.count(m.key, err, true)
			}
			wanted = nil
		}
	})
	absent := wanted[:0]
	for i, m := range wanted {
		if w.c.values.isWithinTTL(m.id, values[i], now) {
			w.count(m.key, rebuild.ErrElsewhere, true)
			continue
		}
		m.seen = values[i].Data
		absent = append(absent, m)
	}
	return absent
}

// wants returns the id of a key, or ErrElsewhere for one that needs no load.
func (w *warming[K, V]) wants(key K) (id string, err error) {
	c := w.c
	id, err = c.naming.id(key)
	if err = cmp.Or(err, w.ctx.Err()); err != nil {
		return "", err
	}
	if !c.fleet.Shared() {
		if e := c.local.keptEntry(key); e != nil && c.values.stateOf(e, time.Now()) < stale {
			return "", rebuild.ErrElsewhere
		}
	}
	if !c.filter.exists(w.ctx, id) {
		return "", rebuild.ErrElsewhere
	}
	return id, nil
}

// run loads keys, and loads those again that were put off. It keeps its slot meanwhile, so that a
// Warm of a busy source rarely calls it.
func (w *warming[K, V]) run(keys []missing[K]) {
	for putOffs, loaded := 0, 0; len(keys) > 0; putOffs++ {
		if now := w.now().loaded; now > loaded {
			putOffs, loaded = 0, now
		}
		runs := w.runs(keys)
		w.c.engine.Do(runs)
		var again []K
		for _, r := range runs {
			if w.count(subjectOf[K](r).key, r.Loaded.Err, putOffs == maxPutOffs) {
				again = append(again, subjectOf[K](r).key)
			}
		}
		if len(again) > 0 {
			wait.Sleep(w.ctx, wait.Jitter(firstPutOff<<putOffs, 0.25))
		}
		keys = w.look(again)
	}
}

func (w *warming[K, V]) runs(keys []missing[K]) []*rebuild.Run {
	runs := make([]*rebuild.Run, 0, len(keys))
	for _, m := range keys {
		f, err := w.c.flights.Apart(w.ctx, m.id)
		if err != nil {
			w.count(m.key, err, true)
			continue
		}
		r := w.c.engine.NewRun(w.loads, f, &subject[K]{key: m.key}, rebuild.Warm)
		r.Seen = m.seen
		runs = append(runs, r)
	}
	return runs
}

// count counts how a key has ended. It returns true, and counts nothing, if the key is put off:
// the source was not called, and this was not the last attempt.
func (w *warming[K, V]) count(key K, err error, last bool) (putOff bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.counts.loaded++
	case errors.Is(err, rebuild.ErrElsewhere):
		w.counts.skipped++
	case w.ctx.Err() != nil, w.c.closed():
	case !last && !isOfLoader(err) && (errors.Is(err, breaker.ErrLimited) || errors.Is(err, breaker.ErrOpen) || errors.Is(err, rebuild.ErrNoRedis)):
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
