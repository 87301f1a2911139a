package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/internal/inside"
	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/flight"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// ShadowOptions adjusts a [Shadow]. The zero value of every field works.
type ShadowOptions[K comparable, V any] struct {
	// Share is the part of the keys whose reads go to the cache too, up to 1. It is the same keys in
	// all processes and all reads of each, so that they hit as often as they will once the cache
	// serves. 0: 0.1. A miss loads from the source once more, by the cache.
	Share float64
	// LoadMany answers GetMany. Nil: GetMany loads its keys one after another.
	LoadMany cache.BatchLoader[K, V]
	// Settle is how long after its commit a write may take until it has reached every process: longer
	// than a feed lags, and than the MaxLag of a filter. 0: 4 s and twice the cache's ReplicaLag, since
	// a process notices within 3 s that messages do not arrive. A value that lives for less than
	// Settle is never accused.
	Settle time.Duration
	// Equal compares what is cached with what the source gives. Nil: they are equal if all their
	// fields are, also unexported ones, where a method Equal decides if a type has one, and an empty
	// slice or map is equal to nil. Protobuf messages need proto.Equal.
	Equal func(cached, source V) bool
	// Differs is called for each difference that is counted, concurrently, on goroutines of the Shadow. It
	// must not call Close. Nil: the first one of each minute is logged.
	Differs func(StaleValue[K, V])
}

// A Shadow answers the reads of a service from its source alone. For a share of the keys it also reads a cache,
// in the background, and compares. Put it where the cache will be, and read [cache.ShadowStats] in
// Stats().Shadow of the cache: how many reads would have hit, and whether an answer would have been
// wrong. Writers invalidate the cache as they will later.
//
// An answer that differs may just be on its way out. So the Shadow reads the cache again, and then the
// source. If they differ, it waits for Settle, and counts a difference if the cache still gives that same
// answer and the source still has the other one. So a writer is accused only if it takes longer than Settle
// from its commit to its invalidation, or forgets it. The key is not compared meanwhile.
//
// Without a Source.Clone nobody may change a value that was returned, as with the cache: it is compared
// afterwards. The methods may be called concurrently.
type Shadow[K comparable, V any] struct {
	looker[K, V]
	c    *cache.Cache[K, V]
	o    ShadowOptions[K, V]
	asks chan ask[K, V]

	mu      sync.Mutex // guards doubted
	doubted map[K]bool // keys that wait for their second look
}

// An ask is a read that the source has answered.
type ask[K comparable, V any] struct {
	ctx   context.Context
	key   K
	value V
	gone  bool
}

const (
	shadowPlaces = 8    // looks at a time
	mostAsks     = 1024 // wait for a place; further reads are not compared
	mostDoubts   = 1024 // wait for their second look; further ones are not judged
	mostLooks    = 3    // at a key whose source changes between them; then it is not judged
)

// NewShadow makes a Shadow of c whose answers come from load. Its error names the field of o that is
// wrong. Close it before the cache.
func NewShadow[K comparable, V any](c *cache.Cache[K, V], load cache.Loader[K, V], o ShadowOptions[K, V]) (*Shadow[K, V], error) {
	of := c.Inside().Audit.(inside.Audit[K, V])
	if o.Share == 0 {
		o.Share = 0.1
	}
	if o.Settle == 0 {
		o.Settle = settle(of.ReplicaLag)
	}
	if o.Equal == nil {
		o.Equal = same[V] // finds what a Codec loses
	}
	switch {
	case load == nil:
		return nil, errors.New("audit: NewShadow needs a load")
	case !(o.Share > 0 && o.Share <= 1) || o.Settle < 0:
		return nil, fmt.Errorf("audit: ShadowOptions: Share must be up to 1 and Settle not negative, got %v and %v", o.Share, o.Settle)
	}
	s := &Shadow[K, V]{c: c, o: o, asks: make(chan ask[K, V], mostAsks), doubted: map[K]bool{}}
	s.open(of, load, o.Equal, shadowPlaces, &of.Shadow.Unjudged)
	for range shadowPlaces {
		s.running.Go(s.work)
	}
	return s, nil
}

// Close ends the comparisons, and waits for those under way, for up to 10 s. Differences that wait for their
// second look are dropped. Get and GetMany go on answering.
func (s *Shadow[K, V]) Close() {
	s.close()
}

// Get calls load, and returns what it returns.
func (s *Shadow[K, V]) Get(ctx context.Context, key K) (V, error) {
	value, err := s.load(ctx, key)
	s.compare(ctx, key, value, err)
	return value, err
}

// GetMany calls ShadowOptions.LoadMany, or load for one key after another, and returns the values of
// those keys that exist.
func (s *Shadow[K, V]) GetMany(ctx context.Context, keys []K) (map[K]V, error) {
	if s.o.LoadMany == nil {
		values := make(map[K]V, len(keys))
		for _, key := range keys {
			value, err := s.Get(ctx, key)
			switch {
			case err == nil:
				values[key] = value
			case !s.of.Absent(value, err):
				return values, err
			}
		}
		return values, nil
	}
	values, err := s.o.LoadMany(ctx, keys)
	for _, key := range keys {
		value, ok := values[key]
		if err == nil && !ok {
			s.compare(ctx, key, value, cache.ErrNotFound)
			continue
		}
		s.compare(ctx, key, value, err)
	}
	return values, err
}

// compare has the cache read for a key of the share that load has answered, if a worker will be free soon.
func (s *Shadow[K, V]) compare(ctx context.Context, key K, value V, err error) {
	gone := s.of.Absent(value, err)
	if s.ctx.Err() != nil || err != nil && !gone {
		return
	}
	contain.Call(func() error { // the key's own text, and Clone, are the user's
		id, err := s.of.ID(key)
		if err != nil || !shared(id, s.o.Share) {
			return err
		}
		a := ask[K, V]{ctx: flight.Detached(ctx), key: key, gone: gone}
		if !gone {
			a.value = s.of.Clone(value)
		}
		select {
		case s.asks <- a:
		default:
			s.of.Shadow.Skipped.Add(1)
		}
		return nil
	}, func(err error) {
		if err != nil {
			s.of.Shadow.Failed.Add(1)
			notCompared(s.of.Log, err)
		}
	})
}

// work asks the cache, until s is closed.
func (s *Shadow[K, V]) work() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case a := <-s.asks:
			s.run(a.ctx, func(ctx context.Context) error { return s.ask(ctx, a) })
		}
	}
}

// ask reads the cache as the service would have, and counts. What differs from the source's answer
// may be newer than that one: so both are read again, the cache first.
func (s *Shadow[K, V]) ask(ctx context.Context, a ask[K, V]) error {
	got, err := s.c.Fetch(ctx, a.key)
	null := errors.Is(err, cache.ErrNotFound)
	if err != nil && !null {
		if s.ctx.Err() == nil {
			s.of.Shadow.Failed.Add(1)
		}
		return nil
	}
	if s.count(got.Tier, null, got.Stale); got.Stale || got.Tier == cache.TierSource {
		return nil // no answer of the cache's that could be wrong
	}
	if s.doubts(a.key) {
		return nil
	}
	same, err := s.same(got.Value, null, a.value, a.gone)
	if err != nil {
		return err
	}
	if same {
		s.of.Shadow.Equal.Add(1)
		return nil
	}
	look, is, err := s.look(ctx, a.key, nil)
	switch {
	case err != nil:
		return err
	case is == differs:
		s.later(a, s.doubt(look, is), 1)
	default:
		s.of.Shadow.Raced.Add(1)
	}
	return nil
}

func (s *Shadow[K, V]) doubts(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubted[key]
}

// later looks at a key again after Settle. looks says how many looks there were.
func (s *Shadow[K, V]) later(a ask[K, V], d *doubt, looks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case looks > mostLooks || !s.doubted[a.key] && len(s.doubted) == mostDoubts:
		s.of.Shadow.Unjudged.Add(1)
	case !s.doubted[a.key]:
		s.doubted[a.key] = true
		s.running.Go(func() {
			wait.Sleep(s.ctx, s.o.Settle)
			s.run(a.ctx, func(ctx context.Context) error { return s.again(ctx, a, d, looks) })
		})
	}
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

// again looks at a key again.
func (s *Shadow[K, V]) again(ctx context.Context, a ask[K, V], d *doubt, looks int) error {
	s.mu.Lock()
	delete(s.doubted, a.key)
	s.mu.Unlock()
	look, is, err := s.look(ctx, a.key, d)
	switch {
	case err != nil:
		return err
	case is == sure:
		s.later(a, s.doubt(look, is), looks+1)
	case is != still:
		s.of.Shadow.Raced.Add(1)
	default:
		s.of.Shadow.Differs.Add(1)
		if s.o.Differs == nil {
			s.of.Log.Error("the cache would answer otherwise than the source", logonce.Name("key", look.ID), "null", look.Null, "gone", look.Gone, "age", look.Age)
			return nil
		}
		s.o.Differs(staleOf(a.key, look))
	}
	return nil
}

// look reads what the cache serves for key and then, if it serves anything, the source.
func (s *Shadow[K, V]) look(ctx context.Context, key K, d *doubt) (look inside.Look[V], is verdict, err error) {
	if look, err = s.of.Served(ctx, key); err == nil {
		err = s.source(ctx, key, &look)
	}
	if err == nil {
		is, err = s.verdict(look, d)
	}
	return look, is, err
}
