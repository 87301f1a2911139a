package redisconn

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/wait"
)

// Messages
//
// Pub/sub delivers at most once: a message that is published while the connection is
// down is lost, and a connection whose packets disappear looks like one with no
// messages. So a Link sends itself a heartbeat through Redis every second. When three
// heartbeats are missing it reports that it is not live and opens another connection,
// and whenever a channel has been subscribed, for the first time or again, it reports
// a gap. go-redis' own Channel does not notice that packets disappear, reports no gap
// to its reader, and drops messages to a slow reader.
//
// Before a PubSub returns the error of a connection that has ended, it opens another one and
// holds its mutex meanwhile. If the server's host is gone, that takes as long as the client's
// dialler takes. So the code that decides whether the link is live calls no PubSub: one
// goroutine receives, and another waits for its messages and for heartbeats that are missing.
//
// On a cluster a message crosses the bus to all nodes. Sharded pub/sub (SPUBLISH) avoids
// that and costs each process a connection to every master in place of one. Since all
// processes receive all messages, that is no gain: on three masters with a replica each,
// an invalidation took 96, 160 and 317 µs of the servers' time with 1, 10 and 50
// processes, and 54, 143 and 407 µs by SPUBLISH (go test ./internal/clients -run '^$'
// -bench Messages -benchtime 3000x). A script can publish only to channels of its own
// node, so messages for one process, such as a lock's grant, cannot be sharded.

const (
	beatEvery    = time.Second
	maxSilence   = 3 * beatEvery         // without a heartbeat for this long the link is not live
	firstConnect = 10 * time.Millisecond // between the first two attempts to connect
	maxConnect   = time.Second           // between any two attempts to connect
	maxBeats     = 3                     // heartbeats without a reply at a time
	closeTime    = time.Second           // how long Close waits for connections that are being opened
)

// errSilent is the error of a connection over which no heartbeat came back for maxSilence.
var errSilent = errors.New("no heartbeat came back")

// A Subscriber receives the messages of one channel. Its functions run on the link's
// only receiving goroutine, in the order of the messages, and must not block: a slow
// one delays the messages of all subscribers. Each may be nil.
type Subscriber struct {
	// Message is called with each message.
	Message func(payload string)
	// Gap is called when the channel has been subscribed, for the first time or
	// again: messages that were published before may be lost.
	Gap func()
	// Live is called when the link becomes live or stops being live, and after a Gap
	// if the link is live already. Before the first call the subscriber has to treat
	// the link as not live.
	Live func(live bool)
	// Failed is called with the error of a connection that has failed. The link then
	// opens another.
	Failed func(err error)
}

// A Link is the one subscription connection that all users of a client share. It
// may be used concurrently.
type Link struct {
	rdb  redis.UniversalClient
	self string // the channel of this link's heartbeat
	stop context.CancelFunc
	done sync.WaitGroup // the two goroutines of the link, listen and tend; listen calls the subscribers
	side sync.WaitGroup // calls of a PubSub or the client, which may take as long as the client's dialler
	kick chan struct{}  // wakes the tending goroutine before its next beat

	connecting atomic.Int32 // heartbeats by which connect is opening connections

	mu      sync.Mutex                          // guards what follows
	subs    map[string]map[*Subscriber]struct{} // by channel
	changed map[string]struct{}                 // channels to subscribe or unsubscribe on conn
	conn    *redis.PubSub                       // nil between two connections
	live    bool                                // a heartbeat came back over conn and none is overdue
}

var links registry[redis.UniversalClient, *Link]

// OpenLink returns the link of rdb, which all users of rdb share; the first call starts
// it. OpenLink does not wait for a connection. Each OpenLink needs a Close.
func OpenLink(rdb redis.UniversalClient) *Link {
	return links.open(rdb, rdb, func() *Link { return startLink(rdb) })
}

func startLink(rdb redis.UniversalClient) *Link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{
		rdb:     rdb,
		self:    keys.Heartbeat(rand.Text()),
		stop:    cancel,
		kick:    make(chan struct{}, 1),
		subs:    map[string]map[*Subscriber]struct{}{},
		changed: map[string]struct{}{},
	}
	l.done.Go(func() { l.listen(ctx) })
	l.done.Go(func() { l.tend(ctx) })
	return l
}

// Close releases the link. The last user's Close closes the connection, waits until no
// subscriber is being called, and waits for at most a second for connections that are being
// opened: they end when the client's dialler or its timeouts let them.
func (l *Link) Close() {
	if !links.release(l.rdb, l.rdb) {
		return
	}
	l.stop()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		l.drop(conn) // ends a Receive that waits; it waits itself while conn opens a connection
	}
	l.done.Wait()
	ended := make(chan struct{})
	go func() { l.side.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(closeTime):
	}
}

// Subscribe starts to pass the messages of channel to s, until unsubscribe is called; a
// call of s that runs at that moment may finish later. Subscribe does not wait for
// Redis: the call of s.Gap tells that the channel has been subscribed.
func (l *Link) Subscribe(channel string, s Subscriber) (unsubscribe func()) {
	sub := &s
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subs[channel] == nil {
		l.subs[channel] = map[*Subscriber]struct{}{}
	}
	l.subs[channel][sub] = struct{}{}
	l.change(channel)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subs[channel], sub)
		if len(l.subs[channel]) == 0 {
			delete(l.subs, channel)
		}
		l.change(channel)
	}
}

// Live reports whether a heartbeat came back within the last three seconds over the
// present connection.
func (l *Link) Live() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live
}

// change has the tending goroutine subscribe or unsubscribe channel, as subs says. A call
// of Redis here could block Subscribe while the connection is being opened.
func (l *Link) change(channel string) {
	l.changed[channel] = struct{}{}
	wait.Wake(l.kick)
}

// listen keeps a connection open until ctx ends.
func (l *Link) listen(ctx context.Context) {
	retries := wait.Backoff{First: firstConnect, Max: maxConnect}
	for ctx.Err() == nil {
		heard := false
		err := <-contain.Go(func() (err error) { // a hook of the user may panic while a connection is dialled
			heard, err = l.follow(ctx)
			return err
		})
		if heard {
			retries.Reset()
		}
		l.setLive(false)
		l.failed(ctx, err)
		retries.Sleep(ctx)
	}
}

// follow opens a connection and delivers its messages, until the connection fails or no
// heartbeat comes for maxSilence. heard reports whether anything was received.
func (l *Link) follow(ctx context.Context) (heard bool, err error) {
	own, cancel := context.WithCancel(ctx)
	defer cancel()               // ends conn's attempt to connect again, if the client's dialler heeds contexts
	conn := l.rdb.Subscribe(own) // opens no connection yet
	defer l.drop(conn)

	l.mu.Lock()
	if ctx.Err() != nil { // Close may have looked at l.conn already and would not see this connection
		l.mu.Unlock()
		return false, nil
	}
	l.conn = conn
	channels := []string{l.self}
	for channel := range l.subs {
		channels = append(channels, channel)
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.conn = nil
		l.mu.Unlock()
	}()

	select {
	case err := <-l.run(func() error { return conn.Subscribe(own, channels...) }):
		if err != nil {
			return false, err
		}
	case <-ctx.Done():
		return false, nil
	}
	received := make(chan any)
	ended := l.run(func() error { return receive(own, conn, received) })
	silence := time.NewTimer(maxSilence)
	defer silence.Stop()
	for {
		select {
		case <-silence.C: // the heartbeat is missing, even if other messages arrive
			return heard, errSilent
		case err := <-ended:
			return heard, err
		case news := <-received:
			heard = true
			switch news := news.(type) {
			case *redis.Subscription:
				l.subscribed(news)
			case *redis.Message:
				if news.Channel == l.self {
					silence.Reset(maxSilence)
					l.setLive(true)
				} else {
					l.deliver(news)
				}
			}
		}
	}
}

// receive sends what conn receives on to, until conn fails or ctx ends.
func receive(ctx context.Context, conn *redis.PubSub, to chan<- any) error {
	for {
		news, err := conn.Receive(ctx)
		if err != nil {
			return err
		}
		select {
		case to <- news:
		case <-ctx.Done():
			return nil
		}
	}
}

// run runs fn, which calls a PubSub or the client, on a new goroutine, and sends its error. It
// contains panics, since a hook of the user may panic while a connection is opened.
func (l *Link) run(fn func() error) <-chan error {
	ended := make(chan error, 1)
	l.side.Go(func() { contain.Call(fn, func(err error) { ended <- err }) })
	return ended
}

// drop closes a connection without waiting for the end of the closing.
func (l *Link) drop(conn *redis.PubSub) { l.run(conn.Close) }

func (l *Link) subscribed(news *redis.Subscription) {
	if news.Kind != "subscribe" {
		return
	}
	if news.Channel == l.self {
		wait.Wake(l.kick) // send a heartbeat at once: users need not wait a second for Live
		return
	}
	live := l.Live() // changed only by this goroutine
	for _, s := range l.subscribers(news.Channel) {
		if s.Gap != nil {
			s.Gap()
		}
		if live && s.Live != nil {
			s.Live(true)
		}
	}
}

func (l *Link) deliver(m *redis.Message) {
	for _, s := range l.subscribers(m.Channel) {
		if s.Message != nil {
			s.Message(m.Payload)
		}
	}
}

// failed calls the subscribers' Failed with the error of a connection, unless Close has ended it.
func (l *Link) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	for _, s := range l.subscribers("") {
		if s.Failed != nil {
			s.Failed(err)
		}
	}
}

func (l *Link) setLive(live bool) {
	l.mu.Lock()
	same := l.live == live
	l.live = live
	l.mu.Unlock()
	if same {
		return
	}
	for _, s := range l.subscribers("") {
		if s.Live != nil {
			s.Live(live)
		}
	}
}

// subscribers returns the subscribers of channel, or all for "", so that their functions
// can be called without the mutex.
func (l *Link) subscribers(channel string) []*Subscriber {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []*Subscriber
	for name, subs := range l.subs {
		if name != channel && channel != "" {
			continue
		}
		for s := range subs {
			found = append(found, s)
		}
	}
	return found
}

// tend sends the heartbeats and carries changed subscriptions to the connection.
//
// A heartbeat times out after a second. Heartbeats share the pool with all other commands.
// When a firewall has forgotten the pool's connections, each dead one costs one command its
// timeout. With a longer timeout the link's new connection would get no heartbeat within
// maxSilence, and be replaced too.
func (l *Link) tend(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	beats := New(l.rdb, beatEvery, maxBeats)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-l.kick:
		}
		l.apply(ctx)
		_, _ = Do(ctx, beats, beatEvery, func(ctx context.Context) (int64, error) {
			return beats.Client().Publish(ctx, l.self, "").Result()
		}, nil) // a failure shows as a heartbeat that does not come back
		l.connect(ctx, &beats.client)
	}
}

// connect opens pool connections by heartbeats with the client's own timeouts: one for each operation that ran
// out of time, up to maxTrips, unless some are still being opened. An operation that finds no connection opens
// one, and loses it half opened when its time is up. Where that time is always too short (TLS far away,
// credentials that are fetched) no operation would ever get a connection.
func (l *Link) connect(ctx context.Context, by *client) {
	n := by.tookLate()
	if l.connecting.Load() > 0 {
		return
	}
	for range min(n, maxTrips) {
		l.connecting.Add(1)
		l.run(func() error {
			defer l.connecting.Add(-1)
			return l.rdb.Publish(ctx, l.self, "").Err()
		})
	}
}

// apply subscribes and unsubscribes the channels that have changed. Without a
// connection it does nothing: the next one subscribes all channels of subs.
func (l *Link) apply(ctx context.Context) {
	l.mu.Lock()
	conn := l.conn
	var wanted, unwanted []string
	for channel := range l.changed {
		if len(l.subs[channel]) > 0 {
			wanted = append(wanted, channel)
		} else {
			unwanted = append(unwanted, channel)
		}
	}
	clear(l.changed)
	l.mu.Unlock()
	if conn == nil {
		return
	}
	applied := l.run(func() (err error) {
		if len(wanted) > 0 {
			err = conn.Subscribe(ctx, wanted...)
		}
		if len(unwanted) > 0 {
			err = errors.Join(err, conn.Unsubscribe(ctx, unwanted...))
		}
		return err
	})
	select {
	case err := <-applied:
		if err == nil {
			return
		}
	case <-time.After(beatEvery): // conn is connecting again; the heartbeats must go on
	case <-ctx.Done():
	}
	l.drop(conn) // the next connection starts from subs
}
