// Package hub keeps one pub/sub subscription per Redis client and tells its
// users what they heard, when they may have missed something, and when the link
// is silent.
//
// Pub/sub is at most once: what is published while the link is down is lost, and
// a link whose packets disappear looks like one with nothing to say. So the hub
// sends itself a heartbeat through Redis every second. When three are missing it
// reports the link as not live and opens another one, and whenever a channel is
// subscribed anew it reports a gap. go-redis' own Channel notices neither a
// black-holed link nor, to its reader, a gap, and drops messages to a slow reader.
package hub

import (
	"context"
	"crypto/rand"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/bounded"
	"github.com/levee-go/levee/internal/keys"
)

const (
	beatEvery = time.Second
	silence   = 3 * beatEvery // without a heartbeat for this long the link is not live
	maxPause  = time.Second   // between two attempts to connect
	hanging   = 3             // heartbeats that may wait for an answer while another is sent
)

// errSilent ends a link over which no heartbeat comes back.
var errSilent = errors.New("no heartbeat came back")

// A Subscriber says what to do with the news of one channel. Its functions run
// on the hub's only receiving goroutine, in the order of the messages, and must
// not block: a slow one holds up everybody's messages. Each may be nil.
type Subscriber struct {
	// Message gets each message.
	Message func(payload string)
	// Gap is called when the channel has been subscribed, for the first time or
	// again: what was published before may not have been heard.
	Gap func()
	// Health is called when the link becomes live or stops being so.
	Health func(live bool)
	// Failed is called when a link has failed, with its error. Another is tried.
	Failed func(err error)
}

// A Hub is one subscription connection. It may be used concurrently.
type Hub struct {
	rdb  redis.UniversalClient
	self string // the channel of our own heartbeat
	stop context.CancelFunc
	done sync.WaitGroup
	kick chan struct{} // wakes the tending goroutine before its next beat

	mu      sync.Mutex                          // guards what follows
	users   int                                 // Open calls without their Close
	subs    map[string]map[*Subscriber]struct{} // by channel
	changed map[string]struct{}                 // channels to subscribe or unsubscribe on the link
	link    *redis.PubSub                       // nil while there is none
	live    bool                                // a heartbeat came back over this link and none is overdue
}

// hubs holds the running hubs by client, so that everybody who uses a client
// shares its one subscription.
var hubs = struct {
	sync.Mutex
	of map[redis.UniversalClient]*Hub
}{of: map[redis.UniversalClient]*Hub{}}

// Open returns the hub of rdb, which starts with its first user. It does not
// wait for a connection. Each Open needs a Close.
func Open(rdb redis.UniversalClient) *Hub {
	if !reflect.ValueOf(rdb).Comparable() {
		return start(rdb) // a client of the user's own making that cannot be a map key
	}
	hubs.Lock()
	defer hubs.Unlock()
	h := hubs.of[rdb]
	if h == nil {
		h = start(rdb)
		hubs.of[rdb] = h
	}
	h.users++
	return h
}

func start(rdb redis.UniversalClient) *Hub {
	ctx, cancel := context.WithCancel(context.Background())
	h := &Hub{
		rdb:     rdb,
		self:    keys.Heartbeat(rand.Text()),
		stop:    cancel,
		kick:    make(chan struct{}, 1),
		subs:    map[string]map[*Subscriber]struct{}{},
		changed: map[string]struct{}{},
	}
	h.done.Go(func() { h.listen(ctx) })
	h.done.Go(func() { h.tend(ctx) })
	return h
}

// Close ends this user's share in the hub. With the last one it closes the link
// and waits for the hub's goroutines; if the server hangs while a connection is
// being opened, that is as long as the client's own timeouts last.
func (h *Hub) Close() {
	hubs.Lock()
	h.users--
	last := h.users <= 0
	if last && reflect.ValueOf(h.rdb).Comparable() {
		delete(hubs.of, h.rdb)
	}
	hubs.Unlock()
	if !last {
		return
	}
	h.stop()
	h.mu.Lock()
	link := h.link
	h.mu.Unlock()
	if link != nil {
		_ = link.Close() // ends a Receive that waits
	}
	h.done.Wait()
}

// Subscribe starts to deliver the news of channel to s and returns a function
// that ends it; a call of s that is under way then may still finish. Subscribe
// does not wait for Redis: s.Gap tells when the subscription stands.
func (h *Hub) Subscribe(channel string, s Subscriber) (unsubscribe func()) {
	sub := &s
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[channel] == nil {
		h.subs[channel] = map[*Subscriber]struct{}{}
	}
	h.subs[channel][sub] = struct{}{}
	h.change(channel)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs[channel], sub)
		if len(h.subs[channel]) == 0 {
			delete(h.subs, channel)
		}
		h.change(channel)
	}
}

// Live reports whether a heartbeat came back within the last three seconds and
// over the link that stands now.
func (h *Hub) Live() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.live
}

// change has the tending goroutine bring the link in line with subs. A call to
// Redis here could block our caller while the link is being opened.
func (h *Hub) change(channel string) {
	h.changed[channel] = struct{}{}
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// listen keeps a link open until ctx ends.
func (h *Hub) listen(ctx context.Context) {
	pause := 10 * time.Millisecond
	for ctx.Err() == nil {
		heard, err := h.follow(ctx)
		if heard {
			pause = 10 * time.Millisecond
		}
		h.setLive(false)
		h.failed(ctx, err)
		sleep(ctx, pause)
		pause = min(2*pause, maxPause)
	}
}

// follow opens a link and delivers what comes over it, until it fails or stays
// silent. It reports whether anything was heard.
func (h *Hub) follow(ctx context.Context) (heard bool, err error) {
	link := h.rdb.Subscribe(ctx) // opens no connection yet
	defer link.Close()

	h.mu.Lock()
	if ctx.Err() != nil { // Close has passed by and would not see this link
		h.mu.Unlock()
		return false, nil
	}
	h.link = link
	channels := []string{h.self}
	for channel := range h.subs {
		channels = append(channels, channel)
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.link = nil
		h.mu.Unlock()
	}()

	if err := link.Subscribe(ctx, channels...); err != nil {
		return false, err
	}
	beat := time.Now()
	for { // other messages may come on while the heartbeat does not
		left := silence - time.Since(beat)
		if left <= 0 {
			return heard, errSilent
		}
		news, err := link.ReceiveTimeout(ctx, left)
		if err != nil {
			return heard, err
		}
		heard = true
		switch news := news.(type) {
		case *redis.Subscription:
			h.subscribed(news)
		case *redis.Message:
			if news.Channel == h.self {
				beat = time.Now()
				h.setLive(true)
			} else {
				h.deliver(news)
			}
		}
	}
}

func (h *Hub) subscribed(news *redis.Subscription) {
	if news.Kind != "subscribe" {
		return
	}
	if news.Channel == h.self {
		select {
		case h.kick <- struct{}{}: // beat at once: users need not wait a second for Live
		default:
		}
		return
	}
	for _, s := range h.subscribers(news.Channel) {
		if s.Gap != nil {
			s.Gap()
		}
	}
}

func (h *Hub) deliver(m *redis.Message) {
	for _, s := range h.subscribers(m.Channel) {
		if s.Message != nil {
			s.Message(m.Payload)
		}
	}
}

// failed tells the subscribers why a link has ended, unless it was told to.
func (h *Hub) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	for _, s := range h.subscribers("") {
		if s.Failed != nil {
			s.Failed(err)
		}
	}
}

func (h *Hub) setLive(live bool) {
	h.mu.Lock()
	same := h.live == live
	h.live = live
	h.mu.Unlock()
	if same {
		return
	}
	for _, s := range h.subscribers("") {
		if s.Health != nil {
			s.Health(live)
		}
	}
}

// subscribers returns those of channel, or all for "". The functions of a
// subscriber are called outside the lock.
func (h *Hub) subscribers(channel string) []*Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []*Subscriber
	for name, subs := range h.subs {
		if name != channel && channel != "" {
			continue
		}
		for s := range subs {
			found = append(found, s)
		}
	}
	return found
}

// tend sends the heartbeats and carries changed subscriptions to the link.
func (h *Hub) tend(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	publisher, run := punctual(h.rdb), bounded.NewRunner(beatEvery, hanging)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-h.kick:
		}
		h.apply(ctx)
		_, _ = bounded.Do(ctx, run, func(ctx context.Context) (int64, error) {
			return publisher.Publish(ctx, h.self, "").Result()
		}, nil) // a failure shows as a heartbeat that does not come back
	}
}

// punctual returns a client of the same connections that does not wait for an
// answer for longer than a beat. Heartbeats use the connections of all other
// commands, and when a firewall has forgotten those, each is found out by the
// command that waits on it: with the client's own timeouts, or none, a new link
// would stay without a heartbeat for long and be taken for a silent one.
func punctual(rdb redis.UniversalClient) redis.Cmdable {
	if client, ok := rdb.(*redis.Client); ok {
		return client.WithTimeout(beatEvery)
	}
	return rdb
}

// apply subscribes and unsubscribes what has changed. Without a link there is
// nothing to do: the next one starts from subs.
func (h *Hub) apply(ctx context.Context) {
	h.mu.Lock()
	link := h.link
	var wanted, unwanted []string
	for channel := range h.changed {
		if len(h.subs[channel]) > 0 {
			wanted = append(wanted, channel)
		} else {
			unwanted = append(unwanted, channel)
		}
	}
	clear(h.changed)
	h.mu.Unlock()
	if link == nil {
		return
	}
	var err error
	if len(wanted) > 0 {
		err = link.Subscribe(ctx, wanted...)
	}
	if len(unwanted) > 0 {
		err = errors.Join(err, link.Unsubscribe(ctx, unwanted...))
	}
	if err != nil {
		_ = link.Close() // the next link starts from subs
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
