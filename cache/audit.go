package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// AuditOptions adjusts an Audit. The zero value of every field works.
type AuditOptions[K comparable, V any] struct {
	// Rate is how many keys are compared in a second. 0: 10; at most 1,000. Each costs a
	// read of Redis and a load.
	Rate float64
	// Settle is how long a write may take from its commit until its invalidation has
	// reached every process. 0: 2 s and twice Options.ReplicaLag.
	Settle time.Duration
	// Equal compares what is cached with what the source gives. Nil: they are equal if
	// the Codec encodes them alike, which needs a Codec and a loader that give the same
	// bytes for the same row each time.
	Equal func(cached, source V) bool
	// Stale is told of each stale value that is found, on the goroutine of Audit. Nil: the log is.
	Stale func(StaleValue[K, V])
	// Heal invalidates what is stale.
	Heal bool
}

// A StaleValue is a value that is served although the source has another one, and nobody
// has invalidated it.
type StaleValue[K comparable, V any] struct {
	Key    K             // of the cache
	Cached V             // what Redis has, and readers get
	Source V             // what the source has; the zero V if Gone
	Gone   bool          // the source has no such key
	Age    time.Duration // since the cached value was read from the source
}

// AuditStats counts what [Cache.Audit] has found in this process.
type AuditStats struct {
	Compared uint64    // values that were compared with the source
	Raced    uint64    // of these, those that differed and were invalidated in time, or were equal at a second look
	Stale    uint64    // of these, those that nobody had invalidated
	Healed   uint64    // of these, those that Audit has invalidated
	Failed   uint64    // looks without an answer of the source or of Redis
	StaleAge Histogram // of the stale values, since they were read from the source
}

// Audit looks for writers that forget to invalidate. It compares values that this process
// serves with the source, keys picked at random from those that were read lately beyond the
// local tier, until ctx ends, whose error it returns, or the cache is closed (ErrClosed).
// Loads are of the breaker's background class. Nothing is published, and nulls and values
// past their TTL are passed over. One Audit runs at a time in a cache; a second is an error.
//
// A value that differs may just be on its way out. It counts as stale only if it is still
// there after AuditOptions.Settle, and the source differs again: a change that was committed before
// the first look has to be invalidated by then. So a writer who takes longer than that is accused as well.
func (c *Cache[K, V]) Audit(ctx context.Context, o AuditOptions[K, V]) error {
	if o.Rate == 0 {
		o.Rate = 10
	}
	if o.Settle == 0 {
		o.Settle = 2*time.Second + 2*c.o.ReplicaLag
	}
	if !(o.Rate > 0 && o.Rate <= 1000) || o.Settle < 0 {
		return fmt.Errorf("cache: AuditOptions: Rate must be up to 1000 and Settle not negative, got %v and %v", o.Rate, o.Settle)
	}
	a := &audit[K, V]{c: c, o: o}
	if !c.sample.CompareAndSwap(nil, &a.sample) {
		return errors.New("cache: an Audit of this cache runs already")
	}
	defer c.sample.Store(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	for ctx.Err() == nil {
		var failed error
		contain.Call(func() error { return a.step(ctx) }, func(err error) { failed = err }) // Equal and Stale are the user's
		if failed != nil && ctx.Err() == nil {
			c.counts.auditFailed.Add(1)
			c.log.Warn("a value could not be compared with the source", "error", named(failed))
		}
		wait.Sleep(ctx, wait.Jitter(time.Duration(float64(time.Second)/o.Rate), 0.2))
	}
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return wait.Ended(ctx)
}

// An audit is an Audit that runs.
type audit[K comparable, V any] struct {
	c        *Cache[K, V]
	o        AuditOptions[K, V]
	sample   sample[K]
	suspects []suspect[K, V] // in the order of their times
}

// A suspect is a value that differed from the source.
type suspect[K comparable, V any] struct {
	key   K
	entry *entry[V]
	at    time.Time // to look again
}

const mostSuspects = 10_000 // further ones are not looked at a second time

// step looks at a suspect whose time has come, or at a key that was read lately.
func (a *audit[K, V]) step(ctx context.Context) error {
	if len(a.suspects) > 0 && !time.Now().Before(a.suspects[0].at) {
		s := a.suspects[0]
		a.suspects = a.suspects[1:]
		return a.judge(ctx, s)
	}
	key, ok := a.sample.pick()
	if !ok {
		return nil
	}
	served, _, equal, err := a.compare(ctx, key)
	if err != nil || served == nil {
		return err
	}
	a.c.counts.auditCompared.Add(1)
	if !equal && len(a.suspects) < mostSuspects {
		a.suspects = append(a.suspects, suspect[K, V]{key, served, time.Now().Add(a.o.Settle)})
	}
	return nil
}

// judge looks at a suspect again. What was invalidated meanwhile is gone, or was loaded anew.
func (a *audit[K, V]) judge(ctx context.Context, s suspect[K, V]) error {
	served, source, equal, err := a.compare(ctx, s.key)
	switch {
	case err != nil:
		return err
	case served == nil || served.life != s.entry.life || equal:
		a.c.counts.auditRaced.Add(1)
		return nil
	}
	a.c.counts.auditStale.Add(1)
	age := served.age(time.Now())
	a.c.times.audit.add(&ages, age)
	if a.o.Heal {
		if err := a.c.Invalidate(ctx, s.key); err != nil {
			return err
		}
		a.c.counts.auditHealed.Add(1)
	}
	if a.o.Stale == nil {
		id, _ := a.c.id(s.key)
		a.c.log.Error("a value is stale that nobody has invalidated", logonce.Name("key", id), "age", age)
		return nil
	}
	a.o.Stale(StaleValue[K, V]{Key: s.key, Cached: a.c.own(served), Source: source.value, Gone: source.null, Age: age})
	return nil
}

// compare reads what is served for key and then the source. served is nil if nothing is.
func (a *audit[K, V]) compare(ctx context.Context, key K) (served, source *entry[V], equal bool, err error) {
	id, err := a.c.id(key)
	if err != nil {
		return nil, nil, false, err
	}
	if served, err = a.c.served(ctx, key, id); err != nil || served == nil {
		return nil, nil, false, err
	}
	if source, err = a.c.fromSource(ctx, key, id); err != nil {
		return nil, nil, false, err
	}
	equal, err = a.equal(served, source)
	return served, source, equal, err
}

func (a *audit[K, V]) equal(served, source *entry[V]) (bool, error) {
	if source.null {
		return false, nil
	}
	if a.o.Equal != nil {
		return a.o.Equal(a.c.own(served), a.c.own(source)), nil
	}
	one, err := a.c.format.marshal(served.value)
	if err != nil {
		return false, err
	}
	other, err := a.c.format.marshal(source.value)
	return bytes.Equal(one, other), err
}

// served returns the value that a Get would give now, nil if it would load, or give a
// null or an old value.
func (c *Cache[K, V]) served(ctx context.Context, key K, id string) (*entry[V], error) {
	now := time.Now()
	if held, ok := c.local.Inspect(key); ok && held.Value != nil && held.Left > 0 {
		return c.fresh(held.Value, now), nil
	}
	value := c.fleet.GetOne(ctx, id)
	if value.Err != nil || len(value.Data) == 0 {
		return nil, value.Err
	}
	e, ok := c.format.decode(id, value.Data)
	if !ok {
		return nil, nil
	}
	return c.fresh(e, now), nil
}

func (c *Cache[K, V]) fresh(e *entry[V], now time.Time) *entry[V] {
	if e.null || e.past(now) || c.cleared(e) {
		return nil
	}
	return e
}

// fromSource loads key for nobody but its caller.
func (c *Cache[K, V]) fromSource(ctx context.Context, key K, id string) (*entry[V], error) {
	var brought atomic.Pointer[entry[V]] // a loader that was left behind may still write it
	ctx, stop := c.loadContext(ctx)
	defer stop()
	place, err := c.breaker.Acquire(ctx, background)
	if err != nil {
		return nil, c.why(ctx, err)
	}
	_, err = c.askSource(ctx, place, background, []string{id}, func(ctx context.Context) error {
		var value V
		var values map[K]V
		var err error
		there := true
		if c.source.Load != nil {
			value, err = c.source.Load(ctx, key)
		} else if values, err = c.source.LoadMany(ctx, []K{key}); err == nil {
			value, there = values[key]
		}
		if c.isNotFound(err) || err == nil && isNil(&value) { // a success of the source
			there, err = false, nil
		}
		brought.Store(&entry[V]{value: value, life: life{null: !there}})
		return err
	})
	return brought.Load(), err
}

// A sample is keys that were read lately.
type sample[K comparable] struct {
	mu   sync.Mutex // guards what follows
	keys []K
	next int
}

const sampleSize = 4096

// note adds a key, in place of the oldest. A caller who finds another at it passes.
func (s *sample[K]) note(key K) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if len(s.keys) < sampleSize {
		s.keys = append(s.keys, key)
		return
	}
	s.keys[s.next] = key
	s.next = (s.next + 1) % sampleSize
}

func (s *sample[K]) pick() (key K, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == 0 {
		return key, false
	}
	return s.keys[rand.IntN(len(s.keys))], true
}
