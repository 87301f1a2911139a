package cache_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// shiftClocks makes what stands in Redis look as if a process had stored it whose
// clock is off by so much.
func shiftClocks(r *rig, by time.Duration) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	shifts := 0
	for scan := r.rdb.Scan(r.ctx, 0, valueKey("*"), 1000).Iterator(); scan.Next(r.ctx); shifts++ {
		data, err := r.rdb.Get(r.ctx, scan.Val()).Bytes()
		if err != nil {
			r.Fatal(err)
		}
		for _, at := range []int{12, 20} { // created, and the end of the TTL
			shifted := int64(binary.BigEndian.Uint64(data[at:])) + by.Milliseconds()
			binary.BigEndian.PutUint64(data[at:], uint64(shifted))
		}
		sum := crc32.Checksum(data[:7], castagnoli) // without the mark
		sum = crc32.Update(crc32.Update(sum, castagnoli, data[8:52]), castagnoli, data[56:])
		binary.BigEndian.PutUint32(data[52:], sum)
		if err := r.rdb.Set(r.ctx, scan.Val(), data, redis.KeepTTL).Err(); err != nil {
			r.Fatal(err)
		}
	}
	if shifts == 0 {
		r.Fatal("no value in Redis")
	}
}

// A process of the fleet whose clock is an hour off costs the others a load of each
// key it wrote, and no more: they do not go on refreshing each other's values. Where
// its clock is behind, what it wrote looks old, and is loaded once for all. Where it
// is ahead, it looks new.
func TestAClockThatIsOffBringsNoStormOfLoads(t *testing.T) {
	const keys, processes = 20, 4
	for name, c := range map[string]struct{ by, stale, spare time.Duration }{
		"behind, then a spare":         {by: -time.Hour},
		"behind, then refreshed":       {by: -time.Hour, stale: 3 * time.Hour},
		"behind, then dead":            {by: -time.Hour, stale: -1, spare: -1},
		"a little behind":              {by: -10*time.Minute - time.Second},
		"ahead":                        {by: time.Hour},
		"ahead, and ends with its TTL": {by: time.Hour, stale: -1, spare: -1},
	} {
		for _, local := range []bool{false, true} {
			t.Run(cell{redis: name, local: local}.String(), func(t *testing.T) {
				inBubble(t, cell{redis: "mini", local: local}, func(r *rig, _ *redistest.MiniServer) {
					source := newRows(r)
					var caches []*probe[int64, string]
					for range processes {
						caches = append(caches, open(r, source.source(), ttl(10*time.Minute), func(o *cache.Options) {
							o.StaleWhileRevalidate, o.StaleIfError = c.stale, c.spare
						}))
					}
					writer := open(r, source.source(), ttl(10*time.Minute), func(o *cache.Options) {
						o.StaleWhileRevalidate, o.StaleIfError = c.stale, c.spare
					})
					for key := range int64(keys) {
						source.put(key, "v1")
						writer.gives(r, key, "v1")
					}
					shiftClocks(r, c.by)
					source.forget()
					for range 40 {
						var wg sync.WaitGroup
						for _, c := range caches {
							wg.Go(func() {
								for key := range int64(keys) {
									c.gives(r, key, "v1")
								}
							})
						}
						wg.Wait()
						time.Sleep(500 * time.Millisecond)
					}
					want := keys
					if c.by > 0 {
						want = 0
					}
					if n := source.all(); n != want || source.atOnce() > 1 {
						r.Errorf("%d loads of %d keys by %d processes, %d of one at one time; want %d", n, keys, processes, source.atOnce(), want)
					}
				})
			})
		}
	}
}

// The life of what is in the local tier is counted here: a value from a host whose
// clock is ahead must not live for its TTL and an hour.
func TestAClockThatIsAheadLengthensNoLocalLife(t *testing.T) {
	const life = 10 * time.Minute
	inBubble(t, cell{redis: "mini", local: true}, func(r *rig, _ *redistest.MiniServer) {
		source := newRows(r, 1)
		change := func(o *cache.Options) { o.TTL, o.Local.TTL = life, 24*time.Hour }
		writer, reader := open(r, source.source(), change, hard), open(r, source.source(), change, hard)
		writer.gives(r, 1, "v1")
		shiftClocks(r, time.Hour)
		reader.comesFrom(r, 1, cache.TierLocal)
		source.put(1, "v2")
		if err := r.rdb.Del(r.ctx, valueKey(1)).Err(); err != nil && !errors.Is(err, redis.Nil) {
			r.Fatal(err)
		}
		reader.gives(r, 1, "v1") // nobody has said anything
		time.Sleep(life)
		reader.gives(r, 1, "v2")
	})
}
