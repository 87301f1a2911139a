package lock

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// A locker is what a Locker and those made of it by With share.
type locker struct {
	process  string       // 128 random bits: no two processes or Lockers are the same
	entered  atomic.Int64 // names entries in queues
	calls    atomic.Int64 // under way, that may be granted a lock
	redis    *store
	watchdog *watchdog
	counts   *counters
	log      *logonce.Log

	link        *redisconn.Link
	unsubscribe func()

	logger          *slog.Logger
	checkedServer   atomic.Bool // whether it is one to keep locks in
	checkedReplicas atomic.Bool // whether it has any

	ctx    context.Context // of what runs in the background
	cancel context.CancelFunc
	closed chan struct{} // closed by Close, as its first step

	mu         sync.Mutex // guards what follows, and those fields of wait rooms that say so
	rooms      map[roomKey]*waitRoom
	entries    map[string]*waitRoom // by their entry in the queue
	attaching  map[Token]bool       // tokens that an Attach is about to take
	subscribed bool                 // to our channel
	hearing    bool                 // what noteHearing found last
	closing    bool
	ending     sync.Once
	tasks      wait.Tasks // in the background
}

func newLocker(rdb redis.UniversalClient, o Options) *locker {
	process := rand.Text()
	s := newStore(rdb, process)
	ctx, cancel := context.WithCancel(context.Background())
	log, counts := logonce.New(o.Logger, "lock: "), &counters{}
	l := &locker{
		process: process, redis: s, watchdog: newWatchdog(s, log, counts), counts: counts, log: log, logger: o.Logger,
		ctx: ctx, cancel: cancel, closed: make(chan struct{}),
		rooms: map[roomKey]*waitRoom{}, entries: map[string]*waitRoom{}, attaching: map[Token]bool{},
	}
	redisconn.Advise(rdb, l.log)
	s.late = l.lateReply
	l.link = redisconn.OpenLink(rdb)
	l.unsubscribe = l.link.Subscribe(keys.LockChannels+process, redisconn.Subscriber{
		Message: l.hear,
		Gap:     l.gap,
		Live:    func(bool) { l.noteHearing() },
	})
	return l
}

// newOwner makes the name of an acquisition, which is never used again. Whoever knows it can
// give the lock back, so those who have the Token of one lock must not be able to guess
// another's.
func (l *locker) newOwner() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // it does not fail
	name := make([]byte, 0, 64)
	name = append(append(name, l.process...), ':')
	return string(base32.StdEncoding.WithPadding(base32.NoPadding).AppendEncode(name, random[:]))
}

// hear gets the message that an entry of ours has been granted its lock or, with the name
// of this process for the entry, that what we had of a lock was taken from us. An entry
// has a colon in it, and this name has none.
func (l *locker) hear(payload string) {
	at := strings.LastIndexByte(payload, ' ')
	if at < 0 {
		return
	}
	record, entry := payload[:at], payload[at+1:]
	if entry == l.process {
		l.background(func(ctx context.Context) error { l.watchdog.doubt(ctx, record); return nil })
		return
	}
	l.mu.Lock()
	room := l.entries[entry]
	l.mu.Unlock()
	if room != nil {
		room.call()
		return
	}
	// Nobody waits under this entry any more: a command that was held up on its way
	// has put it back in the queue. Pass the lock on.
	t := targetOf("", keys.LockOf(record), exclusive, 1)
	l.background(func(ctx context.Context) error { return l.redis.leave(ctx, &t, entry) })
}

// gap is told that messages may have been missed: grants, and perhaps more. A
// server that has restarted or failed over may not know our leases. They are made due first:
// a Locker that hears has nothing left to check.
func (l *locker) gap() {
	l.watchdog.renewAll()
	l.mu.Lock()
	l.subscribed = true
	for _, room := range l.rooms {
		room.call()
	}
	l.mu.Unlock()
	l.noteHearing()
}

// hears reports whether messages of grants arrive.
func (l *locker) hears() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hearsLocked()
}

// hearsLocked is hears for callers that hold mu.
func (l *locker) hearsLocked() bool { return l.subscribed && l.link.Live() }

// noteHearing tells the log when messages cease to arrive, if somebody waits for one: a Locker whose calls do not wait, such as a server's of a Quorum, misses none.
func (l *locker) noteHearing() {
	hears := l.hears()
	l.mu.Lock()
	changed, waited := hears != l.hearing, len(l.rooms) > 0
	l.hearing = hears
	l.mu.Unlock()
	if changed && !hears && waited && !l.isClosed() {
		l.logNoMessages(l.logger)
	}
}

func (l *locker) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// close ends everything, in this order:
//
//  1. closed: callers who wait leave, new ones are refused
//  2. leases end and are given back
//  3. the last caller has left its room, and so the queue in Redis, and the last call has
//     begun to give back what it was granted in vain
//  4. nothing more is started; what runs in the background ends
//
// After a second, 2 to 4 are cut short.
func (l *locker) close() { l.ending.Do(l.end) } // a second call waits for the first

func (l *locker) end() {
	l.mu.Lock()
	l.closing = true
	close(l.closed)
	l.mu.Unlock()

	patience := time.AfterFunc(time.Second, l.cancel)
	defer patience.Stop()
	for _, g := range l.watchdog.all() {
		l.watchdog.lose(g, ErrClosed)
		l.releaseLater(g)
	}
	l.awaitCalls()
	l.unsubscribe()
	<-l.tasks.Close()
	l.cancel()
	l.watchdog.stop()
	l.link.Close()
}

// awaitCalls waits until nobody waits and no call is under way, so that entries are taken out
// of the queues, and grants given back, before the end.
func (l *locker) awaitCalls() {
	for l.ctx.Err() == nil {
		l.mu.Lock()
		n := len(l.rooms)
		l.mu.Unlock()
		if n == 0 && l.calls.Load() == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// background runs fn in a goroutine that Close waits for.
func (l *locker) background(fn func(ctx context.Context) error) {
	l.tasks.Go(func() { contain.Call(func() error { return fn(l.ctx) }, func(error) {}) })
}
