package fleet

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// The kinds of messages.
const (
	invalidated = 'i' // the value and the lease of the id have ended
	wakeUp      = 'w' // the lease of the id has ended, and a caller waits for it
	cleared     = 'c' // everything has been cleared, or the counters whose numbers follow; receivers read the times
)

// message returns a message of a kind about id, with the name of this group as its sender.
func (s *store) message(kind byte, id string) string {
	return string(kind) + s.self + id
}

// A subscription receives a group's messages from the link of its client. The link calls
// its methods on one goroutine, in the order of the messages.
type subscription struct {
	link  *redisconn.Link
	unsub func()
	store *store
	self  string
	to    Messages
	epoch *epoch
	log   *logonce.Log
	deaf  bool                  // a connection has failed, and no message has come since
	cause atomic.Pointer[error] // why the last connection failed

	mu      sync.Mutex         // guards waiters, and next of each
	waiters map[string]*Waiter // by id: the first Waiter of a list
}

func subscribe(rdb redis.UniversalClient, s *store, to Messages, log *logonce.Log) *subscription {
	sub := &subscription{link: redisconn.OpenLink(rdb), store: s, self: s.self, to: to, epoch: s.epoch, log: log, waiters: map[string]*Waiter{}}
	sub.unsub = sub.link.Subscribe(s.channel, redisconn.Subscriber{
		Message: sub.receive, Gap: sub.missed, Live: sub.live, Failed: sub.failed,
	})
	return sub
}

func (s *subscription) end() {
	s.unsub()
	s.link.Close()
}

// receive handles a message. It ignores a message of another form, because any client of
// Redis may publish on the channel.
func (s *subscription) receive(message string) {
	sender := 1 + len(s.self)
	if len(message) < sender {
		return
	}
	failpoint.At("message")
	kind, from, id := message[0], message[1:sender], message[sender:]
	if kind == cleared && from != s.self {
		s.cleared(id)
		return
	}
	// This group's own invalidations were handled when they were made. Handling
	// them again would drop values that have been filled since.
	if kind == invalidated && from != s.self && s.to.Invalidated != nil {
		s.to.Invalidated(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wakeAll(s.waiters[id])
}

// cleared handles a message about a clear; names has the numbers of the cleared counters, none for a Clear.
func (s *subscription) cleared(names string) {
	var numbers []uint32
	for name := range strings.SplitSeq(names, ",") {
		n, err := strconv.ParseUint(name, 10, 32)
		if err != nil { // no number: it is a Clear
			s.epoch.risen()
			return
		}
		if n < allCounters {
			numbers = append(numbers, uint32(n))
		}
	}
	s.epoch.tagsCleared(numbers)
}

// missed handles a gap in the messages: any id may have been invalidated, and any waiter may
// have missed its wake-up. If a failover has caused the gap, the new master may lack invalidations
// that wait only for replicas. No error may tell of the failover, since go-redis repeats commands
// to which the dead master did not reply.
func (s *subscription) missed() {
	s.store.pending.doubtAll()
	if s.to.Missed != nil {
		s.to.Missed() // before the epoch, which calls Live as soon as the clears are read
	}
	s.epoch.missed()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, first := range s.waiters {
		wakeAll(first)
	}
}

func wakeAll(w *Waiter) {
	for ; w != nil; w = w.next {
		wait.Wake(w.wake)
	}
}

func (s *subscription) live(live bool) {
	if live && s.deaf {
		s.deaf = false
		s.log.Info("messages of other processes arrive again")
	}
	if live && s.to.Missed != nil {
		s.to.Missed() // a connection may have lost messages between its subscription and its first heartbeat
	}
	s.epoch.setLive(live)
}

func (s *subscription) failed(err error) {
	s.deaf = true
	s.cause.Store(&err)
	s.epoch.failed()
	logRedisError(s.log, "no messages of other processes arrive", err)
}

// listen makes each message about the id of w wake w, until unlisten is called.
func (s *subscription) listen(w *Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.next, s.waiters[w.id] = s.waiters[w.id], w
}

func (s *subscription) unlisten(w *Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters[w.id] != w {
		for before := s.waiters[w.id]; before != nil; before = before.next {
			if before.next == w {
				before.next = w.next
			}
		}
		return
	}
	if s.waiters[w.id] = w.next; w.next == nil {
		delete(s.waiters, w.id)
	}
}
