package lock

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
)

// A core is what a Locker and those made of it by With share.
type core struct {
	process string // 128 random bits: no two processes or Lockers are the same
	count   atomic.Int64
	store   server
	keeper  *keeper
	journal *logonce.Log
	hub     *redisconn.Link // nil for a Quorum, which does not wait in a queue
	unsub   func()
	hooks   Hooks // those of New, for what concerns all
	log     *slog.Logger
	looked  atomic.Bool // at the server's settings
	copies  atomic.Bool // looked at its replicas
	ctx     context.Context
	cancel  context.CancelFunc
	closed  chan struct{}

	mu         sync.Mutex // guards what follows, and all rooms
	rooms      map[roomKey]*room
	entries    map[string]*room // by entry
	attaching  map[Token]bool   // tokens that an Attach is about to take
	subscribed bool
	pushing    bool
	closing    bool
	ended      bool
	tasks      sync.WaitGroup
}

func newCore(rdb redis.UniversalClient, o Options) *core {
	process := rand.Text()
	c := bareCore(process, newStore(rdb, process), o)
	c.hub = redisconn.OpenLink(rdb)
	c.unsub = c.hub.Subscribe(keys.LockChannels+process, redisconn.Subscriber{
		Message: c.hear,
		Gap:     c.gap,
		Live:    func(bool) { c.health() },
	})
	return c
}

// bareCore makes a core that hears of nothing.
func bareCore(process string, s server, o Options) *core {
	ctx, cancel := context.WithCancel(context.Background())
	j := logonce.New(o.Logger, "lock: ")
	return &core{
		process: process, store: s, keeper: newKeeper(s, j), journal: j, hooks: o.Hooks, log: o.Logger,
		ctx: ctx, cancel: cancel, closed: make(chan struct{}),
		rooms: map[roomKey]*room{}, entries: map[string]*room{}, attaching: map[Token]bool{},
	}
}

// owner makes the name of an acquisition, never used again.
func (c *core) owner() string { return c.process + ":" + strconv.FormatInt(c.count.Add(1), 36) }

// hear gets the news that an entry of ours has been granted its lock.
func (c *core) hear(payload string) {
	at := strings.LastIndexByte(payload, ' ')
	if at < 0 {
		return
	}
	c.mu.Lock()
	rm := c.entries[payload[at+1:]]
	c.mu.Unlock()
	if rm != nil {
		rm.call()
		return
	}
	// Nobody waits under this entry any more: a command that was long under way
	// has brought it back. Pass the lock on.
	record, entry := payload[:at], payload[at+1:]
	t := target{keys: keys.LockOf(record), places: 1}
	c.background(func(ctx context.Context) error { return c.store.leave(ctx, &t, entry) })
}

// gap is told that messages may have been missed: grants, and perhaps more than
// messages, since a server that has failed over or started anew may not know our
// leases.
func (c *core) gap() {
	c.mu.Lock()
	c.subscribed = true
	for _, rm := range c.rooms {
		rm.call()
	}
	c.mu.Unlock()
	c.keeper.renewAll()
	c.health()
}

// push reports whether grants are heard.
func (c *core) push() bool {
	live := c.hub.Live()
	c.mu.Lock()
	defer c.mu.Unlock()
	return live && c.subscribed
}

func (c *core) health() {
	live := c.push()
	c.mu.Lock()
	changed := live != c.pushing
	c.pushing = live
	c.mu.Unlock()
	if changed && !live && !c.isClosed() {
		c.noteDeaf(c.log)
	}
	if changed && c.hooks.Push != nil {
		c.hooks.Push(live)
	}
}

func (c *core) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *core) close() {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		<-c.ctx.Done()
		return
	}
	c.closing = true
	close(c.closed)
	c.mu.Unlock()

	over := time.AfterFunc(time.Second, c.cancel) // if the server does not answer
	defer over.Stop()
	for _, h := range c.keeper.all() {
		c.background(func(ctx context.Context) error {
			h.lose(ErrClosed)
			return c.giveBack(ctx, h, 0)
		})
	}
	c.empty()
	if c.hub != nil {
		c.unsub()
	}
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.tasks.Wait()
	c.cancel()
	c.keeper.stop()
	if c.hub != nil {
		c.hub.Close()
	}
}

// empty waits until those who waited have left, so that their entries are taken
// out of the queues before the end.
func (c *core) empty() {
	for c.ctx.Err() == nil {
		c.mu.Lock()
		n := len(c.rooms)
		c.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
