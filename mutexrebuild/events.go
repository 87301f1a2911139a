package mutexrebuild

import (
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/failpoint"
	"github.com/levee-go/levee/internal/hub"
)

// What a message says about its id.
const (
	invalidated = 'i' // its value and every right to publish one are gone
	wakeUp      = 'w' // its lease has ended, and somebody waits
)

// message is a kind, the process that sends it, and an id.
func (s *store) message(kind byte, id string) string {
	return string(kind) + s.self + id
}

// A subscription is a group's share in its client's hub.
type subscription struct {
	hub *hub.Hub
	end func()
}

// subscribe connects the group to the messages of its name.
func (g *Group[T]) subscribe(rdb redis.UniversalClient) subscription {
	h := hub.Open(rdb)
	var deaf atomic.Bool
	unsubscribe := h.Subscribe(g.store.channel, hub.Subscriber{
		Message: g.receive,
		Gap:     g.missed,
		Health: func(live bool) {
			if live && deaf.Swap(false) {
				g.journal.Info("messages of other processes arrive again")
			}
			if g.events.Health != nil {
				g.events.Health(live)
			}
		},
		Failed: func(err error) {
			deaf.Store(true)
			blame(g.journal, "no messages of other processes arrive", err)
		},
	})
	return subscription{hub: h, end: func() { unsubscribe(); h.Close() }}
}

// receive handles a message. What is not of this form is ignored: anybody may
// publish on the channel.
func (g *Group[T]) receive(message string) {
	sender := 1 + len(g.store.self)
	if len(message) < sender {
		return
	}
	failpoint.At("message")
	kind, from, id := message[0], message[1:sender], message[sender:]
	// This process's own invalidations have been handled where they were made.
	// Handling them again would drop what has been filled since.
	if kind == invalidated && from != g.store.self && g.events.Invalidated != nil {
		g.events.Invalidated(id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.flights[id]; f != nil {
		f.rouse()
	}
}

// missed handles a gap in the messages: any id may have been invalidated, and any
// flight may have missed its wake-up.
func (g *Group[T]) missed() {
	if g.events.Missed != nil {
		g.events.Missed()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.flights {
		f.rouse()
	}
}

// rouse makes a flight that waits look again. The caller holds Group.mu.
func (f *flight[T]) rouse() {
	select {
	case f.wake <- struct{}{}:
	default: // it does not wait, or has not yet seen the last one
	}
}
