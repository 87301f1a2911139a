package redisconn

import (
	"context"
	"errors"
	"hash/maphash"
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
// A lane sends operations to one node of Redis. A lone operation is a plain command on its
// caller's goroutine, which is the fastest way. While lone operations or trips are in flight,
// further operations gather in a trip: a pipeline, on a goroutine of its own. At most maxTrips
// trips are under way; meanwhile the next one gathers, so its length grows with the load:
// callers × round trip / maxTrips operations. No timer delays the sending of an operation,
// and no goroutine runs without a trip.
//
//	caller ──▶ lone: fewer than maxLone in flight, and no trip ──▶ plain command
//	       └─▶ the trip that gathers ──▶ sent when fewer than maxTrips are ──▶ pipeline
//
// Callers who read one key while a trip gathers share its read: it is sent after each of them has
// asked, so no invalidation that had returned before one of them asked can come after it. A read is
// not lone while maxLoneOfKey operations of its key are. So a crowd of callers of one key costs
// Redis a read for each trip, or a few: a trip remembers 16 of its reads, by a hash of their keys.
//
// A caller leaves a trip when its own context ends, or when the trip's time is up; the
// trip goes on. A caller cannot leave a lone operation, so lone ones need a *redis.Client,
// a time limit of at most maxUnnoticed, and a caller whose deadline is later than that.
// With a longer limit or an earlier deadline only a read is lone. If it has no reply in its
// shorter time, a trip sends it again for the rest of its time. A script would run twice.
//
// An operation that times out costs its connection: its reply may still come, and the
// next operation must not take it for its own. So a trip has more time than its callers.
// When they leave, it gives its place to the next trip; maxLeft trips may be left behind.
// When an operation has taken as long as a lone one may, none is lone for afterSlow: a slow
// server would see nothing but new connections. When a lone operation has kept its caller for
// more than twice that time, none is lone for afterHeld: code of the user, such as a hook, does
// not keep to the time, and callers can leave a trip.
//
// A value that was long when it was last read does not share a trip with other
// operations, which would have to wait for it; see [longKeys].

const (
	maxLone = 4 // operations on their callers' goroutines
	// maxLoneOfKey and a trip are the three operations without a reply that are an outage: with fewer, a
	// crowd of callers of one key would lose its time twice before anybody knows of the outage.
	maxLoneOfKey = 2

	maxTrips = 4   // under way: the server works on one, the others are on their way to it or back
	maxOps   = 256 // in a trip
	maxLeft  = 64  // trips that were left behind and have not come back

	maxLeftEach = 4096 // maxLeft where each operation is a trip of its own

	minLone = 50 * time.Millisecond // until a caller's deadline; with less its read takes a trip

	afterSlow = time.Second // without lone operations, after one has taken too long for them
	afterHeld = time.Minute // without lone operations, after one has held its caller for more than twice its time
)

// An op is a command with one of its keys, which says to which node it goes.
type op struct {
	key   string
	cmd   redis.Cmder
	read  bool // a GETRANGE, whose end always counts for the Outage
	long  bool // a read of a value that was long when it was last read
	share bool // a read whose caller takes the reply from cmd, which may become another caller's
	ride  bool // never lone, because the caller has to learn of a late reply
}

type lane struct {
	conn     *Conn
	outage   *Outage // nil: the lane detects no outage
	maxLone  int
	maxTrips int
	maxOps   int
	maxLeft  int

	mu        sync.Mutex // guards what follows
	lone      []string   // keys of the operations in flight on their callers' goroutines
	slow      time.Time  // when an operation last took longer than a lone one may
	held      time.Time  // when a lone operation last held its caller for too long
	underWay  int        // trips that have one of maxTrips places, without those left behind
	starting  int        // goroutines, counted in underWay, that have not taken a trip yet
	left      int        // trips left behind
	usual     int        // operations of the last trip: the next one allocates as many
	gathering []*trip    // trips not sent yet; the last one takes more operations
}

// do sends ops and waits for their replies. It returns nil when each op has its reply or
// an error of its own. If it returns an error, the caller must no longer look at the
// commands; if they were sent, late is called when they are over, unless late is nil. The cmd of an
// op that may share is afterwards the one whose reply its caller gets.
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

// enter counts ops as lone, if they may be, and returns how long they may then take on their caller's
// goroutine. If lasts is 0 they have to take a trip.
func (l *lane) enter(ctx context.Context, ops []op) (now time.Time, lasts time.Duration) {
	lasts = l.conn.client.brief()
	goesOn := len(ops) == 1 && ops[0].read // a read goes on in a trip if its time as a lone one is up
	if l.maxLone == 0 || ops[0].ride || lasts < l.conn.timeout && !goesOn || l.outage.Down() || ctx.Err() != nil {
		return now, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lone) >= l.maxLone || l.underWay+len(l.gathering) > 0 && !ops[0].long || ops[0].read && l.loneOf(ops[0].key) >= maxLoneOfKey {
		return now, 0
	}
	now = time.Now() // read late: most callers under load have returned above
	if now.Sub(l.slow) < afterSlow || now.Sub(l.held) < afterHeld {
		return now, 0
	}
	if deadline, ok := ctx.Deadline(); ok && deadline.Sub(now) < lasts {
		lasts = deadline.Sub(now)
		if !goesOn || lasts < minLone || !l.conn.client.hasIdle() { // a connection that it opens would be lost at its deadline
			return now, 0
		}
	}
	l.lone = append(l.lone, ops[0].key)
	return now, lasts
}

// loneOf returns how many lone operations of key are in flight. The caller holds l.mu.
func (l *lane) loneOf(key string) (n int) {
	for _, other := range l.lone {
		if other == key {
			n++
		}
	}
	return n
}

// alone sends ops on the caller's goroutine. over is false for a read without a reply that has time
// left for a trip. alone turns a panic of the user's hook into an error, as happens on a goroutine of
// ours: a panic in an Unlock would leave a lock that is renewed for ever.
func (l *lane) alone(ctx context.Context, now time.Time, lasts time.Duration, ops []op) (over bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			over, err = true, &contain.PanicError{Value: v, Stack: debug.Stack()}
		}
		l.leave(ops[0].key, now, lasts)
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

// leave ends a lone operation of key that started at began and was allowed to take as long as lasts.
func (l *lane) leave(key string, began time.Time, lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.lone, key)
	l.lone = slices.Delete(l.lone, i, i+1)
	if took := l.took(began, lasts); took > 2*l.conn.client.brief() {
		l.held = began.Add(took)
	}
}

// took returns how long an operation took that was sent at began, and notes if that is as long as
// may, the time of a lone one. The caller holds l.mu.
func (l *lane) took(began time.Time, may time.Duration) time.Duration {
	took := time.Since(began)
	if took >= may {
		l.slow = began.Add(took)
	}
	return took
}

// join adds ops to the trip that gathers, or finds a read of the same key that may be shared. It
// starts the trip if it may start.
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
	if len(ops) == 1 && ops[0].share && l.maxOps > 1 {
		for _, t := range l.gathering {
			if t.shares(&ops[0]) {
				t.values = context.Background()
				return t, nil
			}
		}
	}
	var t *trip
	if n := len(l.gathering); n > 0 && !ops[0].long && !l.gathering[n-1].long && len(l.gathering[n-1].cmds)+len(ops) <= l.maxOps {
		t = l.gathering[n-1]
		t.values = context.Background() // its callers' contexts have different values
	} else {
		t = &trip{lane: l, long: ops[0].long, values: context.WithoutCancel(ctx), began: time.Now(), done: make(chan struct{})}
		t.cmds = make([]redis.Cmder, 0, max(l.usual, len(ops)))
		l.gathering = append(l.gathering, t)
	}
	t.add(ops)
	l.start()
	return t, nil
}

// start has a goroutine send the next trip, if there is one and it may be sent. The caller holds l.mu.
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
	runtime.Gosched() // so that callers who are about to join share the trip
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
	if l.outage.Down() { // the outage began while the trips gathered
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

// dismiss ends with err the unsent trips that began to gather before a time. The caller
// holds l.mu.
func (l *lane) dismiss(err error, before time.Time) {
	for len(l.gathering) > 0 && l.gathering[0].began.Before(before) {
		l.gathering[0].end(err)
		l.gathering = l.gathering[1:]
	}
}

// A trip is a pipeline that the operations of several callers share.
type trip struct {
	lane   *lane
	long   bool            // it has a read of a long value, and takes no other operation
	values context.Context // the caller's, if the trip has only one
	began  time.Time       // when it began to gather, and once sent, when it was sent
	timer  *time.Timer     // expire, while it is under way
	done   chan struct{}   // closed when the callers may go on
	err    error           // why their commands have no replies; set before done is closed

	// lane.mu guards the following fields. Once the trip is sent, cmds, reads and key belong to
	// its goroutine.
	cmds  []redis.Cmder
	reads int        // the first of cmds are reads
	open  [16]uint16 // by the hash of its key: the place among cmds, from 1, of the last read, which callers may share until the trip is sent
	key   string
	sent  bool
	over  bool     // done is closed
	back  bool     // its replies are here, or an error
	late  []func() // to call at its end, for callers who have left
}

// add appends ops, and keeps reads in front of scripts. If the first command of a pipeline
// is refused for the moment (READONLY, LOADING), go-redis sends all of it again and again.
// A server that refuses scripts still replies to reads, which then need not wait for that.
func (t *trip) add(ops []op) {
	t.cmds = slices.Grow(t.cmds, len(ops))
	for _, op := range ops {
		t.cmds = append(t.cmds, op.cmd)
		if op.read {
			last := len(t.cmds) - 1
			t.cmds[t.reads], t.cmds[last] = t.cmds[last], t.cmds[t.reads]
			t.reads++ // no read moves any more
			*t.openRead(op.key) = uint16(t.reads)
		}
	}
	if t.key == "" {
		t.key = ops[0].key
	}
}

// shares reports whether the trip has a read of the key of op, a read. It then sets op.cmd to that one.
func (t *trip) shares(op *op) bool {
	at := *t.openRead(op.key)
	if at == 0 || !slices.Equal(t.cmds[at-1].Args(), op.cmd.Args()) {
		return false
	}
	op.cmd = t.cmds[at-1]
	return true
}

func (t *trip) openRead(key string) *uint16 {
	return &t.open[maphash.String(seed, key)%uint64(len(t.open))]
}

// execLong sends the commands with more time than the callers have.
func (t *trip) execLong() error {
	return t.exec(t.lane.conn.bindTrip(t.values, t.began))
}

// exec sends the commands. It returns an error only if no command has one; otherwise each
// command has its own reply or error.
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
	return err // a hook returned it, sent nothing and set no command's error
}

// process sends one command. Its error is in cmd.
func (c *Conn) process(ctx context.Context, cmd redis.Cmder) {
	for tries := c.tries(); ; {
		if _ = c.client.get().Process(ctx, cmd); !tries.more(ctx, cmd.Err()) {
			break
		}
	}
}

// A tries counts the attempts that an operation has left.
type tries struct {
	conn  *Conn
	left  int          // attempts on connections that turn out to be closed
	pause wait.Backoff // before an attempt that may open a new connection
	until time.Time    // when it gives up: with MaxActiveConns go-redis does not wait for a connection
}

func (c *Conn) tries() tries {
	return tries{conn: c, left: c.client.attempts(), pause: wait.Backoff{First: time.Millisecond, Max: c.timeout}, until: time.Now().Add(c.timeout)}
}

// more reports whether to send an operation that has ended with err once more. It may pause before.
func (t *tries) more(ctx context.Context, err error) bool {
	switch {
	case lostConn(err):
		if t.left--; t.left == 0 {
			return false
		} else if !t.conn.client.hasIdle() { // something may close each new connection
			t.pause.Sleep(ctx)
		}
	case errors.Is(err, redis.ErrPoolExhausted):
		wait.Sleep(ctx, wait.Jitter(time.Millisecond, 0.5))
	default:
		return false
	}
	return ctx.Err() == nil && time.Now().Before(t.until)
}

// lostConn reports whether an operation ended because its connection was closed, perhaps
// long ago. Another connection may work, and every script may be repeated.
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
	if t.over { // it was left behind, and has given its place away
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

// expire ends the trip for its callers when its time is up. Trips that have gathered for as
// long end with it.
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

// end lets the callers of the trip go on, with err if it is not nil. The caller of end holds lane.mu.
func (t *trip) end(err error) {
	t.err, t.over = err, true
	if t.timer != nil {
		t.timer.Stop()
	}
	close(t.done)
}

// wait waits for the end of the trip or of ctx. If the trip goes on, late will be called at its end.
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
	case late == nil || t.back || t.over && !t.sent: // the commands are over, or were never sent
	default:
		t.late = append(t.late, late)
	}
	if t.over {
		return t.err
	}
	return context.Cause(ctx)
}
