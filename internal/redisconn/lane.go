package redisconn

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/wait"
)

// Lanes
//
// A lane is the way to one node of Redis. A lone operation is a plain command on its
// caller's goroutine, which is the fastest there is. Where more are in flight, further
// ones gather in a trip: a pipeline, on a goroutine of its own. At most maxTrips are
// under way. While they are, the next one gathers, so trips are as long as the load is
// high: callers × round trip / maxTrips operations. There is no timer between an
// operation and its sending, and no goroutine without a trip.
//
//	caller ──▶ lone: fewer than maxLone in flight, and no trip ──▶ plain command
//	       └─▶ the trip that gathers ──▶ sent when fewer than maxTrips are ──▶ pipeline
//
// A caller leaves a trip when its own context ends, or when the trip's time is up; the
// trip goes on. A lone operation cannot be left: so it takes a caller with time enough,
// and a client that keeps to its time, of maxUnnoticed at most. Where an operation may take
// longer, or its caller has less time, only a read is lone. It then goes on in a trip, which
// sends it again, for the rest of its time. A script would run twice.
//
// An operation that times out costs its connection: its reply may still come, and the
// next operation must not take it for its own. So a trip has more time than its callers.
// When they leave, it gives its place to the next; maxLeft may be left behind like that.
// And when an operation has taken as long as a lone one may, none is lone for afterSlow: a slow
// server would see nothing but new connections. Nor is any for afterHeld once one has kept its caller
// for much longer than that: code of the user's, such as a hook, does not keep to the time, and a trip
// can be left.
//
// A value that was long when it was last read does not ride with others, which would
// have to wait for it; see [longKeys].

const (
	maxLone  = 4   // operations on their callers' goroutines
	maxTrips = 4   // under way: the server works on one, the others are on their way to it or back
	maxOps   = 256 // in a trip
	maxLeft  = 64  // trips that were left behind and have not come back

	maxLeftEach = 4096 // where each operation is a trip

	minLone = 50 * time.Millisecond // of a caller's time that is enough to wait for a reply without a trip

	afterSlow = time.Second // without lone operations, after one has taken too long for them
	afterHeld = time.Minute // without them, after one has held its caller for more than twice its time
)

// An op is a command, and a key of it, which says what node it is for.
type op struct {
	key  string
	cmd  redis.Cmder
	read bool // a GETRANGE: each is an answer of Redis or the lack of one; see Outage
	long bool // the value was long when it was last read
	ride bool // never lone: the caller has to learn of a late reply
}

type lane struct {
	conn     *Conn
	outage   *Outage // nil: none is ever declared
	maxLone  int
	maxTrips int
	maxOps   int
	maxLeft  int

	mu        sync.Mutex // guards what follows
	lone      int        // operations in flight on their callers' goroutines
	slow      time.Time  // when an operation last took longer than they may
	held      time.Time  // when one of them last held its caller for too long
	underWay  int        // trips that have a place, without those left behind
	starting  int        // of these, goroutines that have not taken a trip yet
	left      int        // trips left behind
	usual     int        // operations of the last trip: room for as many in the next
	gathering []*trip    // that are not sent yet; the last takes more operations
}

// do sends ops, and returns nil when each has its reply or an error of its own. After
// another error, the caller must not look at their commands any more. If they were sent
// all the same, late is called when they are over, unless it is nil.
func (l *lane) do(ctx context.Context, ops []op, late func()) error {
	if now, lasts := l.enter(ctx, ops); lasts > 0 {
		over, err := l.alone(ctx, now, lasts, ops)
		if over {
			return err
		}
		rest, cancel := context.WithDeadlineCause(ctx, now.Add(l.conn.timeout), ErrTimeout)
		defer cancel()
		ctx = rest
	}
	t, err := l.join(ctx, ops)
	if err != nil {
		return err
	}
	return t.wait(ctx, late)
}

// enter takes a place for ops on their caller's goroutine, if there is one, and returns for how long it
// is; 0: there is none.
func (l *lane) enter(ctx context.Context, ops []op) (now time.Time, lasts time.Duration) {
	lasts = l.conn.client.brief()
	goesOn := len(ops) == 1 && ops[0].read // where it may take longer
	if l.maxLone == 0 || ops[0].ride || lasts < l.conn.timeout && !goesOn || l.outage.Down() || ctx.Err() != nil {
		return now, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lone >= l.maxLone || l.underWay+len(l.gathering) > 0 && !ops[0].long {
		return now, 0
	}
	now = time.Now() // not before: of many callers most have returned above
	if now.Sub(l.slow) < afterSlow || now.Sub(l.held) < afterHeld {
		return now, 0
	}
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(now) < lasts {
		lasts = deadline.Sub(now)
		if !goesOn || lasts < minLone || !l.conn.client.hasIdle() { // one that it began to make would be lost with it
			return now, 0
		}
	}
	l.lone++
	return now, lasts
}

// alone sends ops on the caller's goroutine, and reports whether they are over: a read without a
// reply may have time left. A panic of the user's hook is an error, as on a goroutine of ours: in
// an Unlock it would leave a lock that is renewed for ever.
func (l *lane) alone(ctx context.Context, now time.Time, lasts time.Duration, ops []op) (over bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			over, err = true, &contain.PanicError{Value: v, Stack: debug.Stack()}
		}
		l.leave(now, lasts)
	}()
	bound := l.conn.bind(ctx, now, lasts)
	if len(ops) > 1 {
		t := trip{lane: l}
		t.add(ops)
		err = t.exec(bound)
		t.note(err)
		return true, err
	}
	l.conn.process(bound, ops[0].cmd)
	reply := ops[0].cmd.Err()
	if took := time.Since(now); reply != nil && !Answered(reply) && took >= lasts && took < l.conn.timeout {
		return false, nil
	}
	l.note(reply, ops[0].read, ops[0].key)
	return true, nil
}

// leave gives back the place that an operation had for a while, from the time began on.
func (l *lane) leave(began time.Time, lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lone--
	if took := l.took(began, lasts); took > 2*l.conn.client.brief() {
		l.held = began.Add(took)
	}
}

// took returns how long an operation took that was sent at the time began, and notes if that is more
// than a lone one may. The caller holds l.mu.
func (l *lane) took(began time.Time, may time.Duration) time.Duration {
	took := time.Since(began)
	if took >= may {
		l.slow = began.Add(took)
	}
	return took
}

// join puts ops on the trip that gathers, and starts it if it may start.
func (l *lane) join(ctx context.Context, ops []op) (*trip, error) {
	switch {
	case l.outage.Down():
		return nil, ErrOutage
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left >= l.maxLeft {
		return nil, ErrBusy
	}
	var t *trip
	if n := len(l.gathering); n > 0 && len(l.gathering[n-1].cmds)+len(ops) <= l.maxOps {
		t = l.gathering[n-1]
		t.values = context.Background() // it has callers with different ones
	} else {
		t = &trip{lane: l, values: context.WithoutCancel(ctx), began: time.Now(), done: make(chan struct{})}
		t.cmds = make([]redis.Cmder, 0, max(l.usual, len(ops)))
		l.gathering = append(l.gathering, t)
	}
	t.add(ops)
	l.start()
	return t, nil
}

// start sends the next trip if there is one and it may be sent. The caller holds l.mu.
func (l *lane) start() {
	if l.underWay < l.maxTrips && l.starting < len(l.gathering) {
		l.underWay++
		l.starting++
		go l.send()
	}
}

// send sends the trip that has gathered for longest.
func (l *lane) send() {
	contain.GrowStack()
	runtime.Gosched() // callers who are about to ask come along
	t := l.next()
	if t == nil {
		return
	}
	contain.Call(t.execLong, func(err error) {
		if err == nil && t.cmds[0].Err() == nil {
			l.conn.lanes.known.Store(true)
		}
		t.note(err)
		t.finish(err)
	})
}

func (l *lane) next() *trip {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting--
	if l.outage.Down() { // declared while they gathered
		l.dismiss(ErrOutage, time.Now())
	}
	if len(l.gathering) == 0 {
		l.underWay--
		return nil
	}
	t := l.gathering[0]
	l.gathering = l.gathering[1:]
	l.usual = len(t.cmds)
	t.sent, t.began = true, time.Now()
	t.timer = time.AfterFunc(l.conn.timeout, t.expire)
	return t
}

// dismiss ends trips that began to gather before a time, and are not sent. The caller
// holds l.mu.
func (l *lane) dismiss(err error, before time.Time) {
	for len(l.gathering) > 0 && l.gathering[0].began.Before(before) {
		l.gathering[0].end(err)
		l.gathering = l.gathering[1:]
	}
}

// A trip is a pipeline, and those who wait for it.
type trip struct {
	lane   *lane
	values context.Context // of its caller, if it has only one
	began  time.Time       // to gather, and then to be under way
	timer  *time.Timer     // while it is
	done   chan struct{}   // closed when the callers may go on
	err    error           // says why their commands have no replies; set before done is closed

	// What follows is guarded by lane.mu until the trip is sent. Its goroutine then has
	// cmds, reads and key.
	cmds  []redis.Cmder
	reads int // the first of cmds are reads
	key   string
	sent  bool
	over  bool     // done is closed
	back  bool     // it has come back
	late  []func() // of callers who have left
}

// add puts reads before scripts. After a pipeline whose first command was refused for
// the moment (READONLY, LOADING), go-redis sends all of it again, and again: a server
// that refuses scripts still answers reads, which need not wait for that.
func (t *trip) add(ops []op) {
	t.cmds = slices.Grow(t.cmds, len(ops))
	for _, op := range ops {
		t.cmds = append(t.cmds, op.cmd)
		if op.read {
			last := len(t.cmds) - 1
			t.cmds[t.reads], t.cmds[last] = t.cmds[last], t.cmds[t.reads]
			t.reads++
		}
	}
	if t.key == "" {
		t.key = ops[0].key
	}
}

// execLong is exec with more time than the callers have.
func (t *trip) execLong() error {
	return t.exec(t.lane.conn.bindTrip(t.values, t.began))
}

// exec sends the commands. An error is that of all of them; otherwise they have their
// own.
func (t *trip) exec(ctx context.Context) error {
	if len(t.cmds) == 1 {
		t.lane.conn.process(ctx, t.cmds[0])
		return nil
	}
	var err error
	for tries := t.lane.conn.tries(); ; {
		p := t.lane.conn.client.get().Pipeline()
		_ = p.BatchProcess(ctx, t.cmds...)
		if _, err = p.Exec(ctx); !tries.more(ctx, t.cmds[0].Err()) {
			break
		}
	}
	if err == nil {
		return nil
	}
	for _, cmd := range t.cmds {
		if cmd.Err() != nil {
			return nil
		}
	}
	return err // of a hook that sent nothing and told no command
}

// process sends one command, which has the error.
func (c *Conn) process(ctx context.Context, cmd redis.Cmder) {
	for tries := c.tries(); ; {
		if _ = c.client.get().Process(ctx, cmd); !tries.more(ctx, cmd.Err()) {
			break
		}
	}
}

// tries are those that an operation still has.
type tries struct {
	conn  *Conn
	left  int          // on connections that turn out to be closed
	pause wait.Backoff // before the next one on a connection that may be new
	until time.Time    // for a connection: with MaxActiveConns go-redis does not wait for one
}

func (c *Conn) tries() tries {
	return tries{conn: c, left: c.client.attempts(), pause: wait.Backoff{First: time.Millisecond, Max: c.timeout}, until: time.Now().Add(c.timeout)}
}

// more reports whether to send an operation once more that has ended with err.
func (t *tries) more(ctx context.Context, err error) bool {
	switch {
	case lostConn(err):
		if t.left--; t.left == 0 {
			return false
		} else if !t.conn.client.hasIdle() { // something may close each new one
			t.pause.Sleep(ctx)
		}
	case errors.Is(err, redis.ErrPoolExhausted):
		wait.Sleep(ctx, wait.Jitter(time.Millisecond, 0.5))
	default:
		return false
	}
	return ctx.Err() == nil && time.Now().Before(t.until)
}

// lostConn reports whether an operation ended because the server had closed its
// connection, which may be long ago. Another connection may do: every script may be
// repeated.
func lostConn(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// finish ends the trip, and starts the next one in its place.
func (t *trip) finish(err error) {
	l := t.lane
	l.mu.Lock()
	t.back = true
	_ = l.took(t.began, l.conn.client.brief())
	late := t.late
	if t.over { // it was left behind, and has no place any more
		l.left--
	} else {
		t.end(err)
		l.underWay--
		l.start()
	}
	l.mu.Unlock()
	for _, late := range late {
		late()
	}
}

// expire ends the trip for its callers when its time is up. Those who have waited for as
// long for a place leave with them.
func (t *trip) expire() {
	l := t.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.over {
		return
	}
	l.conn.unanswered()
	l.outage.Missed(t.key, ErrTimeout, !l.conn.client.lacksSockets())
	t.end(ErrTimeout)
	l.underWay--
	l.left++
	l.dismiss(ErrTimeout, time.Now().Add(-l.conn.timeout))
	l.start()
}

// end lets the callers go on. The caller holds lane.mu.
func (t *trip) end(err error) {
	t.err, t.over = err, true
	if t.timer != nil {
		t.timer.Stop()
	}
	close(t.done)
}

// wait waits for the end of the trip or of ctx.
func (t *trip) wait(ctx context.Context, late func()) error {
	select {
	case <-t.done:
		if t.err == nil {
			return nil
		}
	case <-ctx.Done():
	}
	t.lane.mu.Lock()
	defer t.lane.mu.Unlock()
	switch {
	case t.over && t.err == nil:
		return nil
	case late == nil || t.back || t.over && !t.sent: // over, or never begun
	default:
		t.late = append(t.late, late)
	}
	if t.over {
		return t.err
	}
	return context.Cause(ctx)
}
