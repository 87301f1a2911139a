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
// Pub/sub is at most once: a message that is published while the connection is
// down is lost, and a connection whose packets disappear looks like one with no
// messages. So a Link sends itself a heartbeat through Redis every second. When
// three are missing it reports that it is not live and opens another connection,
// and whenever a channel has been subscribed, for the first time or again, it
// reports a gap. go-redis' own Channel notices no connection whose packets
// disappear, does not tell its reader of a gap, and drops messages to a slow
// reader.
//
// Before a PubSub returns the error of a connection that has ended, it opens another one and
// holds its mutex meanwhile. If the server's host is gone, that takes as long as the dialler
// likes. So nothing that decides whether the link is live calls a PubSub: one goroutine
// receives, and another waits for it and for the end of the silence.
//
// On a cluster a message crosses the bus to all nodes. Sharded pub/sub (SPUBLISH) avoids
// that and costs each process a connection to every master in place of one. With all
// processes hearing all messages that is no gain: on three masters with a replica each,
// an invalidation took 96, 160 and 317 µs of the servers' time with 1, 10 and 50
// processes, and 54, 143 and 407 µs by SPUBLISH (go test ./internal/clients -run '^$'
// -bench Messages -benchtime 3000x). A script can publish only to channels of its own
// node, so messages for one process, such as a lock's grant, cannot be sharded.

const (
	beatEvery    = time.Second
	maxSilence   = 3 * beatEvery         // without a heartbeat for this long the link is not live
	firstConnect = 10 * time.Millisecond // between the first two attempts to connect
	maxConnect   = time.Second           // between any two
	maxBeats     = 3                     // that may wait for an answer while another is sent
	closeTime    = time.Second           // for the end of what the client does for the link
)

// errSilent ends a connection over which no heartbeat comes back.
var errSilent = errors.New("no heartbeat came back")

// A Subscriber is told about one channel. Its functions run on the link's only
// receiving goroutine, in the order of the messages, and must not block: a slow
// one holds up everybody's messages. Each may be nil.
type Subscriber struct {
	// Message gets each message.
	Message func(payload string)
	// Gap is called when the channel has been subscribed, for the first time or
	// again: messages that were published before may be lost.
	Gap func()
	// Live is called when the link becomes live or stops being so, and after the
	// first Gap if the link is live already. Until then a subscriber has to take
	// it as not live.
	Live func(live bool)
	// Failed is called when a connection has failed, with its error. The link opens
	// another.
	Failed func(err error)
}

// A Link is the one subscription connection that all users of a client share. It
// may be used concurrently.
type Link struct {
	rdb  redis.UniversalClient
	self string // the channel of our own heartbeat
	stop context.CancelFunc
	done sync.WaitGroup // the two goroutines that begin with the link; one of them calls the subscribers
	side sync.WaitGroup // calls of a PubSub or the client, which may take as long as the client's dialler likes
	kick chan struct{}  // wakes the tending goroutine before its next beat

	connecting atomic.Int32 // connections that are being made, see connect

	mu      sync.Mutex                          // guards what follows
	subs    map[string]map[*Subscriber]struct{} // by channel
	changed map[string]struct{}                 // channels to subscribe or unsubscribe on conn
	conn    *redis.PubSub                       // nil while there is none
	live    bool                                // a heartbeat came back over conn and none is overdue
}

var links registry[redis.UniversalClient, *Link]

// OpenLink returns the link of rdb, which starts with its first user. It does not
// wait for a connection. Each OpenLink needs a Close.
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

// Close gives the link up. The last user's Close closes the connection, waits for the call of
// a subscriber that runs, and for a second at most for connections that are being opened: they
// end when the client's dialler or its timeouts let them.
func (l *Link) Close() {
	if !links.release(l.rdb, l.rdb) {
		return
	}
	l.stop()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		l.drop(conn) // which ends a Receive that waits; while a connection is opened, it waits itself
	}
	l.done.Wait()
	ended := make(chan struct{})
	go func() { l.side.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(closeTime):
	}
}

// Subscribe starts to tell s about channel and returns a function that ends it; a
// call of s that is under way then may still finish. Subscribe does not wait for
// Redis: the call of s.Gap says that the subscription stands.
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

// Live reports whether a heartbeat came back within the last three seconds and
// over the connection that stands now.
func (l *Link) Live() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live
}

// change has the tending goroutine bring the connection in line with subs. A call
// to Redis here could block our caller while the connection is being opened.
func (l *Link) change(channel string) {
	l.changed[channel] = struct{}{}
	wait.Wake(l.kick)
}

// listen keeps a connection open until ctx ends.
func (l *Link) listen(ctx context.Context) {
	retries := wait.Backoff{First: firstConnect, Max: maxConnect}
	for ctx.Err() == nil {
		heard := false
		err := <-contain.Go(func() (err error) { // a hook of the user's may panic while a connection is dialled
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

// follow opens a connection and delivers its messages, until it fails or stays
// silent. It reports whether anything was heard.
func (l *Link) follow(ctx context.Context) (heard bool, err error) {
	own, cancel := context.WithCancel(ctx)
	defer cancel()               // ends an attempt of conn to connect again, if the client's dialler heeds it
	conn := l.rdb.Subscribe(own) // opens no connection yet
	defer l.drop(conn)

	l.mu.Lock()
	if ctx.Err() != nil { // Close has passed by and would not see this connection
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
		case <-silence.C: // other messages may come on while the heartbeat does not
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

// receive passes on what conn receives, until it fails or ctx ends.
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

// run runs fn, which calls a PubSub or the client, on a goroutine of its own. A hook of the
// user's may panic while a connection is opened.
func (l *Link) run(fn func() error) <-chan error {
	ended := make(chan error, 1)
	l.side.Go(func() { contain.Call(fn, func(err error) { ended <- err }) })
	return ended
}

// drop closes a connection and does not wait for that.
func (l *Link) drop(conn *redis.PubSub) { l.run(conn.Close) }

func (l *Link) subscribed(news *redis.Subscription) {
	if news.Kind != "subscribe" {
		return
	}
	if news.Channel == l.self {
		wait.Wake(l.kick) // beat at once: users need not wait a second for Live
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

// failed tells the subscribers why a connection has ended, unless Close ended it.
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

// subscribers returns those of channel, or all for "". The functions of a
// subscriber are called outside the lock.
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
// It gives up a heartbeat after a second. Heartbeats share the pool with all other
// commands. When a firewall has forgotten the pool's connections, each dead one costs one
// command its timeout. With a longer timeout the link's new connection would get no
// heartbeat within maxSilence, and be replaced too.
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

// connect makes connections, by heartbeats at the client's own pace: as many as there were operations that
// ran out of time, if none is being made. An operation that finds no connection makes one, and throws it away half
// made when its time is up. Where that is always too short (TLS far away, credentials that are fetched)
// no operation would ever have one.
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
// connection there is nothing to do: the next one starts from subs.
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
	case <-time.After(beatEvery): // it connects again; the heartbeats must go on
	case <-ctx.Done():
	}
	l.drop(conn) // the next connection starts from subs
}
