package linear

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/mutexrebuild"
)

// localTTL is for values that the local tier takes: what lives for 50 ms or less it does not.
const localTTL = time.Second

func newNear(rdb redis.UniversalClient, db *board, patience time.Duration) (cached, error) {
	c, err := cache.New(rdb, func(_ context.Context, key int) (int64, error) { return load(db, key), nil }, cache.Options{
		Name: "linear", TTL: localTTL, RedisTimeout: patience, Logger: quiet, Local: small,
		Rebuild: mutexrebuild.Options{ErrorHold: -1},
	})
	return cached{c}, err
}

// around is a cache with a local tier, which the reads of the history go around. Beside each of
// them runs one that uses it, and fills it.
type around struct {
	cached
	others *sync.WaitGroup
}

func newAround(rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	c, err := newNear(rdb, db, patience)
	return around{c, &sync.WaitGroup{}}, err
}

func (a around) read(keys []int) ([]int64, error) {
	a.others.Go(func() { _, _ = a.cached.read(keys) })
	return readFrom(a.With(cache.Reads{SkipLocal: true}), keys)
}

func (a around) close() {
	a.others.Wait()
	a.cached.close()
}

// unheard is a cache whose writers do not tell it, and whose readers ask for what was loaded since.
type unheard struct{ around }

func newUnheard(rdb redis.UniversalClient, db *board, patience time.Duration) (subject, error) {
	c, err := newNear(rdb, db, patience)
	return unheard{around{c, &sync.WaitGroup{}}}, err
}

func (u unheard) read(keys []int) ([]int64, error) {
	u.others.Go(func() { _, _ = u.cached.read(keys) })
	return readFrom(u.With(cache.Reads{Reload: true}), keys)
}

func (u unheard) write(_ int, commit func()) error { pause(); commit(); return nil }
func (u unheard) invalidate(int) error             { return nil }
func (u unheard) set(int, int64) error             { return nil }
func (u unheard) refresh(int) error                { return nil }

// Reads that go around the local tier are in one order with the writes of all processes, while
// others use it.
func TestShortHistoriesAroundTheLocalTierAreLinearizable(t *testing.T) { shortOrders(t, "skiplocal") }

// A read that takes nothing older than itself sees each row as it is in the database, though nobody
// tells the cache of a write.
func TestShortHistoriesOfNothingOlderAreLinearizable(t *testing.T) { shortOrders(t, "maxage") }
