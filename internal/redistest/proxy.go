package redistest

import (
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A FaultProxy passes connections on to a Redis server and spoils them as told.
// It knows the protocol, so it can lose or change the reply to one command.
//
// A method with a command takes its name, without regard to case, and as many of
// its arguments as matter: "EVALSHA", "GET product:42"; "" is any command.
// Methods may be called at any time and concurrently. Faults add up; Heal ends
// them all.
type FaultProxy struct {
	t    testing.TB
	addr string

	mu       sync.Mutex         // guards what follows
	target   string             // of new connections
	listener net.Listener       // nil while connections are refused
	links    map[*link]struct{} // open connections
	opened   int                // connections ever accepted
	rules    []*rule            // for replies that are still to come
	delay    time.Duration
	slice    int // bytes a write, 0: as they come
	pause    time.Duration
	limit    int           // of new connections, see Limit; negative: none
	hole     chan struct{} // not nil while nothing passes; closed when it does again
	deaf     bool          // drop pub/sub messages
	closed   bool

	running sync.WaitGroup
}

// Proxy starts a proxy in front of target, a server's address, on a free port of
// 127.0.0.1. It ends with t. While target accepts no connections, neither does it
// for longer than it takes to notice.
func Proxy(t testing.TB, target string) *FaultProxy {
	t.Helper()
	p := &FaultProxy{t: t, target: target, links: make(map[*link]struct{}), limit: -1}
	p.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort()))
	if err := p.listen(); err != nil {
		t.Fatalf("redistest: proxy: %v", err)
	}
	t.Cleanup(p.close)
	return p
}

// Addr returns the address to connect to. It never changes.
func (p *FaultProxy) Addr() string { return p.addr }

// Client returns a client that goes through the proxy, like that of [Server.Client].
func (p *FaultProxy) Client(t testing.TB, changes ...func(*redis.Options)) *redis.Client {
	c := redis.NewClient(options(p.addr, changes))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Opened returns how many connections have been made to the proxy so far.
func (p *FaultProxy) Opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// Heal ends every fault. Connections that were silenced for good, by BlackholeOld
// or by a lost reply, stay silent.
func (p *FaultProxy) Heal() {
	p.Delay(0)
	p.Slice(0, 0)
	p.Limit(-1)
	p.Blackhole(false)
	p.DropMessages(false)
	p.Refuse(false)
	p.set(func() { p.rules = nil })
}

// Delay makes every reply arrive d later, as a slow network does: the time passes
// for all at once, not for one after the other.
func (p *FaultProxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Slice passes replies on in pieces of n bytes with a pause after each. With
// n = 0 they go as they come.
func (p *FaultProxy) Slice(n int, pause time.Duration) {
	p.set(func() { p.slice, p.pause = n, pause })
}

// Limit ends every connection, present and future, after n more bytes of
// replies: the client is left with a part of one. Negative means no limit.
func (p *FaultProxy) Limit(n int) {
	p.set(func() {
		p.limit = n
		for l := range p.links {
			l.left = n
		}
	})
}

// Cut resets all connections. New ones are welcome.
func (p *FaultProxy) Cut() {
	for _, l := range p.present() {
		l.reset()
	}
}

// Redirect connects new connections with another server, as after a failover. It leaves the
// present ones alone.
func (p *FaultProxy) Redirect(target string) { p.set(func() { p.target = target }) }

// Refuse makes the port refuse new connections, or accept them again. It leaves
// the present ones alone.
func (p *FaultProxy) Refuse(on bool) {
	if !on {
		if err := p.listen(); err != nil {
			p.t.Errorf("redistest: proxy: %v", err)
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Blackhole keeps everything that goes in or out, on all connections, new ones
// too, until it is turned off; then what was kept arrives.
func (p *FaultProxy) Blackhole(on bool) {
	p.set(func() {
		switch {
		case on && p.hole == nil:
			p.hole = make(chan struct{})
		case !on && p.hole != nil:
			close(p.hole)
			p.hole = nil
		}
	})
}

// BlackholeOld silences the present connections for good, in both directions and
// without closing them, as a firewall does that has forgotten them. New ones work.
func (p *FaultProxy) BlackholeOld() {
	p.set(func() {
		for l := range p.links {
			l.forgotten = true
		}
	})
}

// DropMessages swallows pub/sub messages while it is on. Subscribing and
// everything else goes on as ever.
func (p *FaultProxy) DropMessages(on bool) { p.set(func() { p.deaf = on }) }

func (p *FaultProxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *FaultProxy) present() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// listen opens the port, unless it is open.
func (p *FaultProxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener = l
	p.running.Go(func() { p.accept(l) })
	return nil
}

func (p *FaultProxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.connect(client, listener) })
	}
}

// connect serves one client until either side is gone.
func (p *FaultProxy) connect(client net.Conn, listener net.Listener) {
	l := &link{p: p, client: client, done: make(chan struct{}), pending: make(chan reply, 1024)}
	if !p.register(l, listener) {
		_ = client.Close()
		return
	}
	defer p.set(func() { delete(p.links, l) })
	defer l.close()
	if !l.passable() {
		return
	}
	var target string
	p.set(func() { target = p.target })
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	l.serve(server)
}

// register refuses a connection that was accepted just before Refuse: a Cut after that
// would not have seen it.
func (p *FaultProxy) register(l *link, listener net.Listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != listener {
		return false
	}
	p.links[l] = struct{}{}
	p.opened++
	l.left = p.limit
	return true
}

func (p *FaultProxy) close() {
	p.set(func() { p.closed = true })
	p.Refuse(true)
	for _, l := range p.present() {
		l.close()
	}
	p.running.Wait()
}
