package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/localcache"
	"github.com/levee-go/levee/mutexrebuild"
)

// failing is a cache whose loads fail now and then, and so do its writers' transactions, before their
// commit or after it. What a load that fails leaves to answer is marked, and is no operation of the
// history: it has to be no older than the last write of its key that has succeeded.
type failing struct {
	cached
	db        *board
	confirmed *[boardKeys]atomic.Int64 // versions that writes which succeeded have made the oldest
}

// confirmedOf has the confirmed versions of each board: both processes of a bubble are parts of one.
var confirmedOf sync.Map

var errFailing = errors.New("the source fails")

func newFailing(rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	confirmed, _ := confirmedOf.LoadOrStore(db, new([boardKeys]atomic.Int64))
	// Of 20 loads 10 fail now and then. A breaker that opens by it would end the history.
	closed, err := breaker.New(breaker.Options{IsFailure: func(error) bool { return false }})
	if err != nil {
		return nil, err
	}
	c, err := cache.NewFrom(rdb, cache.Source[int, int64]{
		Tags: func(key int, _ int64) []string { return []string{id(key)} },
		Load: func(_ context.Context, key int) (int64, error) {
			version := load(db, key)
			if rand.IntN(4) == 0 {
				return 0, errFailing
			}
			return version, nil
		},
	}, cache.Options{
		Name: "linear", TTL: valueTTL, RedisTimeout: patience, Logger: quiet,
		StaleWhileRevalidate: -1, StaleIfError: 10 * valueTTL, EarlyRefresh: -1,
		Local:   localcache.Options{MaxBytes: -1},
		Rebuild: mutexrebuild.Options{ErrorHold: -1},
		Breaker: closed,
	})
	return failing{cached{c}, db, confirmed.(*[boardKeys]atomic.Int64)}, err
}

// read reads until all answers are unmarked, and looks at those that are not.
func (c failing) read(keys []int) (versions []int64, err error) {
	for {
		oldest := make([]int64, len(keys))
		for i, key := range keys {
			oldest[i] = c.confirmed[key].Load()
		}
		got, err := c.FetchMany(context.Background(), keys)
		versions = versions[:0]
		for i, key := range keys {
			switch answer, ok := got[key]; {
			case !ok:
			case !answer.Stale:
				versions = append(versions, answer.Value)
			case answer.Value < oldest[i]:
				return nil, fmt.Errorf("not linearizable: a failed load leaves version %d to answer, after a write of %d has succeeded", answer.Value, oldest[i])
			}
		}
		if len(versions) == len(keys) {
			return versions, nil
		}
		if err != nil && !errors.Is(err, errFailing) {
			return nil, err
		}
	}
}

// write commits once, in a transaction that may fail before or after.
func (c failing) write(key int, commit func()) error {
	named := c.Changes(key)
	if rand.IntN(4) == 0 {
		named = c.Tagged(id(key))
	}
	for rand.IntN(3) == 0 {
		if err := cache.Write(context.Background(), func(context.Context) error { pause(); return errFailing }, named); !errors.Is(err, errFailing) {
			return err
		}
	}
	fails, version := rand.IntN(2) == 0, int64(0)
	err := cache.Write(context.Background(), func(context.Context) error {
		pause()
		version = c.db.read(key) + 1 // or later
		commit()
		pause()
		if fails {
			return errFailing
		}
		return nil
	}, named)
	if fails && errors.Is(err, errFailing) {
		return nil
	}
	c.confirm(key, version)
	return err
}

func (c failing) invalidate(key int) error {
	defer c.confirm(key, c.db.read(key))
	return c.cached.invalidate(key)
}

func (c failing) refresh(key int) error { return c.invalidate(key) }

func (c failing) set(key int, version int64) error {
	defer c.confirm(key, version)
	return c.cached.set(key, version)
}

func (c failing) confirm(key int, version int64) {
	for {
		was := c.confirmed[key].Load()
		if was >= version || c.confirmed[key].CompareAndSwap(was, version) {
			return
		}
	}
}

// A transaction that fails may have committed: no later read that is unmarked is older. One that has
// succeeded leaves nothing that is older, marked or not.
func TestShortHistoriesOfFailingWritesAreNotStale(t *testing.T) {
	shortHistories(t, isStale, "failing")
}
