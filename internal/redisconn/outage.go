package redisconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// Outages
//
// An Outage is a circuit breaker for Redis. A Redis that hangs would cost every
// caller its RedisTimeout, and every read that times out on its caller's goroutine
// a connection. So after maxMissed reads in a row without an answer the circuit
// opens: operations fail at once with ErrOutage, and one goroutine probes Redis
// with one read at a time and growing pauses. The first answer ends the outage.
//
//	up ──maxMissed reads in a row without an answer──▶ down ──a probe is answered──▶ up
//
// Only reads open the circuit. An error in place of an answer (LOADING, BUSY,
// MASTERDOWN) counts as none, since such a server has nothing to give. Scripts do
// not count. A server that is full, or a replica, refuses scripts and still answers
// reads; and since go-redis repeats what a replica refuses until the time is up, a
// refused script looks like one without an answer. Every rebuild begins with a read, so
// reads notice a server that hangs.
//
// One hung node of a cluster leaves most keys readable, yet three reads in a row
// may be for keys of that node. There the circuit opens only when nothing was
// answered for the length of a timeout. While it stays closed, each read of a key of
// that node costs its caller a timeout, until the cluster replaces the node.
//
// A Redis that answers in about a timeout would open and close the circuit all the
// time. So a circuit that opens again within afterOutage goes on with the pause
// between probes that it had reached.

const (
	maxMissed   = 3                      // reads in a row without an answer
	firstPause  = 50 * time.Millisecond  // between the first two probes
	maxPause    = 500 * time.Millisecond // between any two probes
	afterOutage = 10 * time.Second       // in which a new outage goes on with the pause of the last
	afterDrop   = time.Second            // without reads on callers' goroutines, after one cost its connection
	maxProbes   = 3                      // that may still wait for an answer when the next is due
)

// ErrOutage reports that an operation was not started because Redis does not
// answer.
var ErrOutage = errors.New("levee: redis does not answer and is not asked")

// An Outage knows whether there is an outage at present. With a nil Outage there never
// is one. It may be used concurrently.
type Outage struct {
	minSpan time.Duration                               // the circuit opens only if nothing was answered for so long
	probe   func(ctx context.Context, key string) error // a read of key
	ctx     context.Context                             // ends with the last user
	end     context.CancelFunc
	work    sync.WaitGroup
	log     *logonce.Log

	missed  atomic.Int32 // reads in a row without an answer
	dropped atomic.Int64 // when a read last cost its connection, in ns since 1970; 0: over a second ago
	down    atomic.Bool
	count   atomic.Uint64

	mu    sync.Mutex    // guards what follows
	up    chan struct{} // closed while Redis is asked
	since time.Time     // of the first of the reads in a row without an answer
	ended time.Time     // when the last outage did
	pause time.Duration // before the next probe
}

// A place has one Outage: a client, and the time that its operations may take.
type place struct {
	rdb     redis.UniversalClient
	timeout time.Duration
}

var outages registry[place, *Outage]

// openOutage returns the Outage of rdb for operations that may take timeout. The last
// of its users to call release ends it. punctual is a client for the probes, nil: rdb.
// With a punctual client a probe that times out costs its connection, which clears the
// pool of connections that a firewall has forgotten.
func openOutage(rdb redis.UniversalClient, timeout time.Duration, punctual *redis.Client, log *logonce.Log) (o *Outage, release func()) {
	at := place{rdb, timeout}
	o = outages.open(at, rdb, func() *Outage { return newOutage(rdb, timeout, punctual, log) })
	return o, func() {
		if outages.release(at, rdb) {
			o.end()
			o.work.Wait()
		}
	}
}

func newOutage(rdb redis.UniversalClient, timeout time.Duration, punctual *redis.Client, log *logonce.Log) *Outage {
	o := &Outage{log: log, up: make(chan struct{})}
	close(o.up)
	o.ctx, o.end = context.WithCancel(context.Background())
	if _, oneNode := rdb.(*redis.Client); !oneNode {
		o.minSpan = timeout
	}
	asked := redis.Cmdable(rdb)
	if punctual != nil {
		asked = punctual
	}
	probes := NewRunner(timeout, maxProbes)
	o.probe = func(ctx context.Context, key string) error {
		_, err := Run(ctx, probes, func(ctx context.Context) ([]byte, error) { return GetRange(ctx, asked, key, 0) }, nil)
		return err
	}
	return o
}

// Down reports whether Redis is not asked.
func (o *Outage) Down() bool { return o != nil && o.down.Load() }

// Count returns how many outages there have been.
func (o *Outage) Count() uint64 { return o.count.Load() }

// Up returns a channel that is closed when Redis is asked again.
func (o *Outage) Up() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.up
}

// WaitUp waits until Redis is asked again, for at most patience or until ctx ends,
// and reports whether it is.
func (o *Outage) WaitUp(ctx context.Context, patience time.Duration) bool {
	if !o.Down() {
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-o.Up():
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// Answered counts a read that was answered. It is on the path of every hit, so it
// writes only when there is something to forget.
func (o *Outage) Answered() {
	if o != nil && o.missed.Load() != 0 {
		o.missed.Store(0)
	}
}

// Missed counts a read that was not answered. Probes will read key: it should be in
// the slot of the key that was read, so that the same node of a cluster is asked,
// and its value short.
func (o *Outage) Missed(key string) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.missed.Add(1)
	if n == 1 {
		o.since = time.Now()
	}
	if n < maxMissed || time.Since(o.since) < o.minSpan || o.down.Load() || o.ctx.Err() != nil {
		return
	}
	if time.Since(o.ended) > afterOutage {
		o.pause = 0 // a hiccup is over by now: probe at once
	}
	o.down.Store(true)
	o.count.Add(1)
	o.log.Warn("redis does not answer and is not asked until it does")
	o.up = make(chan struct{})
	o.work.Go(func() { o.probeUntilAnswered(key) })
}

func (o *Outage) probeUntilAnswered(key string) {
	began := time.Now()
	for {
		wait.Sleep(o.ctx, wait.Jitter(o.pause, 0.2))
		o.pause = min(max(firstPause, 2*o.pause), maxPause) // nobody else touches it during an outage
		err := o.probe(o.ctx, key)
		if o.ctx.Err() != nil || err == nil {
			break
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.missed.Store(0)
	o.ended = time.Now()
	o.down.Store(false)
	close(o.up)
	if o.ctx.Err() == nil {
		o.log.Info("redis answers again", "after", o.ended.Sub(began))
	}
}

// mayDropConn reports whether to risk an operation whose timeout costs its
// connection. For a while after one it is not risked: a slow server would see
// nothing but new connections.
func (o *Outage) mayDropConn() bool {
	if o == nil {
		return true
	}
	dropped := o.dropped.Load()
	if dropped == 0 {
		return true
	}
	if time.Since(time.Unix(0, dropped)) < afterDrop {
		return false
	}
	o.dropped.CompareAndSwap(dropped, 0)
	return true
}

// droppedConn notes that an operation has cost its connection.
func (o *Outage) droppedConn() {
	if o != nil {
		o.dropped.Store(time.Now().UnixNano())
	}
}
