package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/examples/internal/servers"
)

// A scale says how large everything is.
type scale struct {
	processes     int           // of each service
	rows          int           // in the catalogue
	reads         int           // of each service in a second
	ttl           time.Duration // of a cached product
	queryTime     time.Duration // of the database
	queryPatience time.Duration // how long a query to a database that is down goes on
	connections   int           // to the database of each service
	patience      time.Duration // how long a user waits for an answer
	redisTimeout  time.Duration // how long levee waits for Redis
	loadTimeout   time.Duration // and for an answer of the database
	beat          time.Duration // a line of the timeline
	calm, trouble int           // beats
}

// fullScale makes 34 lines. It presses time together: a TTL of 5 s stands for minutes, and an outage of 4 s for as many. The users of a
// service ask for twice what its database could answer.
var fullScale = scale{
	processes: 2, rows: 240, reads: 300, ttl: 5 * time.Second,
	queryTime: 80 * time.Millisecond, queryPatience: 500 * time.Millisecond, connections: 12,
	patience: time.Second, redisTimeout: 200 * time.Millisecond, loadTimeout: time.Second,
	beat: time.Second, calm: 3, trouble: 4,
}

// A scene is a part of the script.
type scene struct {
	name  string
	beats int
	begin func(s *stage) error // what happens to Redis and to the databases
	out   trouble
}

// lasts is how long the script takes.
func (s *stage) lasts() (d time.Duration) {
	for _, scene := range s.script {
		d += time.Duration(scene.beats) * s.size.beat
	}
	return d
}

// trouble is what is out of order.
type trouble int

const (
	none     trouble = 0
	redisOut trouble = 1 << iota
	databaseOut
)

// script is what happens, one scene after the other.
func (z scale) script() []scene {
	calm := func(name string, begin func(s *stage) error) scene { return scene{name, z.calm, begin, none} }
	return []scene{
		{"all is well", z.calm + 2, func(*stage) error { return nil }, none},
		{"Redis hangs", z.trouble, func(s *stage) error { return s.redis.Hang() }, redisOut},
		calm("Redis goes on", func(s *stage) error { return s.redis.Resume() }),
		{"database is down", z.trouble + 1, func(s *stage) error { return s.databases(true) }, databaseOut},
		calm("database is up", func(s *stage) error { return s.databases(false) }),
		{"Redis is gone", z.trouble, func(s *stage) error { return s.redis.Lose() }, redisOut},
		calm("Redis is back, empty", func(s *stage) error { return s.redis.Return() }),
		{"both are down", z.trouble, func(s *stage) error { return errors.Join(s.redis.Lose(), s.databases(true)) }, redisOut | databaseOut},
		calm("both are back", func(s *stage) error { return errors.Join(s.redis.Return(), s.databases(false)) }),
	}
}

// A stage is where the script is played: one Redis, and the two services, each with a database of its own.
type stage struct {
	size   scale
	redis  *servers.Fragile
	sides  []*service // plain, levee
	script []scene
	scene  atomic.Int32 // the one that is on
}

func (s *stage) databases(down bool) error {
	for _, side := range s.sides {
		side.store.down.Store(down)
	}
	return nil
}

// open starts the servers and the services.
func (s settings) open(ctx context.Context) (st *stage, err error) {
	mark := fmt.Sprintf("%08x", rand.Uint32())
	st = &stage{size: s.size, script: s.size.script()}
	if st.redis, err = servers.OpenFragile(ctx, s.redisServer); err != nil {
		return nil, err
	}
	for _, way := range []way{{"plain cache-aside", openPlain}, {"levee", openLevee}} {
		side, err := openService(ctx, way, st.redis.Address, "levee_outage_"+mark, s.size)
		if err != nil {
			return nil, errors.Join(err, st.close())
		}
		st.sides = append(st.sides, side)
	}
	return st, nil
}

func (s *stage) close() error {
	var errs []error
	for _, side := range s.sides {
		errs = append(errs, side.close())
	}
	return errors.Join(append(errs, s.redis.Close())...)
}

// play plays the script and prints what users saw, line by line and summed up.
func (s settings) play(ctx context.Context, r *report) (scores []score, err error) {
	st, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	r.opening(st)
	if err := st.warm(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loads, began := make(chan struct{}), time.Now()
	go func() {
		defer close(loads)
		st.load(ctx, s.seed, st.lasts(), began)
	}()
	scores, err = st.conduct(ctx, r, began)
	if err != nil {
		cancel()
	}
	<-loads
	if err != nil {
		return nil, err
	}
	for i := range scores {
		scores[i].plain.seen = st.sides[0].tally.scene(i)
		scores[i].levee.seen = st.sides[1].tally.scene(i)
	}
	r.summary(scores)
	return scores, nil
}

// conduct lets the scenes follow one another, and reports each beat.
func (s *stage) conduct(ctx context.Context, r *report, began time.Time) (scores []score, err error) {
	beat := 0
	for i, scene := range s.script {
		s.scene.Store(int32(i))
		if err := scene.begin(s); err != nil {
			return nil, fmt.Errorf("%s: %w", scene.name, err)
		}
		sum := score{scene: scene}
		for range scene.beats {
			beat++
			if err := servers.Sleep(ctx, time.Until(began.Add(time.Duration(beat)*s.size.beat))); err != nil {
				return nil, err
			}
			plain, levee := s.sides[0].beat(), s.sides[1].beat()
			r.line(beat, s.size.beat, scene, plain, levee)
			sum.plain.add(plain)
			sum.levee.add(levee)
			sum.beats = append(sum.beats, [2]figures{plain, levee})
		}
		scores = append(scores, sum)
	}
	return scores, nil
}

// A score is what one scene did to both services.
type score struct {
	scene        scene
	plain, levee figures
	beats        [][2]figures // of plain and levee
}

// figures are what was measured of one service in a beat or in a scene.
type figures struct {
	seen
	queries, peak int64
	breakers      string // of its processes, at the end of each beat
}

func (f *figures) add(beat figures) {
	f.queries += beat.queries
	f.peak = max(f.peak, beat.peak)
	f.breakers += beat.breakers
}
