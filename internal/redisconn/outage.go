package redisconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/wait"
)

// Outages
//
// An Outage is a circuit breaker for a node of Redis. A node that hangs would cost every
// caller its RedisTimeout, and every operation that times out a connection. So after
// maxMissed operations in a row without an answer the circuit opens: operations fail at
// once with ErrOutage, and one goroutine probes the node with one read at a time and
// growing pauses. The first answer ends the outage.
//
//	up ──maxMissed in a row without an answer──▶ down ──a probe is answered──▶ up
//
// Which operations count:
//
//   - A read that is answered starts the count again; so does a script that has run.
//   - An operation whose time passed while go-redis waited for the server, or whose
//     connection could not be made, had no answer. So had a read that got an error in place of an
//     answer (LOADING, BUSY, MASTERDOWN): such a server has nothing to give. A script that
//     got an error says nothing: a server that is full, or a replica, refuses scripts and
//     still answers reads.
//   - An operation whose time passed in our own process says little about Redis: it
//     waited for a connection that others had, or for one that was being opened. Nor does
//     one whose connection was closed, which may have been long ago, by something on the
//     way. Such unsure ones open the circuit only when nothing was answered for maxUnsure
//     timeouts in a row.
//
// A Redis that answers in about a timeout would open and close the circuit all the
// time. So a circuit that opens again within afterOutage goes on with the pause
// between probes that it had reached.

const (
	maxMissed   = 3                      // operations in a row without an answer
	maxUnsure   = 5                      // timeouts without any answer, where it is unclear who was slow
	firstPause  = 50 * time.Millisecond  // between the first two probes
	maxPause    = 500 * time.Millisecond // between any two probes
	afterOutage = 10 * time.Second       // in which a new outage goes on with the pause of the last
)

// ErrOutage reports that an operation was not started because Redis does not
// answer.
var ErrOutage = errors.New("levee: redis does not reply, and is not used until it does")

// An Outage knows whether there is an outage of a node at present. With a nil Outage
// there never is one. It may be used concurrently.
type Outage struct {
	conn     *Conn
	address  string                                      // of the node
	patience time.Duration                               // see maxUnsure
	probe    func(ctx context.Context, key string) error // a read of key
	ctx      context.Context                             // ends with the last user
	end      context.CancelFunc
	work     sync.WaitGroup
	log      *logonce.Log

	missed atomic.Int32 // operations in a row without an answer
	down   atomic.Bool
	count  atomic.Uint64

	pauses wait.Backoff // between probes; nobody else touches it during an outage

	mu    sync.Mutex    // guards what follows
	sure  int           // of missed, those that are not unsure
	up    chan struct{} // closed while Redis is asked
	since time.Time     // of the first of missed
	ended time.Time     // when the last outage did
}

func newOutage(c *Conn, address string) *Outage {
	o := &Outage{conn: c, address: address, patience: maxUnsure * c.timeout, log: c.log, up: make(chan struct{})}
	o.pauses = wait.Backoff{First: firstPause, Max: maxPause}
	close(o.up)
	o.ctx, o.end = context.WithCancel(context.Background())
	o.probe = func(ctx context.Context, key string) error {
		_, err := Do(ctx, c, c.timeout, func(ctx context.Context) ([]byte, error) {
			return read(c.Client().GetRange(ctx, key, 0, 0))
		}, nil)
		return err
	}
	return o
}

// close ends the probes. Those who wait for the end of an outage go on.
func (o *Outage) close() {
	if o == nil {
		return
	}
	o.mu.Lock() // whoever begins probes has begun them, or sees the end
	o.end()
	o.mu.Unlock()
	o.work.Wait()
}

// Down reports whether Redis is not asked.
func (o *Outage) Down() bool { return o != nil && o.down.Load() }

// Count returns how many outages there have been.
func (o *Outage) Count() uint64 {
	if o == nil {
		return 0
	}
	return o.count.Load()
}

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

// Answered counts an operation that was answered. It is on the path of every hit, so it
// writes only when there is something to forget.
func (o *Outage) Answered() {
	if o == nil {
		return
	}
	if o.missed.Load() != 0 {
		o.missed.Store(0)
	}
}

// Missed counts an operation that was not answered but ended with err, see above for sure.
// Probes will read a byte of key, as the same node of a cluster has it.
func (o *Outage) Missed(key string, err error, sure bool) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.missed.Add(1)
	if n == 1 {
		o.since, o.sure = time.Now(), 0
	}
	if sure {
		o.sure++
	}
	opens := o.sure >= maxMissed || n >= maxMissed && time.Since(o.since) >= o.patience
	if !opens || o.down.Load() || o.ctx.Err() != nil {
		return
	}
	again := time.Since(o.ended) <= afterOutage // else a hiccup is over by now: probe at once
	if !again {
		o.pauses.Reset()
	}
	o.down.Store(true)
	o.count.Add(1)
	o.log.Warn("redis does not reply; the caches go on without it until it does", o.whose("error", err)...)
	o.up = make(chan struct{})
	o.work.Go(func() { o.probeUntilAnswered(key, again) })
	if o.conn.client.plain != nil {
		o.work.Go(o.tellWhy)
	}
}

// whose are the arguments of a log line: who uses the node, where it is, and more.
func (o *Outage) whose(more ...any) []any {
	return append([]any{"cache", o.conn.names(), "address", o.address}, more...)
}

// tellWhy logs what the server says to a new connection. Operations end by their time then, or with EOF.
func (o *Outage) tellWhy() {
	options := o.conn.client.plain.Options()
	said, _ := atTheDoor(o.ctx, func(ctx context.Context) (net.Conn, error) { return options.Dialer(ctx, options.Network, options.Addr) })
	if said != "" {
		o.log.Warn("redis refuses connections", o.whose("error", said)...)
	}
}

func (o *Outage) probeUntilAnswered(key string, pauseFirst bool) {
	began := time.Now()
	if pauseFirst {
		o.pauses.Sleep(o.ctx)
	}
	for o.probe(o.ctx, key) != nil && o.ctx.Err() == nil {
		o.pauses.Sleep(o.ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.missed.Store(0)
	o.ended = time.Now()
	o.down.Store(false)
	close(o.up)
	if o.ctx.Err() == nil {
		o.log.Info("redis replies again", o.whose("after", o.ended.Sub(began))...)
	}
}
