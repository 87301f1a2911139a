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
	// ErrTimeout reports that the caller left an operation behind when its time was
	// up. Whether the operation took effect is unknown.
	ErrTimeout = errors.New("levee: redis did not answer in time")

	// ErrBusy reports that an operation was not started, because too many that were
	// left behind still wait for Redis.
	ErrBusy = errors.New("levee: too many redis operations without an answer")
)

// A Conn is one Redis, and the time that an operation may take. It may be used
// concurrently. Make it with Open or New.
type Conn struct {
	client   client
	timeout  time.Duration
	limit    int64 // of running
	alarm    alarm // of operations on their callers' goroutines
	forTrips alarm // which their callers may leave
	lanes    lanes
	long     longKeys
	log      *logonce.Log
	release  func()

	mu    sync.Mutex     // guards users
	users map[string]int // by name, see UsedBy

	running atomic.Int64        // operations of Do, also those that were left behind
	longest atomic.Pointer[any] // see boxed
}

// connKey is what the users of one shared Conn have in common: a client, and the time
// that operations may take.
type connKey struct {
	rdb     redis.UniversalClient
	timeout time.Duration
}

var conns registry[connKey, *Conn]

// Open returns the Conn of a client for operations of at most timeout, which notes
// outages. All who open it with that timeout share it: their operations ride together,
// and one outage is found for all. The log and the limit of Do are those of the first.
// Each Open needs a Close.
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

// New returns a Conn of its own, for callers who ask Redis in any case: it knows no
// outage and needs no Close. limit is how many operations of Do may be without an answer.
func New(rdb redis.UniversalClient, timeout time.Duration, limit int) *Conn {
	return newConn(rdb, timeout, limit, nil, false)
}

func newConn(rdb redis.UniversalClient, timeout time.Duration, limit int, log *logonce.Log, notesOutages bool) *Conn {
	c := &Conn{client: newClient(rdb, timeout), timeout: timeout, limit: int64(limit), log: log, release: func() {}}
	c.alarm.timeout, c.forTrips.timeout = c.client.brief(), c.client.longest()
	c.lanes.init(c, notesOutages)
	return c
}

// Close gives a Conn of Open up. The last Close ends its outages. Each user calls it
// once.
func (c *Conn) Close() { c.release() }

// UsedBy has log lines of an outage name a user of the Conn, until forget is called.
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

// names returns the users of the Conn, as they stand in a log.
func (c *Conn) names() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(c.users)), ",")
}

// Client returns the user's client, for an operation of Do.
func (c *Conn) Client() redis.UniversalClient { return c.client.get() }

// Clustered reports whether Redis is a cluster: then a script may have keys of one slot only.
func (c *Conn) Clustered() bool { return c.lanes.cluster != nil }

// Timeout returns how long an operation may take.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// Outage returns the Outage of a Redis of one node, nil for a cluster.
func (c *Conn) Outage() *Outage {
	if c.lanes.cluster != nil {
		return nil
	}
	return c.lanes.one.outage
}

// OutageOf returns the Outage of the node that has key, as far as the nodes of a cluster
// are known by now.
func (c *Conn) OutageOf(key string) *Outage { return c.lanes.of(key).outage }

// Outages returns how many outages there have been, of all nodes, and whether there is
// one now.
func (c *Conn) Outages() (count uint64, now bool) {
	c.lanes.each(func(l *lane) {
		count += l.outage.Count()
		now = now || l.outage.Down()
	})
	return count, now
}

// unanswered takes note of an operation that had no answer.
func (c *Conn) unanswered() {
	c.lanes.lookAgain()
	c.client.late()
}

// Do runs an operation that cannot ride with others, on a goroutine that its caller
// leaves behind when ctx ends or timeout is up, whatever op does; the context given to
// op ends at the same moment. The result of an op that was left behind goes to late,
// unless late is nil. If op panicked, the error is a *contain.PanicError. Do does not
// start op if ctx has ended.
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
		<-ctx.Done() // the socket's timer was first, by some microseconds
		err = context.Cause(ctx)
	}
	return value, err
}
