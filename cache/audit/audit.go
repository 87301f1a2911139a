// Package audit compares what a cache serves with its source. A [Shadow] does so before the cache
// serves anybody. Afterwards a [Ledger] looks at what was changed, and counts how much of it is old
// after a second, two, ten and sixty; and [Run] looks at what is read, and finds writers that forget to
// invalidate.
//
// All three judge alike. A value that differs from the source may be about to be invalidated, so they
// look again later. They accuse the value if the cache still gives that same one and it still differs:
// it lacks a change that was committed before the first look at the source.
package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// Options configures [Run]. The zero value of every field works.
type Options[K comparable, V any] struct {
	// Rate is how many keys are compared in a second. 0: 10; at most 1,000. Each costs a read of
	// Redis and a load.
	Rate float64
	// Settle is how long a write may take from its commit until its invalidation has
	// reached every process. 0: 4 s and twice the cache's ReplicaLag.
	Settle time.Duration
	// Equal compares a cached value with the value in the source. Nil: they are equal if the
	// Codec encodes them to the same bytes, or if they are equal as in [ShadowOptions]. The loader
	// has to give an equal value for the same row each time. Protobuf messages that have maps and a
	// MarshalVT need proto.Equal, and types whose method Equal compares less than the whole value
	// need another function.
	Equal func(cached, source V) bool
	// Stale is called for each stale value, on the goroutine of Run. Nil: each is logged at
	// Error.
	Stale func(StaleValue[K, V])
	// Heal invalidates stale values.
	Heal bool
}

// A StaleValue is a value that is served although the source has another one and nobody has
// invalidated it.
type StaleValue[K comparable, V any] struct {
	Key    K             // key of the cache
	Cached V             // the value that readers get; the zero V if Null
	Null   bool          // readers are told that there is no such key; not for Run
	Source V             // the value in the source; the zero V if Gone
	Gone   bool          // the source does not have the key
	Age    time.Duration // since the cached value was read from the source; 0 if Null

	// Only a Ledger sets these.
	Tier  cache.Tier    // which tier has the value: TierLocal is the memory of this process
	Since time.Time     // when the value was first seen to differ
	After time.Duration // the look that it was found by: the change was committed at least so long ago
	Table string        // where the last change of the key came from, if it is known from a feed
}

// Run compares values that this process serves with the source, until ctx ends, whose error it
// returns, or the cache is closed (cache.ErrClosed). It picks keys at random from those that were
// lately read beyond the local tier. Its loads are of the breaker's background class. It
// publishes nothing, and skips nulls and values past their TTL. One Run at a time may audit a
// cache; a second one returns an error. Stats().Audit of the cache counts what Run finds.
//
// A value that differs may be about to be invalidated. It counts as stale only if it is still
// there after Options.Settle and the source differs again: a change that was committed before the
// first comparison has to be invalidated by then. So if a writer takes longer than Settle, Run
// reports its values too.
func Run[K comparable, V any](ctx context.Context, c *cache.Cache[K, V], o Options[K, V]) error {
	of := c.Inside().Audit.(inside.Audit[K, V])
	if o.Rate == 0 {
		o.Rate = 10
	}
	if o.Settle == 0 {
		o.Settle = settle(of.ReplicaLag)
	}
	if !(o.Rate > 0 && o.Rate <= 1000) || o.Settle < 0 {
		return fmt.Errorf("audit: Options: Rate must be up to 1000 and Settle not negative, got %v and %v", o.Rate, o.Settle)
	}
	pick, stop := of.Sample()
	if pick == nil {
		return errors.New("audit: a Run of this cache runs already")
	}
	defer stop()
	a := &audit[K, V]{judge: judge[K, V]{of, o.Equal}, o: o, pick: pick}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(of.Closing, func() { cancel(cache.ErrClosed) })()
	for ctx.Err() == nil {
		var failed error
		contain.Call(func() error { return a.step(ctx) }, func(err error) { failed = err }) // Equal and Stale are the user's
		if failed != nil && ctx.Err() == nil {
			of.Counts.Failed.Add(1)
			notCompared(of.Log, failed)
		}
		wait.Sleep(ctx, wait.Jitter(time.Duration(float64(time.Second)/o.Rate), 0.2))
	}
	if errors.Is(context.Cause(ctx), cache.ErrClosed) {
		return cache.ErrClosed
	}
	return wait.Ended(ctx)
}

// An audit is a running Run.
type audit[K comparable, V any] struct {
	judge[K, V]
	o        Options[K, V]
	pick     func() (K, bool)
	suspects []suspect[K, V] // in the order of their times
}

// A suspect is a key whose value differed from the source.
type suspect[K comparable, V any] struct {
	key   K
	doubt *doubt
	at    time.Time // when to look again
}

const mostSuspects = 10_000 // further suspects are not compared a second time

// step looks again at a suspect whose time has come, or compares a key that was read lately.
func (a *audit[K, V]) step(ctx context.Context) error {
	if len(a.suspects) > 0 && !time.Now().Before(a.suspects[0].at) {
		s := a.suspects[0]
		a.suspects = a.suspects[1:]
		return a.again(ctx, s)
	}
	key, ok := a.pick()
	if !ok {
		return nil
	}
	look, is, err := a.compare(ctx, key, nil)
	if err != nil || is == nothing {
		return err
	}
	a.of.Counts.Compared.Add(1)
	if is == differs && len(a.suspects) < mostSuspects {
		a.suspects = append(a.suspects, suspect[K, V]{key, a.doubt(look, is), time.Now().Add(a.o.Settle)})
	}
	return nil
}

// again compares a suspect again. If it was invalidated meanwhile, the value is gone or was
// loaded anew.
func (a *audit[K, V]) again(ctx context.Context, s suspect[K, V]) error {
	look, is, err := a.compare(ctx, s.key, s.doubt)
	switch {
	case err != nil:
		return err
	case is == sure:
		s.doubt = a.doubt(look, is)
		s.at = time.Now().Add(a.o.Settle)
		a.suspects = append(a.suspects, s)
		return nil
	case is != still:
		a.of.Counts.Raced.Add(1)
		return nil
	}
	a.of.Stale(look.Age)
	if a.o.Heal {
		if err := a.of.Invalidate(ctx, s.key); err != nil {
			return err
		}
		a.of.Counts.Healed.Add(1)
	}
	if a.o.Stale == nil {
		a.of.Log.Error("a value is stale that nobody has invalidated", logonce.Name("key", look.ID), "age", look.Age)
		return nil
	}
	a.o.Stale(staleOf(s.key, look))
	return nil
}

// compare reads the value that is served for key and then the source, and passes over nulls.
func (a *audit[K, V]) compare(ctx context.Context, key K, d *doubt) (inside.Look[V], verdict, error) {
	look, err := a.of.Look(ctx, key)
	if err != nil || look.Null {
		return look, nothing, err
	}
	is, err := a.verdict(look, d)
	return look, is, err
}
