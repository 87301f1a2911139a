package cache_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/mutexrebuild"
)

// Redis hangs, the source takes no time, and callers have less time than Redis may take. In a bubble only
// what waits takes time.
//
// Defect: the read spends all of it on Redis. Of the first reads, before the outage is known, each fails.
func TestNoReadFailsBesideARedisThatHangs(t *testing.T) {
	for _, patience := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
				r.Cleanup(func() { time.Sleep(time.Minute) }) // after all else: go-redis goes on to dial for a while
				source := newRows(r)
				for key := range int64(40) {
					source.put(key, "v1")
				}
				w, other := &way{}, &way{}
				c := openOn(r, w.client(r, m), source.source())
				bytes := redistest.Must(mutexrebuild.New(other.client(r, m), mutexrebuild.Keyspace{Name: "bytes"}, mutexrebuild.Options{}))
				r.Cleanup(bytes.Close)
				for key := range int64(40) {
					c.gives(r, key, "v1")
				}
				w.silence()
				other.silence()
				for key := range int64(10) {
					began := time.Now()
					ctx, cancel := context.WithTimeout(r.ctx, patience)
					if v, err := c.Get(ctx, key); v != "v1" || err != nil {
						r.Errorf("Get %d: %q, %v after %v", key, v, err, time.Since(began))
					}
					cancel()
					ctx, cancel = context.WithTimeout(r.ctx, patience)
					if got, err := c.GetMany(ctx, []int64{10 + key, 20 + key}); len(got) != 2 || err != nil {
						r.Errorf("GetMany %d: %v, %v", key, got, err)
					}
					cancel()
					ctx, cancel = context.WithTimeout(r.ctx, patience)
					_, err := bytes.Rebuild(ctx, fmt.Sprint(key), func(context.Context) ([]byte, time.Duration, error) {
						return []byte("v1"), time.Minute, nil
					})
					if err != nil {
						r.Errorf("Rebuild %d: %v", key, err)
					}
					cancel()
				}
			})
		})
	}
}

// Redis answers reads, with "missing", and hangs then: the lease is asked for in what is left of the caller's half.
// Defect: that takes all of RedisTimeout, whatever the caller has.
func TestNoReadFailsBesideARedisThatHangsAfterItsFirstAnswer(t *testing.T) {
	for _, patience := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
				r.Cleanup(func() { time.Sleep(time.Minute) }) // after all else: go-redis goes on to dial for a while
				source := newRows(r)
				for key := range int64(40) {
					source.put(key, "v1")
				}
				c := openOn(r, m.Client(r), source.source())
				bytes := redistest.Must(mutexrebuild.New(m.Client(r), mutexrebuild.Keyspace{Name: "bytes"}, mutexrebuild.Options{}))
				r.Cleanup(bytes.Close)
				var hangs atomic.Bool
				over := make(chan struct{})
				r.Cleanup(func() { close(over) })
				m.Before(func(command string, _ []string) {
					if hangs.Load() && strings.HasPrefix(command, "EVAL") {
						<-over
					}
				})
				c.gives(r, 0, "v1")
				hangs.Store(true)
				for key := range int64(10) {
					for what, read := range map[string]func(context.Context) error{
						"Get":     func(ctx context.Context) error { _, err := c.Get(ctx, 1+key); return err },
						"GetMany": func(ctx context.Context) error { _, err := c.GetMany(ctx, []int64{15 + key, 25 + key}); return err },
						"Rebuild": func(ctx context.Context) error {
							_, err := bytes.Rebuild(ctx, fmt.Sprint(key), func(context.Context) ([]byte, time.Duration, error) {
								return []byte("v1"), time.Minute, nil
							})
							return err
						},
					} {
						ctx, cancel := context.WithTimeout(r.ctx, patience)
						if err := read(ctx); err != nil {
							r.Errorf("%s %d: %v", what, key, err)
						}
						cancel()
					}
				}
			})
		})
	}
}
