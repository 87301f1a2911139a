package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
	"github.com/redis/go-redis/v9"
)

// A redisServer is the Redis of all runs: one embedded in this program, or a real one in which only keys of the runs are touched.
type redisServer struct {
	*servers.Redis
	embedded bool
	sent     atomic.Int64 // commands that the clients have sent
}

func openRedis(ctx context.Context, address, prefix string) (*redisServer, error) {
	s, err := servers.OpenRedis(ctx, address, prefix)
	return &redisServer{Redis: s, embedded: address == ""}, err
}

// client connects as one process of a service would. What it sends is counted.
func (s *redisServer) client() *redis.Client {
	rdb := s.Client()
	rdb.AddHook(counting{&s.sent})
	return rdb
}

// commands is how many commands there have been so far: what a real server says it has executed, for whomever and in scripts too; of the
// embedded one, which does not know, what the clients have sent.
func (s *redisServer) commands(ctx context.Context, rdb *redis.Client) (n int64, err error) {
	if s.embedded {
		return s.sent.Load(), nil
	}
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, fmt.Errorf("reading the statistics of Redis: %w", err)
	}
	return sumCalls(info)
}

// sumCalls adds up the lines of INFO commandstats: "cmdstat_get:calls=12,usec=…".
func sumCalls(info string) (n int64, err error) {
	for line := range strings.Lines(info) {
		_, rest, ok := strings.Cut(line, ":calls=")
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(rest, ",")
		calls, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("statistics of Redis: %q", line)
		}
		n += calls
	}
	return n, nil
}

// each calls do with all keys of the runs, some at a time: those of the plain read-through, of caches and of filters.
func (s *redisServer) each(ctx context.Context, rdb *redis.Client, do func(keys []string) error) error {
	for _, pattern := range []string{s.Prefix + "*", "levee:c1:{" + s.Prefix + "*", "levee:b2:{" + s.Prefix + "*"} {
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			keys, next, err := rdb.Scan(ctx, cursor, pattern, 5000).Result()
			if err != nil {
				return err
			}
			if len(keys) > 0 {
				if err := do(keys); err != nil {
					return err
				}
			}
			cursor = next
		}
	}
	return nil
}

// keys is how many keys there are.
func (s *redisServer) keys(ctx context.Context, rdb *redis.Client) (n int64, err error) {
	err = s.each(ctx, rdb, func(keys []string) error {
		n += int64(len(keys))
		return nil
	})
	return n, err
}

// clean deletes every key of the runs, and no other.
func (s *redisServer) clean(ctx context.Context) error {
	rdb := s.client()
	defer rdb.Close()
	err := s.each(ctx, rdb, func(keys []string) error { return rdb.Unlink(ctx, keys...).Err() })
	if err != nil {
		return fmt.Errorf("cleaning Redis: %w", err)
	}
	return nil
}

// close cleans the server and leaves it.
func (s *redisServer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.clean(ctx)
	return errors.Join(err, s.Close())
}

// counting is a hook that counts commands.
type counting struct{ sent *atomic.Int64 }

func (c counting) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (c counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.sent.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
