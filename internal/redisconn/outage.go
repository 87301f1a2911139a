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
// caller its RedisTimeout, and each operation that times out costs a connection. So after
// maxMissed operations in a row without a reply the circuit opens: operations fail at once
// with ErrOutage, and one goroutine probes the node with one read at a time and growing
// pauses. The first reply ends the outage.
//
//	up ──maxMissed in a row without a reply──▶ down ──a probe has its reply──▶ up
//
// Which operations count:
//
//   - A read with a reply, or a script that has run, starts the count again.
//   - An operation whose time passed while go-redis waited for the server, or whose
//     connection could not be opened, had no reply. A read that got an error (LOADING, BUSY,
//     MASTERDOWN) counts the same: such a server serves no reads. A script that got an error
//     does not count: a server that is full, or a replica, refuses scripts and still serves
//     reads.
//   - An operation whose time passed in our own process says little about Redis: it
//     waited for a connection that others used, or for one that was being opened. Nor does
//     an operation whose connection was closed say much: that may be long ago, by something
//     on the way. Such unsure ones open the circuit only if Redis has not replied for
//     maxUnsure timeouts.
//
// A Redis that replies in about a timeout would open and close the circuit all the
// time. So a circuit that opens again within afterOutage goes on with the pause
// between probes that it had reached.

const (
	maxMissed   = 3                      // operations in a row without a reply
	maxUnsure   = 5                      // timeouts without any reply, if Redis may not have been the slow one
	firstPause  = 50 * time.Millisecond  // between the first two probes
	maxPause    = 500 * time.Millisecond // between any two probes
	afterOutage = 10 * time.Second       // within which a new outage goes on with the pause of the last
)

// ErrOutage reports that an operation was not started, because Redis does not reply.
var ErrOutage = errors.New("levee: redis does not reply, and is not used until it does")

// An Outage detects outages of one node. A nil Outage detects none. It may be used
// concurrently.
type Outage struct {
	conn     *Conn
	address  string                                      // of the node
	patience time.Duration                               // see maxUnsure
	probe    func(ctx context.Context, key string) error // a read of key
	ctx      context.Context                             // ends with the last user
	end      context.CancelFunc
	work     sync.WaitGroup
	log      *logonce.Log

	missed atomic.Int32 // operations in a row without a reply
	down   atomic.Bool
	count  atomic.Uint64

	pauses wait.Backoff // between probes; belongs to the probing goroutine during an outage

	mu    sync.Mutex    // guards what follows
	sure  int           // how many of missed are not unsure
	up    chan struct{} // closed while there is no outage
	since time.Time     // when the first of missed ended
	ended time.Time     // when the last outage ended
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

// close ends the probes, and the outage with them: callers of WaitUp go on.
func (o *Outage) close() {
	if o == nil {
		return
	}
	o.mu.Lock() // Missed has started its probes by now, or sees that ctx has ended
	o.end()
	o.mu.Unlock()
	o.work.Wait()
}

// Down reports whether the node has an outage: operations fail with ErrOutage.
func (o *Outage) Down() bool { return o != nil && o.down.Load() }

// Count returns how many outages there have been.
func (o *Outage) Count() uint64 {
	if o == nil {
		return 0
	}
	return o.count.Load()
}

// Up returns a channel that is closed when the outage is over.
func (o *Outage) Up() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.up
}

// WaitUp waits until the outage is over, for at most patience or until ctx ends, and
// reports whether it is over.
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

// Answered notes an operation with a reply. It is on the path of every hit, so it writes
// only if operations had no reply before.
func (o *Outage) Answered() {
	if o == nil {
		return
	}
	if o.missed.Load() != 0 {
		o.missed.Store(0)
	}
}

// Missed counts an operation that ended with err and without a reply. sure is false for the
// unsure ones described above. Probes read a byte of key, which this node of a cluster has.
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
	again := time.Since(o.ended) <= afterOutage // if not, probe at once: a hiccup may be over by now
	if !again {
		o.pauses.Reset()
	}
	o.down.Store(true)
	o.count.Add(1)
	o.log.Warn("redis does not reply; the caches go on without it until it does", o.logArgs("error", err)...)
	o.up = make(chan struct{})
	o.work.Go(func() { o.probeUntilAnswered(key, again) })
	if o.conn.client.plain != nil {
		o.work.Go(o.tellWhy)
	}
}

// logArgs returns the arguments of a log line: the users of the node, its address, and more.
func (o *Outage) logArgs(more ...any) []any {
	return append([]any{"cache", o.conn.names(), "address", o.address}, more...)
}

// tellWhy logs the error that the server sends on a new connection, if any: the operations themselves
// end with a timeout or EOF.
func (o *Outage) tellWhy() {
	options := o.conn.client.plain.Options()
	said, _ := atTheDoor(o.ctx, func(ctx context.Context) (net.Conn, error) { return options.Dialer(ctx, options.Network, options.Addr) })
	if said != "" {
		o.log.Warn("redis refuses connections", o.logArgs("error", said)...)
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
		o.log.Info("redis replies again", o.logArgs("after", o.ended.Sub(began))...)
	}
}
