package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// FuzzAnything takes bytes for options and for what happens to a cache: reads and
// writes of a few keys, time that passes, a source and a Redis that fail in several
// ways and recover. Whatever it is, every answer has to be one that some state of
// the source gave, young enough, and none from before an invalidation that was
// confirmed; every error has a name; the outcomes add up; and what is left in Redis
// has an end.
func FuzzAnything(f *testing.F) {
	for seed := range uint64(redistest.Pick(8, 1500)) {
		random := rand.New(rand.NewPCG(seed, 11))
		script := make([]byte, 300)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 300 {
			script = script[:300]
		}
		synctest.Test(t, func(t *testing.T) { playScript(t, &dice{script}) })
	})
}

// dice are the bytes of a script, as decisions.
type dice struct{ left []byte }

func (d *dice) roll(n int) int {
	if len(d.left) == 0 {
		return 0
	}
	b := d.left[0]
	d.left = d.left[1:]
	return int(b) % n
}

func pick[T any](d *dice, from ...T) T { return from[d.roll(len(from))] }

// A drama is a cache, its source and its Redis, and what is known of the keys.
type drama struct {
	*testing.T
	dice *dice
	c    *probe[int64, string]
	o    cache.Options
	mini *redistest.MiniServer // nil: no Redis
	ends bool                  // the cache is closed

	mu   sync.Mutex // guards what follows, which loads in the background read
	keys [3]scriptedKey
	mood string // of the source
}

// A scriptedKey is the history of a row: its versions, "" where there was no row,
// and when each was replaced.
type scriptedKey struct {
	versions []string
	replaced []time.Time
	first    int // the oldest version that a Get may still give
}

func playScript(t *testing.T, d *dice) {
	s := &drama{T: t, dice: d, mood: "answers"}
	r := &rig{T: t, ctx: context.Background(), deaf: true}
	r.cell = cell{local: d.roll(2) == 1, breaker: d.roll(2) == 1}
	var rdb redis.UniversalClient
	if d.roll(4) > 0 {
		s.mini = redistest.Mini(t)
		t.Cleanup(synctest.Wait)
		rdb = s.mini.Client(t)
		r.rdb = rdb
	}
	s.o = r.options([]func(*cache.Options){func(o *cache.Options) {
		o.TTL = pick(d, time.Second, time.Minute, 10*time.Minute)
		o.NullTTL = pick(d, time.Second, 30*time.Second)
		o.StaleWhileRevalidate = pick(d, 0, -1, time.Second, time.Hour)
		o.StaleIfError = pick(d, 0, -1, 10*time.Second)
		o.EarlyRefresh = pick(d, 0, -1, 5.)
		o.Jitter = pick(d, 0, -1, 0.9)
		o.Rebuild.ErrorHold = pick(d, 0, -1, 10*time.Second)
		if d.roll(2) == 1 {
			o.Breaker = redistest.Must(breaker.New(breaker.Options{MinRequests: 3, Cooldown: time.Second, MaxConcurrent: 2, Timeout: time.Second}))
		}
	}})
	for i := range s.keys {
		s.keys[i] = scriptedKey{versions: []string{""}}
	}
	source := pick(d,
		cache.Source[int64, string]{Load: s.load},
		cache.Source[int64, string]{LoadMany: s.loadMany},
		cache.Source[int64, string]{Load: s.load, LoadMany: s.loadMany})
	s.c = openOn(r, rdb, source, func(o *cache.Options) { *o = s.o })
	for len(d.left) > 0 && !t.Failed() {
		s.step(int64(d.roll(len(s.keys))))
	}
	defer time.Sleep(time.Second) // for a load that does not heed its context
	s.heal()
	if s.mini != nil {
		_ = s.c.Close()
		everyKeyEnds(t, rdb)
	}
}

func (s *drama) load(ctx context.Context, key int64) (string, error) {
	s.mu.Lock()
	mood, versions := s.mood, s.keys[key].versions
	s.mu.Unlock()
	switch mood {
	case "fails":
		return "", errBroken
	case "panics":
		panic("the source panics")
	case "exits":
		runtime.Goexit()
	case "hangs":
		<-ctx.Done()
		return "", ctx.Err()
	case "is slow":
		time.Sleep(300 * time.Millisecond)
	}
	if row := versions[len(versions)-1]; row != "" {
		return row, nil
	}
	return "", cache.ErrNotFound
}

// loadMany is load for several keys, and returns one that nobody asked for.
func (s *drama) loadMany(ctx context.Context, keys []int64) (map[int64]string, error) {
	found := map[int64]string{77: "nobody asked for this"}
	for _, key := range keys {
		row, err := s.load(ctx, key)
		switch {
		case err == nil:
			found[key] = row
		case !errors.Is(err, cache.ErrNotFound):
			return found, err
		}
	}
	return found, nil
}

// feel changes the mood of the source, and returns the one before.
func (s *drama) feel(mood string) (before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.mood = s.mood, mood
	return before
}

// replace makes a new version of a row.
func (s *drama) replace(k *scriptedKey, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.replaced = append(k.replaced, time.Now())
	k.versions = append(k.versions, version)
}

// confirm says that versions before the last may not be seen any more, if a write
// was confirmed.
func (k *scriptedKey) confirm(err error) {
	if err == nil {
		k.first = len(k.versions) - 1
	}
}

func (s *drama) step(key int64) {
	k := &s.keys[key]
	ctx, cancel := context.WithTimeout(context.Background(), pick(s.dice, time.Minute, 100*time.Millisecond))
	defer cancel()
	version := fmt.Sprintf("%d.%d", key, len(k.versions))
	switch s.dice.roll(16) {
	case 0:
		s.replace(k, version) // and nobody says so
	case 1:
		s.replace(k, "")
		s.written(k, s.c.Invalidate(ctx, key))
	case 2:
		s.replace(k, version)
		if s.dice.roll(2) == 0 {
			s.written(k, s.c.Invalidate(ctx, key))
		} else {
			s.confirmed(k, s.c.Refresh(ctx, key), cache.ErrUnavailable)
		}
	case 3:
		s.replace(k, version)
		if s.dice.roll(2) == 0 {
			s.written(k, s.c.Set(ctx, key, version))
		} else {
			s.written(k, s.c.SetMany(ctx, map[int64]string{key: version}))
		}
	case 4:
		s.written(k, s.c.Write(ctx, []int64{key}, func(context.Context) error {
			if s.dice.roll(2) == 0 {
				s.beside(ctx, k, key)
			}
			s.replace(k, version+"w")
			return nil
		}))
	case 5:
		s.feel(pick(s.dice, "answers", "fails", "panics", "exits", "hangs", "is slow", "answers"))
	case 6:
		s.breakRedis()
	case 7:
		s.heal()
	case 8:
		if s.dice.roll(8) == 0 && !s.ends {
			s.ends = true
			if err := s.c.Close(); err != nil {
				s.Errorf("Close: %v", err)
			}
		}
	case 9, 10:
		time.Sleep(time.Duration(1+s.dice.roll(200)) * pick(s.dice, time.Millisecond, 100*time.Millisecond, time.Second, 10*time.Second))
	case 11:
		s.getMany(ctx, pick(s.dice, []int64{0, 1, 2}, []int64{2, 0}, []int64{1, 1}, nil))
	default:
		got, err := s.c.Fetch(ctx, key)
		s.answered(k, got, err)
	}
	if s.dice.roll(3) == 0 {
		synctest.Wait()
	}
}

// beside is what happens beside a write of a key: another write of it begins and ends
// while somebody loads. Who asks then must not get what that load has brought.
func (s *drama) beside(ctx context.Context, k *scriptedKey, key int64) {
	defer s.feel(s.feel(pick(s.dice, "is slow", "answers")))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if _, err := s.c.Get(ctx, key); err != nil && !errors.Is(err, cache.ErrNotFound) {
			s.named(err)
		}
	}()
	time.Sleep(pick(s.dice, time.Millisecond, 200*time.Millisecond))
	s.replace(k, fmt.Sprintf("%d.%d b", key, len(k.versions)))
	s.written(k, s.c.Invalidate(ctx, key))
	if s.dice.roll(2) == 0 {
		<-answered
	}
	got, err := s.c.Fetch(ctx, key)
	s.answered(k, got, err)
	<-answered
}

// getMany checks each answer as that of a Fetch. A key without an answer or a cause does
// not exist.
func (s *drama) getMany(ctx context.Context, keys []int64) {
	values, err := s.c.GetMany(ctx, keys)
	var batch *cache.BatchError[int64]
	if err != nil && !errors.As(err, &batch) {
		s.Errorf("want a *BatchError, got %v", err)
		return
	}
	answers := 0
	for _, key := range keys {
		value, ok := values[key]
		switch {
		case ok:
			answers++
			s.answered(&s.keys[key], cache.Result[string]{Value: value, Age: -1}, nil)
		case batch != nil && batch.Causes[key] != nil:
			s.named(batch.Causes[key])
		default:
			s.answered(&s.keys[key], cache.Result[string]{Age: -1}, cache.ErrNotFound)
		}
	}
	if answers < len(values) {
		s.Errorf("%v were asked for, and the answers are %v", keys, values)
	}
}

func (s *drama) written(k *scriptedKey, err error) { s.confirmed(k, err, cache.ErrNotInvalidated) }

func (s *drama) confirmed(k *scriptedKey, err, may error) {
	k.confirm(err)
	if err != nil && !errors.Is(err, may) {
		s.named(err)
	}
}

// answered checks an answer against what the source has been.
func (s *drama) answered(k *scriptedKey, got cache.Result[string], err error) {
	s.Helper()
	if err != nil && !errors.Is(err, cache.ErrNotFound) {
		s.named(err)
		return
	}
	if s.ends {
		s.Errorf("closed, it gives %+v, %v", got, err)
	}
	for i := k.first; i < len(k.versions); i++ {
		if k.versions[i] != got.Value {
			continue
		}
		own := s.o.TTL
		longest := own + max(window(s.o.StaleWhileRevalidate, 30*time.Second), window(s.o.StaleIfError, time.Hour))
		if got.Value == "" {
			own = s.o.NullTTL
			longest = 2 * own // in Redis, and then once more in the local tier
		}
		const slack = 6 * time.Second // what a load or a wait for one may take
		if i < len(k.replaced) && time.Since(k.replaced[i]) > longest+slack {
			continue
		}
		if got.Age > longest+slack || !got.Stale && got.Age > own {
			s.Errorf("%+v is too old, %+v", got, s.o)
		}
		return
	}
	s.Errorf("%+v, %v: since %d the versions were %q, replaced at %v, now it is %v", got, err, k.first, k.versions, k.replaced, time.Now())
}

func window(set, zero time.Duration) time.Duration {
	if set == 0 {
		return zero
	}
	return max(set, 0)
}

// named checks that an error is one of those that are promised.
func (s *drama) named(err error) {
	s.Helper()
	var p *cache.PanicError
	switch {
	case s.ends && errors.Is(err, cache.ErrClosed):
	case errors.Is(err, errBroken), errors.Is(err, cache.ErrOverloaded), errors.Is(err, cache.ErrLoadTimeout), errors.Is(err, breaker.ErrTimeout),
		errors.As(err, &p), errors.Is(err, context.DeadlineExceeded):
	default:
		s.Errorf("an error without a name: %v", err)
	}
	if text := err.Error(); strings.Contains(text, "redis:") || strings.Contains(text, "LOADING") {
		s.Errorf("an error of Redis: %v", err)
	}
}

func (s *drama) breakRedis() {
	if s.mini == nil {
		return
	}
	switch s.dice.roll(5) {
	case 0:
		s.commands("GETRANGE EVAL EVALSHA", refuse("LOADING Redis is loading the dataset in memory"))
	case 1:
		s.commands("EVAL EVALSHA", refuse("OOM command not allowed when used memory > 'maxmemory'."))
	case 2:
		s.mini.FlushAll()
	case 3: // somebody else's bytes at our keys
		for i := range s.keys {
			_ = s.mini.Set(valueKey(i), pick(s.dice, "", "what?", "Lv\x02\x01"))
			s.mini.SetTTL(valueKey(i), time.Hour)
		}
	case 4:
		// Not GETRANGE: scripts call that too, with the server's mutex held.
		s.commands("EVAL EVALSHA", func(*server.Peer) bool { time.Sleep(2 * time.Second); return false })
	}
}

func refuse(reply string) func(*server.Peer) bool {
	return func(c *server.Peer) bool { c.WriteError(reply); return true }
}

// commands changes what the server does with some commands. Those of a subscription
// it serves as ever: go-redis waits for them with a mutex held, for which a bubble's
// time stands still.
func (s *drama) commands(which string, do func(*server.Peer) bool) {
	s.mini.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		return slices.Contains(strings.Fields(which), strings.ToUpper(command)) && do(c)
	})
}

func (s *drama) heal() {
	if s.mini != nil {
		s.mini.Server().SetPreHook(nil)
	}
}
