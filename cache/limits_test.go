package cache_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

var errLimiter = errors.New("the limiter refuses")

// refusing is a redis.Limiter that refuses every second command.
type refusing struct {
	mu sync.Mutex
	n  int
}

func (l *refusing) Allow() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n%2 == 0 {
		return errLimiter
	}
	return nil
}

func (l *refusing) ReportResult(error) {}

// What this process has too little of, or refuses itself, says nothing of Redis.
//
// Defect: it counts as a silence of the server. Six readers of 200 keys that Redis has see several outages of
// an idle Redis in a second, and load thousands of times.
func TestALimitOfThisProcessIsNoOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, limit := range map[string]func(*redis.Options){
		"MaxActiveConns":                    func(o *redis.Options) { o.MaxActiveConns = 4 },
		"MaxActiveConns 1":                  func(o *redis.Options) { o.MaxActiveConns = 1 },
		"MaxActiveConns below a large pool": func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 100, 8 },
		"a limiter":                         func(o *redis.Options) { o.Limiter = &refusing{} },
	} {
		t.Run(name, func(t *testing.T) {
			r := onServer(t, server, cell{redis: "real"})
			keys := make([]int64, 200)
			for i := range keys {
				keys[i] = int64(i)
			}
			source := newRows(r, keys...)
			filler := open(r, source.source())
			for _, key := range keys {
				filler.gives(r, key, "v1")
			}
			source.forget()
			rdb := server.Client(t, limit)
			c := openOn(r, redis.UniversalClient(rdb), source.source())
			var readers sync.WaitGroup
			for i := range 6 {
				readers.Go(func() {
					for end := time.Now().Add(time.Second); time.Now().Before(end); {
						for n := range keys {
							if v, err := c.Get(r.ctx, keys[(n+i*33)%len(keys)]); v != "v1" || err != nil {
								r.Errorf("Get: %q, %v", v, err)
							}
						}
					}
				})
			}
			readers.Wait()
			s := c.Stats()
			if s.Rebuild.Outages > 0 {
				r.Errorf("%d outages of an idle Redis in %d reads, %d of them from the source", s.Rebuild.Outages, s.Gets, s.Loaded)
			}
			if name != "a limiter" && s.Loaded > s.Gets/1000 {
				r.Errorf("%d of %d reads are from the source", s.Loaded, s.Gets)
			}
		})
	}
}
