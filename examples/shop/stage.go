package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A scale says how large everything is.
type scale struct {
	processes int // of each shop
	places    int // connections of each to the database
	size      catalogue
	rate      int           // visitors a second
	ttl       time.Duration // of a cached product
	queryTime time.Duration
	slow      time.Duration // a query of the slow database
	late      time.Duration // how late the slow Redis is
	timeout   time.Duration // how long levee waits for Redis
	patience  time.Duration // of a visitor
	most      int           // requests of one shop without an answer
	beat      time.Duration // of the charts
}

var fullScale = scale{
	processes: 3, places: 8, size: catalogue{Products: 200, Withdrawn: 40}, rate: 300, ttl: 10 * time.Second,
	queryTime: 60 * time.Millisecond, slow: 600 * time.Millisecond, late: 500 * time.Millisecond, timeout: 200 * time.Millisecond, patience: 2 * time.Second, most: 3000, beat: 500 * time.Millisecond,
}

// A stage is the two shops, what they run against, and who asks them.
type stage struct {
	scale
	about     string // what the servers are
	note      string // what else there is to know of them
	redis     *redis.Client
	prefix    string
	proxy     *proxy
	fleets    [sides]*fleet
	databases [sides]*servers.Database
	crowd     *crowd
	closers   []func() error

	mu       sync.Mutex // guards what follows: one button at a time
	settings settings
	cents    int64
	trouble  trouble
}

// trouble is what the buttons have made.
type trouble struct {
	Flood, SlowDatabase, RedisGone, SlowRedis bool
}

// open starts everything. redisAddr and dsn may be empty.
func (z scale) open(ctx context.Context, redisAddr, dsn string) (s *stage, err error) {
	mark := fmt.Sprintf("%08x", rand.Uint32()) //nolint:gosec // so that runs on one server do not meet
	s = &stage{scale: z, prefix: "levee-shop-" + mark, cents: 999, settings: settings{allProtections, z.queryTime}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	target, err := s.openRedis(ctx, redisAddr)
	if err != nil {
		return s, err
	}
	if s.proxy, err = openProxy(target.Addr); err != nil {
		return s, err
	}
	s.closers = append(s.closers, func() error { s.proxy.close(); return nil })
	s.crowd = &crowd{size: z.size, rate: z.rate, patience: z.patience, most: z.most}
	for side, name := range sideNames {
		// A database for each, so that the flood of one does not drown the other.
		db, err := servers.OpenDatabase(ctx, dsn, "levee_shop_"+name+"_"+mark)
		if err != nil {
			return s, err
		}
		s.closers = append(s.closers, db.Close)
		if err := z.size.fill(ctx, db); err != nil {
			return s, err
		}
		s.databases[side], s.about = db, s.about+[sides]string{" and two databases in ", ""}[side]+[sides]string{db.Name, ""}[side]
		s.fleets[side], err = openFleet(ctx, part{
			Side: side, Redis: redisLogin{s.proxy.address(), target.Username, target.Password, target.DB}, Database: db.Source,
			Size: z.size, TTL: z.ttl, RedisTimeout: z.timeout, Prefix: s.prefix, Places: z.places, Settings: s.settings,
		}, z.processes)
		if err != nil {
			return s, err
		}
		s.closers = append(s.closers, func() error { s.fleets[side].close(); return nil })
	}
	s.crowd.fleets = s.fleets
	return s, nil
}

// openRedis reaches the Redis at address or starts one: a redis-server if there is one, else what is embedded in this program.
func (s *stage) openRedis(ctx context.Context, address string) (*redis.Options, error) {
	if address != "" {
		r, err := servers.OpenRedis(ctx, address, s.prefix)
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, r.Close)
		s.about, s.redis = r.Name, r.Client()
		s.closers = append(s.closers, s.redis.Close)
		o := servers.RedisOptions(address)
		if o.TLSConfig != nil {
			return nil, errors.New("-redis: the shop stands between its processes and Redis, and cannot do so with TLS")
		}
		return o, nil
	}
	binary := "redis-server"
	if _, err := exec.LookPath(binary); err != nil {
		binary = ""
		s.note = "No redis-server was found, so a small one is embedded in this program: good enough for a look. " +
			"For the real thing: apt-get install redis-server (Debian, Ubuntu), brew install redis (macOS), or -redis host:port."
	}
	r, err := servers.OpenFragile(ctx, binary)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, r.Close)
	s.about, s.redis = r.Name, r.Client()
	s.closers = append(s.closers, s.redis.Close)
	return servers.RedisOptions(r.Address), nil
}

func (s *stage) close() (err error) {
	for i := len(s.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closers[i]())
	}
	return err
}

// push sends the settings to all processes.
func (s *stage) push(ctx context.Context) error {
	var err error
	for _, f := range s.fleets {
		err = errors.Join(err, f.tell(ctx, "/settings", s.settings, true))
	}
	return err
}

// expire ends what the caches hold of a product, or of all if id is 0.
func (s *stage) expire(ctx context.Context, id int64) error {
	var err error
	for _, f := range s.fleets {
		err = errors.Join(err, f.tell(ctx, "/expire/"+strconv.FormatInt(id, 10), nil, false))
	}
	return err
}

// expiries counts the products that Redis holds for each shop by the second in which their TTL ends, from now on. Nobody reads them
// through the proxy, so it goes on while Redis is away for the shops.
func (s *stage) expiries(ctx context.Context) (ends [sides][]int) {
	seconds := int(s.ttl/time.Second) + 1
	var left [sides][]*redis.DurationCmd
	_, err := s.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for id := int64(1); id <= s.size.Products; id++ {
			left[plainSide] = append(left[plainSide], p.PTTL(ctx, (&plain{prefix: s.prefix}).key(id)))
			left[leveeSide] = append(left[leveeSide], p.PTTL(ctx, fmt.Sprintf("levee:c1:{%s:%d}", s.prefix, id)))
		}
		return nil
	})
	if err != nil {
		return ends
	}
	// levee keeps a value beyond its TTL, for the time in which it answers if the database does not.
	beyond := [sides]time.Duration{leveeSide: staleIfError}
	for side := range ends {
		ends[side] = make([]int, seconds)
		for _, cmd := range left[side] {
			if d := cmd.Val() - beyond[side]; cmd.Val() > 0 && d > 0 {
				ends[side][min(int(d/time.Second), seconds-1)]++
			}
		}
	}
	return ends
}
