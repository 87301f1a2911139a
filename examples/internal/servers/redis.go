// Package servers gives the examples what they run against: a Redis and a database, embedded or real. What an example makes in a real one
// is under names of its own and is taken away at the end.
package servers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// A Redis is one embedded in this program, or a real one in which only keys under the prefix are touched.
type Redis struct {
	Address string // to connect to, also from another process: host:port, or a redis:// URL
	Prefix  string // of all keys
	Name    string // for the heading
	stop    func()
}

// OpenRedis reaches the Redis at address, or starts an embedded one if that is empty.
func OpenRedis(ctx context.Context, address, prefix string) (*Redis, error) {
	if address == "" {
		return EmbeddedRedis(prefix)
	}
	return realRedis(ctx, address, prefix)
}

// EmbeddedRedis starts a Redis inside this process, on a free port of the loopback address.
func EmbeddedRedis(prefix string) (*Redis, error) {
	m, err := startMini()
	if err != nil {
		return nil, err
	}
	return &Redis{Address: m.Addr(), Prefix: prefix, Name: "embedded Redis", stop: m.stop}, nil
}

// A mini is a miniredis whose TTLs run.
type mini struct {
	*miniredis.Miniredis
	stop func()
}

func startMini() (*mini, error) {
	m := miniredis.NewMiniRedis()
	port, err := freePort() // it is lost and comes back at the same address
	if err == nil {
		err = m.StartAddr(fmt.Sprint("127.0.0.1:", port))
	}
	if err != nil {
		return nil, fmt.Errorf("starting the embedded Redis: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var clock sync.WaitGroup
	clock.Go(func() { runClock(ctx, m) })
	return &mini{m, func() {
		cancel()
		clock.Wait()
		m.Close()
	}}, nil
}

// runClock makes TTLs run. miniredis could do that itself (ClockTTL), but then it sorts all its keys on every command: with 20,000 keys a
// GET takes 5 ms instead of 20 µs. Here it does so a few times a second, and less often the longer it takes.
func runClock(ctx context.Context, m *miniredis.Miniredis) {
	pause, last := 5*time.Millisecond, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		now := time.Now()
		m.FastForward(now.Sub(last))
		last = now
		pause = min(max(5*time.Millisecond, 10*time.Since(now)), 100*time.Millisecond)
	}
}

// realRedis checks that a Redis answers at address.
func realRedis(ctx context.Context, address, prefix string) (*Redis, error) {
	probe := RedisOptions(address)
	probe.MaxRetries, probe.DialerRetries, probe.DialTimeout, probe.ReadTimeout = -1, 1, 3*time.Second, 3*time.Second
	rdb := redis.NewClient(probe)
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("no Redis at %s: %w", probe.Addr, err)
	}
	return &Redis{Address: address, Prefix: prefix, Name: "Redis at " + probe.Addr, stop: func() {}}, nil
}

// RedisOptions are those of a client for a server at address: host:port, or a redis:// URL. They are set as docs/operations.md
// advises, also for the plain caches: with the client's defaults these would wait 3 s for a reply, four times.
func RedisOptions(address string) *redis.Options {
	o, err := redis.ParseURL(address)
	if err != nil {
		o = &redis.Options{Addr: address}
	}
	o.ContextTimeoutEnabled = true
	o.ReadTimeout, o.DialTimeout = 500*time.Millisecond, time.Second
	o.MaxRetries, o.DialerRetries = 1, 1
	return o
}

// Client connects as one process of a service would.
func (s *Redis) Client() *redis.Client { return redis.NewClient(RedisOptions(s.Address)) }

// Clean deletes every key under the prefix, and no other: its own, and those of caches, of shared filters and of feeds with their locks.
func (s *Redis) Clean(ctx context.Context) error {
	rdb := s.Client()
	defer rdb.Close()
	for _, pattern := range []string{
		s.Prefix + "*", "levee:c1:{" + s.Prefix + "*", "levee:b2:{" + s.Prefix + "*",
		"levee:f1:{" + s.Prefix + "*", "levee:f1:levee:l1:*{" + s.Prefix + "*",
	} {
		if err := deleteMatching(ctx, rdb, pattern); err != nil {
			return fmt.Errorf("cleaning Redis: %w", err)
		}
	}
	return nil
}

func deleteMatching(ctx context.Context, rdb *redis.Client, pattern string) error {
	var cursor uint64
	for {
		keys, next, err := rdb.Scan(ctx, cursor, pattern, 5000).Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := rdb.Unlink(ctx, keys...).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// Close cleans the server and leaves it.
func (s *Redis) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.Clean(ctx)
	s.stop()
	return err
}

// Silence takes the place of go-redis' logger in a program that tells what went wrong itself.
type Silence struct{}

// Printf drops what it is told.
func (Silence) Printf(context.Context, string, ...any) {}
