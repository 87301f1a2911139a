package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// ShadowOptions adjusts a [Shadow]. The zero value of every field works.
type ShadowOptions[K comparable, V any] struct {
	// Share is the part of the keys that also ask the cache, 0 to 1: with all their reads, so that
	// they hit as often as they will once the cache serves. 0: 0.1. What misses loads from the
	// source once more, by the cache.
	Share float64
	// LoadMany answers GetMany. Nil: GetMany loads its keys one after another.
	LoadMany cache.BatchLoader[K, V]
	// Settle is how long after its commit a write may take until it has reached every process.
	// 0: 2 s and twice the cache's ReplicaLag.
	Settle time.Duration
	// Equal compares what is cached with what the source gives. Nil: reflect.DeepEqual, by which
	// a field that the codec loses is a difference, and so is a time.Time of another location.
	Equal func(cached, source V) bool
	// Differs is called for each difference that is counted, on a goroutine of the Shadow. Nil:
	// the log is.
	Differs func(StaleValue[K, V])
}

// A Shadow answers the reads of a service from its source alone. For a share of the keys it also reads a cache,
// in the background, and compares. Put it where the cache will be, and
// read [cache.ShadowStats] in Stats().Shadow of the cache: how many reads would have hit, and whether
// an answer would have been wrong. Writers invalidate the cache as they will later.
//
// An answer that differs may just be on its way out. So the cache is looked at again, and then the
// source: what differs is left for Settle, and counts if the cache has that same answer then and the
// source still has another one. Who writes a row needs longer than Settle from commit to
// invalidation, or forgets it, to be accused.
//
// The methods may be called concurrently.
type Shadow[K comparable, V any] struct {
	c     *cache.Cache[K, V]
	load  cache.Loader[K, V]
	o     ShadowOptions[K, V]
	of    inside.Audit[K, V]
	seed  maphash.Seed
	asks  chan ask[K, V]
	again chan doubt[K]

	ctx     context.Context // ends with Close, and with the cache
	stop    context.CancelFunc
	running wait.Tasks
}

// An ask is a read that the source has answered.
type ask[K comparable, V any] struct {
	ctx   context.Context
	key   K
	value V
	gone  bool
}

// A doubt is an answer of the cache that differed from the source.
type doubt[K comparable] struct {
	key K
	was any // inside.Look.Stored
	at  time.Time
}

const (
	shadowJudges  = 4           // that look again
	shadowWorkers = 8           // that ask the cache
	mostAsks      = 1024        // that wait for one of them; further reads do not ask
	mostDoubts    = 1024        // that wait for their second look; further ones are not followed
	askTimeout    = time.Minute // of the cache, whose loads have limits of their own
)

// NewShadow makes a Shadow of c whose answers come from load. Its error names the field of o that is
// wrong. Close it.
func NewShadow[K comparable, V any](c *cache.Cache[K, V], load cache.Loader[K, V], o ShadowOptions[K, V]) (*Shadow[K, V], error) {
	of := c.Inside().Audit.(inside.Audit[K, V])
	if o.Share == 0 {
		o.Share = 0.1
	}
	if o.Settle == 0 {
		o.Settle = 2*time.Second + 2*of.ReplicaLag
	}
	if o.Equal == nil {
		o.Equal = func(cached, source V) bool { return reflect.DeepEqual(cached, source) }
	}
	switch {
	case load == nil:
		return nil, errors.New("audit: NewShadow needs a load")
	case !(o.Share > 0 && o.Share <= 1) || o.Settle < 0:
		return nil, fmt.Errorf("audit: ShadowOptions: Share must be up to 1 and Settle not negative, got %v and %v", o.Share, o.Settle)
	}
	s := &Shadow[K, V]{
		c: c, load: load, o: o, of: of, seed: maphash.MakeSeed(),
		asks: make(chan ask[K, V], mostAsks), again: make(chan doubt[K], mostDoubts),
	}
	s.ctx, s.stop = context.WithCancel(of.Closing)
	for range shadowWorkers {
		s.running.Go(func() { work(s, s.asks, s.ask) })
	}
	for range shadowJudges {
		s.running.Go(func() { work(s, s.again, s.judge) })
	}
	return s, nil
}

// Close ends the comparisons, and waits for those under way. Get and GetMany go on answering.
func (s *Shadow[K, V]) Close() {
	s.stop()
	<-s.running.Close()
}

// Get calls load, and returns what it returns.
func (s *Shadow[K, V]) Get(ctx context.Context, key K) (V, error) {
	value, err := s.load(ctx, key)
	if gone := errors.Is(err, cache.ErrNotFound); err == nil || gone {
		s.compare(ctx, key, value, gone)
	}
	return value, err
}

// GetMany calls ShadowOptions.LoadMany, or load for one key after another, and returns the values of
// those keys that exist.
func (s *Shadow[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	if s.o.LoadMany == nil {
		values := make(map[K]V, len(keys))
		for _, key := range keys {
			value, err := s.Get(ctx, key)
			if err != nil && !errors.Is(err, cache.ErrNotFound) {
				return values, err
			}
			if err == nil {
				values[key] = value
			}
		}
		return values, nil
	}
	values, err := s.o.LoadMany(ctx, keys)
	if err != nil {
		return values, err
	}
	for _, key := range keys {
		value, ok := values[key]
		s.compare(ctx, key, value, !ok)
	}
	return values, nil
}

// compare has the cache asked for a key of the share, if a worker will be free soon.
func (s *Shadow[K, V]) compare(ctx context.Context, key K, value V, gone bool) {
	if s.ctx.Err() != nil || s.o.Share < 1 && float64(maphash.Comparable(s.seed, key)) >= s.o.Share*(1<<64) {
		return
	}
	select {
	case s.asks <- ask[K, V]{context.WithoutCancel(ctx), key, value, gone || isNil(value)}:
	default:
		s.of.Shadow.Skipped.Add(1)
	}
}

// isNil reports whether a loader has said by a nil pointer that a key does not exist.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// work gives what comes to do, until s is closed. The user's functions may panic.
func work[K comparable, V, T any](s *Shadow[K, V], todo <-chan T, do func(T) error) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case t := <-todo:
			contain.Call(func() error { return do(t) }, func(err error) {
				if err != nil && s.ctx.Err() == nil {
					s.of.Shadow.Skipped.Add(1)
					s.of.Log.Warn("a value could not be compared with the source", "error", err)
				}
			})
		}
	}
}

// ask reads the cache as the service would have, and counts. What differs from the source's answer
// may be newer than that one: so both are looked at, the cache first.
func (s *Shadow[K, V]) ask(a ask[K, V]) error {
	ctx, cancel := context.WithTimeout(a.ctx, askTimeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	got, err := s.c.Fetch(ctx, a.key)
	null := errors.Is(err, cache.ErrNotFound)
	if err != nil && !null {
		if s.ctx.Err() == nil {
			s.of.Shadow.Failed.Add(1)
		}
		return nil
	}
	if s.count(got.Tier, null, got.Stale); got.Stale {
		return nil
	}
	if null == a.gone && (null || s.o.Equal(got.Value, a.value)) {
		s.of.Shadow.Equal.Add(1)
		return nil
	}
	look, equal, err := s.look(ctx, a.key)
	switch {
	case err != nil:
		return err
	case !look.There || equal:
		s.of.Shadow.Raced.Add(1)
		return nil
	}
	select {
	case s.again <- doubt[K]{a.key, look.Stored, time.Now().Add(s.o.Settle)}:
	default:
		s.of.Shadow.Skipped.Add(1)
	}
	return nil
}

func (s *Shadow[K, V]) count(tier cache.Tier, null, stale bool) {
	n := s.of.Shadow
	switch {
	case stale:
		n.Stale.Add(1)
	case tier == cache.TierSource:
		n.Loaded.Add(1)
	case tier == cache.TierFilter:
		n.Filter.Add(1)
	case null:
		n.Null.Add(1)
	case tier == cache.TierLocal:
		n.Local.Add(1)
	default:
		n.Redis.Add(1)
	}
}

// judge looks at a doubt again when its time has come. All wait for the same time, so the first is due first.
func (s *Shadow[K, V]) judge(d doubt[K]) error {
	wait.Sleep(s.ctx, time.Until(d.at))
	look, equal, err := s.look(s.ctx, d.key)
	switch {
	case err != nil:
		return err
	case !look.There || look.Stored != d.was || equal:
		s.of.Shadow.Raced.Add(1)
		return nil
	}
	s.of.Shadow.Differs.Add(1)
	if s.o.Differs == nil {
		s.of.Log.Error("the cache would answer otherwise than the source", logonce.Name("key", look.ID), "null", look.Null, "gone", look.Gone, "age", look.Age)
		return nil
	}
	s.o.Differs(StaleValue[K, V]{Key: d.key, Cached: look.Cached, Null: look.Null, Source: look.Source, Gone: look.Gone, Age: look.Age})
	return nil
}

// look reads what the cache serves for key and then the source.
func (s *Shadow[K, V]) look(ctx context.Context, key K) (look inside.Look[V], equal bool, err error) {
	look, err = s.of.Look(ctx, key)
	if err != nil || !look.There {
		return look, false, err
	}
	return look, look.Null == look.Gone && (look.Null || s.o.Equal(look.Cached, look.Source)), nil
}
