package redisconn

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/logonce"
)

var (
	// ErrTimeout reports that an operation had no reply when its time was up. Whether it
	// took effect is unknown.
	ErrTimeout = errors.New("levee: redis did not answer in time")

	// ErrBusy reports that an operation was not started, because too many earlier ones
	// still wait for Redis.
	ErrBusy = errors.New("levee: too many redis operations without an answer")
)

// A Conn runs operations on one Redis within a time limit. It may be used concurrently.
// Make it with Open or New.
type Conn struct {
	client   client
	timeout  time.Duration
	limit    int64 // of running
	alarm    alarm // for lone operations
	forTrips alarm // for trips
	lanes    lanes
	long     longKeys
	log      *logonce.Log
	release  func()

	mu    sync.Mutex     // guards users
	users map[string]int // by name, see UsedBy

	running atomic.Int64        // operations of Do, also those that were left behind
	longest atomic.Pointer[any] // see boxed
}

// A connKey names a shared Conn by its client and the time that operations may take.
type connKey struct {
	rdb     redis.UniversalClient
	timeout time.Duration
}

var conns registry[connKey, *Conn]

// Open returns a Conn for operations of at most timeout, which detects outages. All users
// who open rdb with that timeout share the Conn, its trips and its outages. The first Open
// sets log and limit, the number of operations of Do that may run at a time. Each Open
// needs a Close.
func Open(rdb redis.UniversalClient, timeout time.Duration, limit int, log *logonce.Log) *Conn {
	at := connKey{rdb, timeout}
	return conns.open(at, rdb, func() *Conn {
		c := newConn(rdb, timeout, limit, log, true)
		c.release = func() {
			if conns.release(at, rdb) {
				c.lanes.endOutages()
			}
		}
		return c
	})
}

// New returns a Conn that is not shared, for callers who call Redis even during an outage: it
// detects none and needs no Close. limit is how many operations of Do may run at a time.
func New(rdb redis.UniversalClient, timeout time.Duration, limit int) *Conn {
	return newConn(rdb, timeout, limit, nil, false)
}

func newConn(rdb redis.UniversalClient, timeout time.Duration, limit int, log *logonce.Log, notesOutages bool) *Conn {
	c := &Conn{client: newClient(rdb, timeout), timeout: timeout, limit: int64(limit), log: log, release: func() {}}
	c.alarm.timeout, c.forTrips.timeout = c.client.brief(), c.client.longest()
	c.lanes.init(c, notesOutages)
	return c
}

// Close releases a Conn of Open. The last Close ends the probes of its outages. Each user
// calls it once.
func (c *Conn) Close() { c.release() }

// UsedBy adds name to the log lines about outages of the Conn until forget is called.
func (c *Conn) UsedBy(name string) (forget func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users == nil {
		c.users = map[string]int{}
	}
	c.users[name]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.users[name]--; c.users[name] == 0 {
			delete(c.users, name)
		}
	}
}

// names returns the names of UsedBy for a log line.
func (c *Conn) names() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(c.users)), ",")
}

// Client returns the user's client for an operation of Do.
func (c *Conn) Client() redis.UniversalClient { return c.client.get() }

// Clustered reports whether Redis is a cluster. In a cluster, all keys of a script must be in one slot.
func (c *Conn) Clustered() bool { return c.lanes.cluster != nil }

// Timeout returns how long an operation may take.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// Outage returns the Outage of a Redis with one node, nil for a cluster.
func (c *Conn) Outage() *Outage {
	if c.lanes.cluster != nil {
		return nil
	}
	return c.lanes.one.outage
}

// OutageOf returns the Outage of the node that has key. Until the nodes of a cluster are
// known, one Outage serves all keys.
func (c *Conn) OutageOf(key string) *Outage { return c.lanes.of(key).outage }

// Outages returns how many outages all nodes have had together, and whether one lasts now.
func (c *Conn) Outages() (count uint64, now bool) {
	c.lanes.each(func(l *lane) {
		count += l.outage.Count()
		now = now || l.outage.Down()
	})
	return count, now
}

// unanswered reacts to an operation without a reply: it has a cluster client reload its slots, and
// counts the operation for client.tookLate.
func (c *Conn) unanswered() {
	c.lanes.lookAgain()
	c.client.late()
}

// Do runs op, an operation that cannot share a trip, on a new goroutine. It leaves op
// behind when ctx ends or timeout is up, whatever op does; the context given to op ends
// at the same moment. The result of an op that was left behind is passed to late, unless
// late is nil. If op panics, the error is a *contain.PanicError. Do does not start op if
// ctx has ended, and returns ErrBusy if too many operations run.
//
// A go-redis client with its default options ignores a context's deadline while it
// reads, and repeats an operation that timed out: against a server that hangs, a call
// with 100 ms to live comes back after 5 s or more. No option of the client makes a
// cancelled context interrupt a read.
func Do[T any](ctx context.Context, c *Conn, timeout time.Duration, op func(context.Context) (T, error), late func(T, error)) (T, error) {
	var none T
	switch {
	case ctx.Err() != nil:
		return none, context.Cause(ctx)
	case c.running.Add(1) > c.limit:
		c.running.Add(-1)
		return none, ErrBusy
	}
	ctx, cancel := context.WithTimeoutCause(c.client.by(ctx), timeout, ErrTimeout)
	defer cancel()
	value, left, err := contain.Race(ctx, func() (T, error) {
		defer c.running.Add(-1)
		return op(ctx)
	})
	if left != nil && late != nil {
		go func() {
			result := <-left
			late(result.Value, result.Err)
		}()
	}
	if err != nil && !Answered(err) {
		c.unanswered()
	}
	if deadline, _ := ctx.Deadline(); errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(deadline) {
		<-ctx.Done() // the socket's timer was some microseconds ahead of the context's
		err = context.Cause(ctx)
	}
	return value, err
}
