package mutexrebuild

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/bounded"
	"github.com/levee-go/levee/internal/logonce"
)

// The gate to Redis
//
// A Redis that hangs would cost every caller a RedisTimeout, and every read that
// times out on its caller's goroutine its connection. So after a few reads
// without an answer, with none answered between them, the gate is shut: nobody
// asks Redis, and operations fail at once. Behind it one goroutine knocks, with
// one read at a time and growing pauses. The first answer opens the gate.
//
//	open ──tolerance reads in a row without an answer──▶ shut ──a knock is answered──▶ open
//
// Only reads shut it. A read that gets an error for an answer (LOADING, BUSY,
// MASTERDOWN) got none: there is nothing to be had from such a server. A script
// is another matter. A server that is full, or a replica, refuses scripts and
// still answers reads, and by default the client itself repeats what a replica
// refuses until the time is up, so that it looks like a script without an answer.
// As every rebuild begins with a read, a server that hangs is found out by those.
//
// A cluster of which one node hangs still answers for most keys, and yet three
// reads in a row may well be for that node. There the gate is shut only when
// nothing was answered for the length of a timeout. Where it stays open, the keys
// of that node cost their readers a timeout each, as long as the cluster keeps it.
//
// A Redis whose answers take about as long as the timeout would have the gate
// swing. So a gate that was opened a short while ago and shuts again goes on with
// the pause it had come to.

const (
	tolerance = 3                      // reads in a row without an answer
	firstPace = 50 * time.Millisecond  // between the first two knocks
	maxPace   = 500 * time.Millisecond // between any two
	unsettled = 10 * time.Second       // after an opening, in which the pace is remembered
	unease    = time.Second            // after a read that cost its connection
	hanging   = 3                      // knocks that may still wait for an answer when the next is due
)

// errShut reports that an operation was not started because Redis does not
// answer.
var errShut = errors.New("levee: redis does not answer and is not asked")

// A gate is shared by the groups of one client with one timeout.
type gate struct {
	span   time.Duration                               // for which nothing is answered before it is shut
	direct redis.Cmdable                               // see direct; nil if there is none
	knock  func(ctx context.Context, key string) error // a read of key
	ctx    context.Context                             // ends with the last user
	end    context.CancelFunc
	work   sync.WaitGroup

	journal *logonce.Log

	missed  atomic.Int32 // reads in a row without an answer
	dropped atomic.Int64 // when a read last cost its connection, in ns since 1970; 0: long ago
	closed  atomic.Bool  // the gate is shut
	outages atomic.Uint64

	mu     sync.Mutex    // guards what follows
	way    chan struct{} // closed when the gate is open
	since  time.Time     // the first of the reads that missed counts
	opened time.Time     // when it was opened last
	pace   time.Duration // the pause before the next knock

	users  int    // guarded by gates
	forget func() // takes it from gates; called with gates locked
}

// A place is what a gate stands before.
type place struct {
	rdb     redis.UniversalClient
	timeout time.Duration
}

// gates holds the gates that are in use.
var gates = struct {
	sync.Mutex
	at map[place]*gate
}{at: map[place]*gate{}}

// openGate returns the gate of rdb for operations that may take timeout. Its
// journal is that of the first to open it. Each call needs a leave.
func openGate(rdb redis.UniversalClient, timeout time.Duration, j *logonce.Log) *gate {
	at := place{rdb, timeout}
	if !reflect.ValueOf(rdb).Comparable() {
		g := newGate(at, j) // a client of the user's own making that cannot be a map key
		g.users, g.forget = 1, func() {}
		return g
	}
	gates.Lock()
	defer gates.Unlock()
	g := gates.at[at]
	if g == nil {
		g = newGate(at, j)
		g.forget = func() { delete(gates.at, at) }
		gates.at[at] = g
	}
	g.users++
	return g
}

func newGate(at place, j *logonce.Log) *gate {
	g := &gate{journal: j, direct: direct(at.rdb, at.timeout), way: make(chan struct{})}
	close(g.way)
	g.ctx, g.end = context.WithCancel(context.Background())
	if _, one := at.rdb.(*redis.Client); !one {
		g.span = at.timeout
	}
	knocks := bounded.NewRunner(at.timeout, hanging)
	// Where the client keeps to its timeouts a knock that times out costs its
	// connection, and so clears the pool of those that a firewall has forgotten.
	asked := redis.Cmdable(at.rdb)
	if g.direct != nil {
		asked = g.direct
	}
	g.knock = func(ctx context.Context, key string) error {
		_, err := bounded.Do(ctx, knocks, func(ctx context.Context) ([]byte, error) {
			return read(ctx, asked, key, 0)
		}, nil)
		return err
	}
	return g
}

// leave ends this user's share in the gate. With the last one the knocking ends.
func (g *gate) leave() {
	gates.Lock()
	g.users--
	last := g.users == 0
	if last {
		g.forget()
	}
	gates.Unlock()
	if last {
		g.end()
		g.work.Wait()
	}
}

// shut reports whether Redis is not to be asked.
func (g *gate) shut() bool { return g.closed.Load() }

// open returns a channel that is closed when Redis may be asked.
func (g *gate) open() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.way
}

// waitOpen waits until Redis may be asked, for at most patience or until ctx
// ends, and reports whether it may.
func (g *gate) waitOpen(ctx context.Context, patience time.Duration) bool {
	if !g.shut() {
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-g.open():
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// easy reports whether a read may be risked whose end costs its connection. For
// a while after one it is not: a slow server would see nothing but new
// connections.
func (g *gate) easy() bool {
	dropped := g.dropped.Load()
	if dropped == 0 {
		return true
	}
	if time.Since(time.Unix(0, dropped)) < unease {
		return false
	}
	g.dropped.CompareAndSwap(dropped, 0)
	return true
}

// uneasy notes that a read has cost its connection.
func (g *gate) uneasy() { g.dropped.Store(time.Now().UnixNano()) }

// answered counts a read that was answered. This is on the path of every hit, so
// it writes only when there is something to forget.
func (g *gate) answered() {
	if g.missed.Load() != 0 {
		g.missed.Store(0)
	}
}

// unanswered counts a read that was not. Key is what to knock with: it should be
// in the same slot, so that the same node of a cluster is asked, and short.
func (g *gate) unanswered(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.missed.Add(1)
	if n == 1 {
		g.since = time.Now()
	}
	if n < tolerance || time.Since(g.since) < g.span || g.closed.Load() || g.ctx.Err() != nil {
		return
	}
	if time.Since(g.opened) > unsettled {
		g.pace = 0 // a hiccup is over by now: knock at once
	}
	g.closed.Store(true)
	g.outages.Add(1)
	g.journal.Warn("redis does not answer and is not asked until it does")
	g.way = make(chan struct{})
	g.work.Go(func() { g.knockUntilAnswered(key) })
}

func (g *gate) knockUntilAnswered(key string) {
	began := time.Now()
	for {
		sleep(g.ctx, time.Duration(float64(g.pace)*(0.8+0.4*rand.Float64())))
		g.pace = min(max(firstPace, 2*g.pace), maxPace) // nobody else touches it while the gate is shut
		err := g.knock(g.ctx, key)
		if g.ctx.Err() != nil || err == nil {
			break
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.missed.Store(0)
	g.opened = time.Now()
	g.closed.Store(false)
	close(g.way)
	if g.ctx.Err() == nil {
		g.journal.Info("redis answers again", "after", g.opened.Sub(began))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
