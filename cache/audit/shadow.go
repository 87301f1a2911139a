package audit

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
	c       *cache.Cache[K, V]
	load    cache.Loader[K, V]
	o       ShadowOptions[K, V]
	of      inside.Audit[K, V]
	asks    chan ask[K, V]
	again   chan doubt[K, V]
	doubted sync.Map // keys that wait for their second look

	ctx     context.Context // ends with Close, and with the cache
	stop    context.CancelFunc
	running wait.Tasks
}

// An ask is a read that the source has answered.
type ask[K comparable, V any] struct {
	ctx context.Context
	key K
	answer[V]
}

// An answer is a value, or that there is none.
type answer[V any] struct {
	value V
	gone  bool
}

// A doubt is an answer of the cache that differed from the source.
type doubt[K comparable, V any] struct {
	ctx    context.Context
	key    K
	was    any // inside.Look.Stored
	source answer[V]
	at     time.Time // to look again
	looks  int
}

const (
	shadowWorkers = 8           // read the cache
	shadowJudges  = 4           // look again
	mostAsks      = 1024        // wait for a worker; further reads are not compared
	mostDoubts    = 1024        // wait for their second look; further ones are not judged
	mostLooks     = 3           // at a key whose source changes between them; then it is not judged
	askTimeout    = time.Minute // of the cache, whose loads have limits of their own
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
		o.Equal = same[V]
	}
	switch {
	case load == nil:
		return nil, errors.New("audit: NewShadow needs a load")
	case !(o.Share > 0 && o.Share <= 1) || o.Settle < 0:
		return nil, fmt.Errorf("audit: ShadowOptions: Share must be up to 1 and Settle not negative, got %v and %v", o.Share, o.Settle)
	}
	s := &Shadow[K, V]{
		c: c, load: load, o: o, of: of,
		asks: make(chan ask[K, V], mostAsks), again: make(chan doubt[K, V], mostDoubts),
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

// Close ends the comparisons, and waits for those under way. Differences that wait for their second look are
// dropped. Get and GetMany go on answering.
func (s *Shadow[K, V]) Close() {
	s.stop()
	<-s.running.Close()
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
	failed := func(err error) {
		s.of.Shadow.Failed.Add(1)
		notCompared(s.of.Log, err)
	}
	contain.Call(func() error { // the key's own text, and Clone, are the user's
		shares, err := s.shares(key)
		if err != nil {
			failed(err)
		}
		if !shares {
			return nil
		}
		a := ask[K, V]{flight.Detached(ctx), key, answer[V]{gone: gone}}
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
		if err != nil { // it panicked
			failed(err)
		}
	})
}

// shares reports whether key is one of the share, of which all processes have the same.
func (s *Shadow[K, V]) shares(key K) (bool, error) {
	id, err := s.of.ID(key)
	if err != nil {
		return false, err
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	n := h.Sum64() // in which short ids differ in few of the bits: MurmurHash3's fmix64 spreads them
	n = (n ^ n>>33) * 0xff51afd7ed558ccd
	n = (n ^ n>>33) * 0xc4ceb9fe1a85ec53
	n ^= n >> 33
	return float64(n>>11) < s.o.Share*(1<<53), nil
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
					s.of.Shadow.Unjudged.Add(1)
					notCompared(s.of.Log, err)
				}
			})
		}
	}
}

// within returns a context with the values of ctx that ends with s, or after a minute.
func (s *Shadow[K, V]) within(ctx context.Context) (within context.Context, stop func()) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	release := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { release(); cancel() }
}

// ask reads the cache as the service would have, and counts. What differs from the source's answer
// may be newer than that one: so both are read again, the cache first.
func (s *Shadow[K, V]) ask(a ask[K, V]) error {
	ctx, stop := s.within(a.ctx)
	defer stop()
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
	if _, doubted := s.doubted.Load(a.key); doubted {
		return nil
	}
	if s.equal(answer[V]{got.Value, null}, a.answer) {
		s.of.Shadow.Equal.Add(1)
		return nil
	}
	look, source, err := s.look(ctx, a.key)
	switch {
	case err != nil:
		return err
	case !look.There || s.equal(answer[V]{look.Cached, look.Null}, source):
		s.of.Shadow.Raced.Add(1)
		return nil
	}
	s.lookAgain(doubt[K, V]{ctx: a.ctx, key: a.key, was: look.Stored, source: source})
	return nil
}

// lookAgain leaves a doubt for its next look.
func (s *Shadow[K, V]) lookAgain(d doubt[K, V]) {
	d.at = time.Now().Add(s.o.Settle)
	if d.looks++; d.looks > mostLooks {
		s.of.Shadow.Unjudged.Add(1)
		return
	}
	if _, there := s.doubted.LoadOrStore(d.key, true); there {
		return
	}
	select {
	case s.again <- d:
	default:
		s.doubted.Delete(d.key)
		s.of.Shadow.Unjudged.Add(1)
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

// judge looks at a doubt again when its time has come. All wait for the same time, so the first is due
// first. Where the source may lag, it may have had less than the cache at the first look: if it has changed
// since, that write may be under way, and the key is looked at once more.
func (s *Shadow[K, V]) judge(d doubt[K, V]) error {
	wait.Sleep(s.ctx, time.Until(d.at))
	s.doubted.Delete(d.key)
	ctx, stop := s.within(d.ctx)
	defer stop()
	look, source, err := s.look(ctx, d.key)
	cached := answer[V]{look.Cached, look.Null}
	switch {
	case err != nil:
		return err
	case !look.There || look.Stored != d.was || s.equal(cached, source):
		s.of.Shadow.Raced.Add(1)
		return nil
	case s.of.ReplicaLag > 0 && !s.equal(source, d.source):
		d.source = source
		s.lookAgain(d)
		return nil
	}
	s.of.Shadow.Differs.Add(1)
	if s.o.Differs == nil {
		s.of.Log.Error("the cache would answer otherwise than the source", logonce.Name("key", look.ID), "null", look.Null, "gone", source.gone, "age", look.Age)
		return nil
	}
	s.o.Differs(StaleValue[K, V]{Key: d.key, Cached: look.Cached, Null: look.Null, Source: source.value, Gone: source.gone, Age: look.Age})
	return nil
}

// look reads what the cache serves for key and then, if it serves anything, the source.
func (s *Shadow[K, V]) look(ctx context.Context, key K) (look inside.Look[V], source answer[V], err error) {
	look, err = s.of.Served(ctx, key)
	if err != nil || !look.There {
		return look, source, err
	}
	source.value, err = s.load(ctx, key)
	if s.of.Absent(source.value, err) {
		return look, answer[V]{gone: true}, nil
	}
	return look, source, err
}

func (s *Shadow[K, V]) equal(cached, source answer[V]) bool {
	return cached.gone == source.gone && (cached.gone || s.o.Equal(cached.value, source.value))
}
