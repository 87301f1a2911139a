package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// What a read may still give of a source whose replicas lag by at most replicaLag: after
// that time a load brings the new row, and what one reader has loaded meanwhile answers
// for another second.
const (
	replicaLag = 2 * time.Second
	allowed    = replicaLag + time.Second + 100*time.Millisecond
)

// A replica is a database whose loads read from replicas, each of which is behind by any
// time up to replicaLag.
type replica struct {
	mu   sync.Mutex // guards rows
	rows map[int][]row
}

// A row is a version of a key, and when it was committed.
type row struct {
	version int64
	at      time.Time
}

func (r *replica) commit(key int) (version int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version = int64(len(r.rows[key]) + 1)
	r.rows[key] = append(r.rows[key], row{version, time.Now()})
	return version
}

func (r *replica) load(_ context.Context, key int) (int64, error) {
	time.Sleep(rand.N(20 * time.Millisecond))
	defer time.Sleep(rand.N(20 * time.Millisecond))
	seen := time.Now().Add(-rand.N(replicaLag))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range slices.Backward(r.rows[key]) {
		if !row.at.After(seen) {
			return row.version, nil
		}
	}
	return 0, nil
}

// A laggingHistory is that of caches with local tiers in several processes, whose source
// is a replica, in a bubble: so its bounds hold to the millisecond on any machine.
type laggingHistory struct {
	mu  sync.Mutex // guards ops
	ops []op

	degraded    uint64 // loads
	unconfirmed uint64 // calls of writers
}

func (h *laggingHistory) add(o op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// A laggingWrite commits a version of a key and ends what is cached of it.
type laggingWrite func(ctx context.Context, c *cache.Cache[int, int64], db *replica, key int) (version int64, err error)

// recordLagging records reads and writes for a while, in which a write counts as ended when
// what is allowed after it has passed. If troubled, the processes lose Redis now and then.
func recordLagging(t *testing.T, length time.Duration, troubled bool, write laggingWrite) (h *laggingHistory) {
	const processes, keys, readers = 3, 4, 2
	h = &laggingHistory{}
	synctest.Test(t, func(t *testing.T) {
		server, db := redistest.Mini(t), &replica{rows: map[int][]row{}}
		began := time.Now()
		var caches []*cache.Cache[int, int64]
		var ways [processes]way
		var running sync.WaitGroup
		for process := range processes {
			rdb := server.Client(t, ways[process].over)
			source := cache.Source[int, int64]{Load: db.load, Tags: func(key int, _ int64) []string { return []string{id(key)} }}
			c, err := cache.NewFrom(rdb, source, cache.Options{
				Name: "lag", TTL: 10 * time.Minute, ReplicaLag: replicaLag, EarlyRefresh: -1, Logger: quiet, Local: small,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			caches = append(caches, c)
			for reader := range readers {
				running.Go(func() {
					for time.Since(began) < length {
						time.Sleep(rand.N(200 * time.Millisecond))
						key, call := rand.IntN(keys), time.Since(began)
						version, err := c.Get(t.Context(), key)
						if err != nil {
							t.Errorf("Get: %v", err)
						}
						h.add(op{Client: int64(process*readers + reader), Key: int64(key), Value: version, Call: int64(call), Return: int64(time.Since(began))})
					}
				})
			}
			running.Go(func() {
				for time.Since(began) < length {
					time.Sleep(rand.N(20 * time.Second))
					key, call := rand.IntN(keys), time.Since(began)
					version, err := write(t.Context(), c, db, key)
					if err != nil {
						continue // nothing is promised
					}
					h.add(op{Client: int64(process), Key: int64(key), Value: version, Call: int64(call), Return: int64(time.Since(began) + allowed), Write: true})
				}
			})
		}
		for troubled && time.Since(began) < length {
			disturb(ways[:])
		}
		running.Wait()
		time.Sleep(5 * time.Second) // Redis is there again
		for _, c := range caches {
			s := c.Stats()
			h.degraded, h.unconfirmed = h.degraded+s.Degraded, h.unconfirmed+s.NotInvalidated
			if n := s.Rebuild.Unconfirmed; n > 0 {
				t.Errorf("%d invalidations are still not confirmed", n)
			}
		}
	})
	return h
}

// lagFor is how long such a history is: in a mutant as long as it may need to show the fault.
func lagFor() time.Duration {
	if os.Getenv(insistent) != "" {
		return 10 * time.Minute
	}
	return redistest.Pick(4*time.Minute, 10*time.Minute)
}

// disturb leaves the ways in peace for a while, and then one of them, or all, in trouble.
func disturb(ways []way) {
	time.Sleep(rand.N(5 * time.Second))
	if rand.IntN(3) > 0 {
		one := rand.IntN(len(ways))
		ways = ways[one : one+1]
	}
	trouble := 1 + rand.Int32N(troubles-1)
	for i := range ways {
		ways[i].trouble.Store(trouble)
	}
	time.Sleep(rand.N(2 * time.Second))
	for i := range ways {
		ways[i].trouble.Store(none)
	}
}

func writeLagging(ctx context.Context, c *cache.Cache[int, int64], db *replica, key int) (version int64, err error) {
	if rand.IntN(2) == 0 {
		version = db.commit(key)
		return version, c.Invalidate(ctx, key)
	}
	err = c.Write(ctx, []int{key}, func(context.Context) error {
		time.Sleep(rand.N(50 * time.Millisecond))
		version = db.commit(key)
		time.Sleep(rand.N(50 * time.Millisecond))
		return nil
	})
	return version, err
}

// clearLagging clears the tag of a key, and then that of another one: processes often learn of both at once.
func clearLagging(ctx context.Context, c *cache.Cache[int, int64], db *replica, key int) (version int64, err error) {
	version = db.commit(key)
	return version, errors.Join(c.ClearTags(ctx, id(key)), c.ClearTags(ctx, id(key+1)))
}

// With Options.ReplicaLag the row of a lagging replica never enters the cache: what was
// read from one answers for a second, and not for the life of an entry, here or elsewhere.
//
// Catches an invalidation that leaves no hold for ReplicaLag: three reads of four give a row
// that must have ended.
func TestARowOfALaggingReplicaDoesNotStay(t *testing.T) {
	for round := range redistest.Pick(1, 100) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			h := recordLagging(t, lagFor(), false, writeLagging)
			if bad := stale(h.ops); len(bad) > 0 {
				t.Errorf("%d of %d operations read a row that must have ended, as client %d at %v", len(bad), len(h.ops), bad[0].Client, time.Duration(bad[0].Call))
			}
		})
	}
}

// The same for writers who clear tags. Catches an epoch of loads that is just below the latest clear, when a
// process has learned of two in one read: one read in six gives a row that must have ended.
func TestARowOfALaggingReplicaDoesNotStayAfterAClearOfItsTag(t *testing.T) {
	for round := range redistest.Pick(1, 100) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			h := recordLagging(t, lagFor(), false, clearLagging)
			if bad := stale(h.ops); len(bad) > 0 {
				t.Errorf("%d of %d operations read a row that must have ended, as client %d at %v", len(bad), len(h.ops), bad[0].Client, time.Duration(bad[0].Call))
			}
		})
	}
}

// The same when Redis answers late, loses replies, or is out of reach with its messages: then
// loads are degraded, and no hold of the key keeps a row out of the local tier.
//
// Catches degraded loads that fill the local tier for its whole life: one read in thirty gives
// a row that must have ended.
func TestADegradedLoadOfALaggingReplicaDoesNotStay(t *testing.T) {
	for round := range redistest.Pick(1, 100) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			h := recordLagging(t, lagFor(), true, writeLagging)
			if bad := stale(h.ops); len(bad) > 0 {
				t.Errorf("%d of %d operations read a row that must have ended, as client %d at %v", len(bad), len(h.ops), bad[0].Client, time.Duration(bad[0].Call))
			}
			t.Logf("%d operations, %d degraded loads, %d calls not confirmed", len(h.ops), h.degraded, h.unconfirmed)
			if h.degraded < 50 || h.unconfirmed == 0 {
				t.Error("there was no trouble: this tests nothing")
			}
		})
	}
}
