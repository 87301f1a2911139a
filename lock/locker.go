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

// A locker is the state that a Locker shares with the Lockers that With makes.
type locker struct {
	process  string                // the locker's name in the store: 128 random bits, so it is unique
	entered  atomic.Int64          // numbers the entries in queues
	calls    atomic.Int64          // calls in progress that may be granted a lock
	rdb      redis.UniversalClient // nil: the locks are in this process
	store    store
	watchdog *watchdog
	counts   *counters
	log      *logonce.Log

	logger          *slog.Logger
	checkedServer   atomic.Bool // adviseOnce has looked whether the server evicts keys
	checkedReplicas atomic.Bool // adviseOnce has looked whether the server has replicas

	ctx    context.Context // of the background tasks
	cancel context.CancelFunc
	closed chan struct{} // closed by Close, as its first step

	mu         sync.Mutex // guards the fields below, and those fields of wait rooms that say so
	rooms      map[roomKey]*waitRoom
	entries    map[string]*waitRoom // the rooms by their entry in the queue
	attaching  map[Token]attaching  // by the token that an Attach is about to take
	subscribed bool                 // the channel of this process has been subscribed to
	hearing    bool                 // the result of hears in the last noteHearing
	closing    bool
	ending     sync.Once
	tasks      wait.Tasks // background tasks
}

func newLocker(rdb redis.UniversalClient, o Options) *locker {
	process := rand.Text()
	if rdb == nil {
		return openLocker(process, nil, &localStore{thisProcess, process}, o)
	}
	return openLocker(process, rdb, newRedisStore(rdb, process), o)
}

// openLocker returns the locker of a process whose locks are in s.
func openLocker(process string, rdb redis.UniversalClient, s store, o Options) *locker {
	ctx, cancel := context.WithCancel(context.Background())
	log, counts := logonce.New(o.Logger, "lock: "), &counters{}
	l := &locker{
		process: process, rdb: rdb, store: s, watchdog: newWatchdog(s, log, counts), counts: counts, log: log, logger: o.Logger,
		ctx: ctx, cancel: cancel, closed: make(chan struct{}),
		rooms: map[roomKey]*waitRoom{}, entries: map[string]*waitRoom{}, attaching: map[Token]attaching{},
	}
	if rdb != nil {
		redisconn.Advise(rdb, l.log)
	}
	s.open(l)
	return l
}

// newOwner returns a new owner name, for one acquisition. Anyone who knows the name can
// release the lock, so it is random: a Token contains one, and must not help to guess
// another.
func (l *locker) newOwner() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // it does not fail
	name := make([]byte, 0, 64)
	name = append(append(name, l.process...), ':')
	return string(base32.StdEncoding.WithPadding(base32.NoPadding).AppendEncode(name, random[:]))
}

// hear handles a message, which is a record and an entry: the entry, one of ours, has been
// granted that lock. With the name of this process in place of the entry, ForceUnlock has
// taken the lock from this process. An entry has a colon in it, and this name has none.
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
	// Nobody waits under this entry any more: a command that was delayed has put it back
	// in the queue. Pass the lock on.
	t := targetOf("", keys.LockOf(record), exclusive, 1)
	l.background(func(ctx context.Context) error { return l.store.leave(ctx, &t, entry) })
}

// gap is called when messages may have been missed, such as grants. A server that has
// restarted or failed over may not know our leases, so gap makes them due. It does that
// before it sets subscribed: when hears reports true, no lease is left to check.
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
func (l *locker) hearsLocked() bool { return l.subscribed && l.store.live() }

// noteHearing logs when messages cease to arrive while a caller waits for one. A Locker whose
// calls do not wait, such as a Quorum's, needs no messages.
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

// close stops the locker, in this order:
//
//  1. it closes closed: waiting callers leave, new ones are refused
//  2. it ends and releases the leases
//  3. it waits until the last caller has left its room, and so the queue in Redis, and the
//     last call has begun to release a grant that came too late
//  4. it starts no more background tasks, and waits for those that run
//
// After 1 s, steps 2 to 4 are cut short.
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
	l.store.silence()
	<-l.tasks.Close()
	l.cancel()
	l.watchdog.stop()
	l.store.close()
}

// awaitCalls waits until no caller waits and no call is in progress, so that their entries
// leave the queues and unwanted grants are released before the background tasks end.
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
