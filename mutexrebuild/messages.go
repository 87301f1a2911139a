package mutexrebuild

import (
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// What a message says about its id.
const (
	invalidated = 'i' // its value and its lease are gone
	wakeUp      = 'w' // its lease has ended, and somebody waits
)

// message is a kind, the process that sends it, and an id.
func (s *store) message(kind byte, id string) string {
	return string(kind) + s.self + id
}

// A subscription is a group's share in the messages of its client. Its methods run
// on the link's goroutine, in the order of the messages.
type subscription struct {
	link  *redisconn.Link
	unsub func()
	self  string
	to    Messages
	log   *logonce.Log
	deaf  bool // a connection has failed, and no message has come since

	mu      sync.Mutex                            // guards waiters
	waiters map[string]map[chan struct{}]struct{} // by id: whom to wake
}

func subscribe(rdb redis.UniversalClient, s *store, to Messages, log *logonce.Log) *subscription {
	sub := &subscription{link: redisconn.OpenLink(rdb), self: s.self, to: to, log: log, waiters: map[string]map[chan struct{}]struct{}{}}
	sub.unsub = sub.link.Subscribe(s.channel, redisconn.Subscriber{
		Message: sub.receive, Gap: sub.missed, Live: sub.live, Failed: sub.failed,
	})
	return sub
}

func (s *subscription) end() {
	s.unsub()
	s.link.Close()
}

// receive handles a message. One that is not of our form is ignored: anybody may
// publish on the channel.
func (s *subscription) receive(message string) {
	sender := 1 + len(s.self)
	if len(message) < sender {
		return
	}
	failpoint.At("message")
	kind, from, id := message[0], message[1:sender], message[sender:]
	// This process's own invalidations have been handled where they were made.
	// Handling them again would drop what has been filled since.
	if kind == invalidated && from != s.self && s.to.Invalidated != nil {
		s.to.Invalidated(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for waiter := range s.waiters[id] {
		wait.Wake(waiter)
	}
}

// missed handles a gap in the messages: any id may have been invalidated, and any
// waiter may have missed its wake-up.
func (s *subscription) missed() {
	if s.to.Missed != nil {
		s.to.Missed()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, waiters := range s.waiters {
		for waiter := range waiters {
			wait.Wake(waiter)
		}
	}
}

func (s *subscription) live(live bool) {
	if live && s.deaf {
		s.deaf = false
		s.log.Info("messages of other processes arrive again")
	}
	if s.to.Live != nil {
		s.to.Live(live)
	}
}

func (s *subscription) failed(err error) {
	s.deaf = true
	logRedisError(s.log, "no messages of other processes arrive", err)
}

// listen returns a channel that is signalled by each message about id, until stop.
func (s *subscription) listen(id string) (wake chan struct{}, stop func()) {
	wake = make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters[id] == nil {
		s.waiters[id] = map[chan struct{}]struct{}{}
	}
	s.waiters[id][wake] = struct{}{}
	return wake, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiters[id], wake)
		if len(s.waiters[id]) == 0 {
			delete(s.waiters, id)
		}
	}
}
