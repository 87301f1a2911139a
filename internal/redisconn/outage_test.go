package redisconn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/logonce"
	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

const opTimeout = 100 * time.Millisecond

// openConn opens a Conn until the end of the test.
func openConn(t *testing.T, rdb redis.UniversalClient, timeout time.Duration) *redisconn.Conn {
	c := redisconn.Open(rdb, timeout, 100, nil)
	t.Cleanup(c.Close)
	return c
}

// hang keeps a server in a bubble from answering reads, until heal is called. asked
// counts them.
func hang(t *testing.T, m *redistest.MiniServer) (asked *atomic.Int32, heal func()) {
	asked = new(atomic.Int32)
	over := make(chan struct{})
	m.Before(func(command string, _ []string) {
		if command == "GETRANGE" {
			asked.Add(1)
			<-over
		}
	})
	heal = sync.OnceFunc(func() { close(over) })
	t.Cleanup(heal) // before the clients, whose cleanups come first
	return asked, heal
}

// read reads key as the users of a Conn do, and tells its Outage.
func read(ctx context.Context, c *redisconn.Conn, key string) error {
	_, err := c.Read(ctx, key, 10)
	return err
}

// Without the circuit each of these callers loses a timeout, for as long as Redis
// hangs.
func TestAfterAFewReadsWithoutAnAnswerRedisIsNotAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := openConn(t, m.Client(t), opTimeout)
		if err := read(t.Context(), c, "k"); err != nil {
			t.Fatal(err)
		}
		asked, heal := hang(t, m)
		lost := 0
		for range 100 {
			began := time.Now()
			err := read(t.Context(), c, "k")
			switch took := time.Since(began); {
			case took == opTimeout && err != nil && !errors.Is(err, redisconn.ErrOutage):
				lost++
			case took == 0 && errors.Is(err, redisconn.ErrOutage):
			default:
				t.Errorf("a read took %v and ended with %v", took, err)
			}
		}
		if lost != 3 || !c.Outage().Down() || c.Outage().Count() != 1 {
			t.Errorf("%d callers lost a timeout, down %v, %d outages; want 3, true, 1", lost, c.Outage().Down(), c.Outage().Count())
		}
		before := asked.Load()
		time.Sleep(10 * time.Second)
		if n := asked.Load() - before; n < 10 || n > 30 { // every 0.5 s to 0.7 s, once the pauses have grown
			t.Errorf("Redis was asked %d times in 10 s, want 10 to 30", n)
		}
		heal()
		healed := time.Now()
		<-c.Outage().Up()
		if took := time.Since(healed); took > 700*time.Millisecond || c.Outage().Down() {
			t.Errorf("asked again after %v, down %v; want at most 700ms", took, c.Outage().Down())
		}
		if err := read(t.Context(), c, "k"); err != nil {
			t.Error(err)
		}
	})
}

// Only reads without an answer in a row open the circuit.
func TestAnAnswerStartsTheCountAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		o := openConn(t, m.Client(t), opTimeout).Outage()
		for range 10 {
			o.Missed("k", io.EOF, true)
			o.Missed("k", io.EOF, true)
			o.Answered()
		}
		if o.Count() != 0 {
			t.Error("reads that were not in a row have opened the circuit")
		}
		o.Missed("k", io.EOF, true)
		o.Missed("k", io.EOF, true)
		o.Missed("k", io.EOF, true)
		if o.Count() != 1 { // whether it is Down is too late a question: the first probe comes at once
			t.Error("three in a row have not")
		}
		<-o.Up()
	})
}

// A pause of the process or of the network is over when the circuit opens. Callers are
// not to do without Redis for longer than it takes to probe once.
func TestAHiccupIsOverAfterOneProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := openConn(t, m.Client(t), opTimeout)
		_, heal := hang(t, m)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _ = read(t.Context(), c, "k") })
		}
		began := time.Now()
		time.AfterFunc(opTimeout+time.Millisecond, heal)
		all.Wait()
		<-c.Outage().Up()
		if took := time.Since(began) - opTimeout; took > 10*time.Millisecond || c.Outage().Count() != 1 {
			t.Errorf("not asked for %v, %d outages; want 10ms at most, 1", took, c.Outage().Count())
		}
	})
}

// Answers take as long as the timeout: probes get one, callers do not. A circuit that
// probed at once each time would open and close ten times a second, and each time cost
// callers a timeout.
func TestTheCircuitDoesNotSwing(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		o := openConn(t, m.Client(t), opTimeout).Outage()
		began := time.Now()
		for time.Since(began) < time.Minute {
			o.Missed("k", io.EOF, true) // and each probe is answered
			time.Sleep(10 * time.Millisecond)
		}
		if n := o.Count(); n < 60 || n > 180 { // every 0.4 s to 0.7 s
			t.Errorf("%d outages in a minute, want 60 to 180", n)
		}
		time.Sleep(11 * time.Second)
		<-o.Up()
		began = time.Now()
		for n := o.Count(); o.Count() == n; {
			o.Missed("k", io.EOF, true)
		}
		<-o.Up()
		if took := time.Since(began); took != 0 {
			t.Errorf("an outage that is not like the last took %v, want a probe at once", took)
		}
	})
}

func TestWaitUp(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := openConn(t, m.Client(t), opTimeout)
		o := c.Outage()
		if began := time.Now(); !o.WaitUp(t.Context(), time.Hour) || time.Since(began) != 0 {
			t.Error("it waited without an outage")
		}
		_, heal := hang(t, m)
		for !o.Down() {
			_ = read(t.Context(), c, "k")
		}
		if began := time.Now(); o.WaitUp(t.Context(), time.Second) || time.Since(began) != time.Second {
			t.Errorf("it waited for %v, want the second that it may", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if began := time.Now(); o.WaitUp(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("it waited for %v, want the second that its context has", time.Since(began))
		}
		time.AfterFunc(time.Second, heal)
		if began := time.Now(); !o.WaitUp(t.Context(), time.Hour) || time.Since(began) > 2*time.Second {
			t.Errorf("it waited for %v, want the end of the outage", time.Since(began))
		}
	})
}

// An Open of a client that is used already must find the outage that is known. Another
// timeout is another opinion of what an answer is.
func TestTheConnsOfAClientAndATimeoutShareAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t)
		one, two := redisconn.Open(rdb, opTimeout, 100, nil), redisconn.Open(rdb, opTimeout, 100, nil)
		slow, apart := openConn(t, rdb, 2*opTimeout), openConn(t, m.Client(t), opTimeout)
		if one.Outage() != two.Outage() {
			t.Error("Conns of one client and timeout have two Outages")
		}
		if one.Outage() == slow.Outage() || one.Outage() == apart.Outage() {
			t.Error("an Outage is shared with another timeout or client")
		}
		_, heal := hang(t, m)
		for range 3 {
			_ = read(t.Context(), one, "k")
		}
		if !two.Outage().Down() || slow.Outage().Down() || apart.Outage().Down() {
			t.Errorf("down: %v, %v, %v; want only the first", two.Outage().Down(), slow.Outage().Down(), apart.Outage().Down())
		}
		one.Close() // and the probes go on for the other
		heal()
		<-two.Outage().Up()
		two.Close()
		again := openConn(t, rdb, opTimeout)
		if again.Outage() == one.Outage() {
			t.Error("an Outage is handed out whose last user has closed it")
		}
		one.Outage().Missed("k", io.EOF, true) // by somebody who is late
		one.Outage().Missed("k", io.EOF, true)
		one.Outage().Missed("k", io.EOF, true)
		if one.Outage().Down() {
			t.Error("a closed Outage begins to probe")
		}
	})
}

// Where our own process may be what is slow, three in a row do not open the circuit: a
// burst of callers that waits for connections is no outage.
func TestDoubtfulOperationsOpenTheCircuitLater(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		o := openConn(t, m.Client(t), opTimeout).Outage()
		for range 10 {
			o.Missed("k", io.EOF, false)
		}
		time.Sleep(5*opTimeout - time.Nanosecond)
		if o.Missed("k", io.EOF, false); o.Count() != 0 {
			t.Error("the circuit is open before five timeouts have passed")
		}
		time.Sleep(time.Nanosecond)
		if o.Missed("k", io.EOF, false); o.Count() != 1 {
			t.Error("the circuit is closed although nothing was answered for five timeouts")
		}
		<-o.Up()
	})
}

// A server that answers reads is alive, whatever it says to the rest. One that answers
// them with an error is of no use, however fast it does.
func TestAProbeIsARead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(t *testing.T, s *redistest.Server, p *redistest.FaultProxy)
		up    bool
	}{
		"read only": {func(t *testing.T, s *redistest.Server, _ *redistest.FaultProxy) {
			do(t, s, "REPLICAOF", "127.0.0.1", "1")
		}, true},
		"full": {func(t *testing.T, s *redistest.Server, _ *redistest.FaultProxy) {
			do(t, s, "CONFIG", "SET", "maxmemory", "1")
		}, true},
		"foreign key": {func(t *testing.T, s *redistest.Server, _ *redistest.FaultProxy) { do(t, s, "LPUSH", "k", "a") }, true},
		"loading":     {func(_ *testing.T, _ *redistest.Server, p *redistest.FaultProxy) { replies(p, "-LOADING loading") }, false},
		"no right":    {func(_ *testing.T, _ *redistest.Server, p *redistest.FaultProxy) { replies(p, "-NOPERM no right") }, false},
		"refuses":     {func(_ *testing.T, _ *redistest.Server, p *redistest.FaultProxy) { p.Refuse(true); p.Cut() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			p := redistest.Proxy(t, s.Addr())
			o := openConn(t, p.Client(t), time.Second).Outage()
			test.spoil(t, s, p)
			for range 3 {
				o.Missed("k", io.EOF, true)
			}
			if !test.up {
				if o.WaitUp(t.Context(), 300*time.Millisecond) {
					t.Error("the circuit is closed, want it open: nothing was answered")
				}
				p.Heal()
			}
			if !o.WaitUp(t.Context(), 10*time.Second) {
				t.Error("the circuit is open, want it closed: reads are answered")
			}
		})
	}
}

func do(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	if err := s.Client(t).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

func replies(p *redistest.FaultProxy, with string) {
	p.RewriteReplies(1_000_000, "GETRANGE", func([]byte) []byte { return []byte(with + "\r\n") })
}

// An operator reads of an outage once, and of its end: of whom, where, and why. With two
// servers a line without these sends somebody to the wrong one.
func TestAnOutageIsLogged(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	log := &redistest.Log{}
	rdb := s.Client(t)
	c := redisconn.Open(rdb, time.Second, 1, logonce.New(log.Logger(), "levee: "))
	defer c.Close()
	redisconn.Open(rdb, time.Second, 1, nil) // by another cache, whose log is not asked
	defer c.Close()
	c.UsedBy("gone")()
	c.UsedBy("slug")
	c.UsedBy("product")
	for range 3 {
		c.Outage().Missed("k", io.EOF, true)
	}
	whose := " cache=product,slug address=" + s.Addr()
	log.Await(t, "level=INFO msg=\"levee: redis replies again\""+whose+" after=")
	log.Await(t, "level=WARN msg=\"levee: redis does not reply; the caches go on without it until it does\""+whose+" error=EOF")
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("got %d lines, want 2:\n%s", n, log)
	}
}

// Close during an outage ends its probes, also one that waits for an answer.
func TestCloseEndsTheProbes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const patience = time.Minute // of a probe, which Close must not wait for
	rdb := s.Client(t, func(o *redis.Options) { o.ReadTimeout = patience })
	c := redisconn.Open(rdb, patience, 1, nil)
	s.Stop()
	for range 3 {
		c.Outage().Missed("k", io.EOF, true)
	}
	time.Sleep(50 * time.Millisecond) // the first probe waits
	began := time.Now()
	c.Close()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("Close took %v", took)
	}
	select {
	case <-c.Outage().Up():
	default:
		t.Error("those who wait for the end of the outage wait on")
	}
	s.Cont()
	_ = rdb.Close()
}

func TestAConnOfNewKnowsNoOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := redisconn.New(m.Client(t), opTimeout, 1)
		_, heal := hang(t, m)
		for range 10 {
			_ = read(t.Context(), c, "k")
		}
		if n, now := c.Outages(); n != 0 || now || c.OutageOf("k").Down() || !c.OutageOf("k").WaitUp(t.Context(), 0) {
			t.Error("a Conn without an Outage has one")
		}
		heal()
		c.Close()
	})
}

// Each connection takes longer to open than an operation may take, as with TLS on a busy
// machine, and Redis is well: callers wait, and nobody takes that for an outage. Catches
// that, with none and with some connections there already.
func TestOpeningConnectionsIsNoOutage(t *testing.T) {
	for name, warm := range map[string]int32{"the first": 0, "the second": 1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rdb := m.Client(t, dialsSlowly(t, warm, opTimeout+opTimeout/2))
				readAtOnce(t, openConn(t, rdb, opTimeout), warm > 0)
				time.Sleep(time.Second) // what go-redis dials behind its callers' backs
			})
		})
	}
}

// A server that is down refuses each connection at once. go-redis waits before it tries
// again, and the time of an operation ends in that pause. Catches that this counts as
// waiting for a connection: then the outage was known after five timeouts, not after one.
func TestAServerThatRefusesConnectionsIsKnownToBeDownAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		var down atomic.Bool
		var mu sync.Mutex
		var conns []net.Conn
		rdb := m.Client(t, func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if down.Load() {
					return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
				}
				conn, err := dial(ctx, network, addr)
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, conn)
				return conn, err
			}
		})
		c := openConn(t, rdb, opTimeout)
		if err := read(t.Context(), c, "k"); err != nil {
			t.Fatal(err)
		}
		down.Store(true)
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		began := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _ = read(t.Context(), c, "k") })
		}
		all.Wait()
		if took := time.Since(began); !c.OutageOf("k").Down() || took > 2*opTimeout {
			t.Errorf("down is %v after %v", c.OutageOf("k").Down(), took)
		}
		_ = rdb.Close()
		time.Sleep(time.Minute) // what go-redis dials behind its callers' backs
	})
}

// The same over TLS, with handshakes that are slower than an operation may be.
func TestTheFirstReadsOverTLSAreNoOutage(t *testing.T) {
	t.Parallel()
	s, addr, config := redistest.TLS(t)
	rdb := s.Client(t, func(o *redis.Options) { o.Addr, o.TLSConfig = addr, config }, dialsSlowly(t, 1, 400*time.Millisecond))
	readAtOnce(t, openConn(t, rdb, 250*time.Millisecond), true)
}

// readAtOnce reads with a hundred callers, who may be late and see no outage.
func readAtOnce(t *testing.T, c *redisconn.Conn, warm bool) {
	if warm {
		redistest.Eventually(t, 20*time.Second, "there is a connection", func() bool { return read(t.Context(), c, "k") == nil })
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if err := read(t.Context(), c, "k"); err != nil && !errors.Is(err, redisconn.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n, _ := c.Outages(); n != 0 {
		t.Errorf("%d outages, want none", n)
	}
	redistest.Eventually(t, 20*time.Second, "reads are answered", func() bool { return read(t.Context(), c, "k") == nil })
}

// dialsSlowly delays all connections but the first so many. The test waits for them, as
// go-redis dials behind its callers' backs.
func dialsSlowly(t *testing.T, first int32, delay time.Duration) func(o *redis.Options) {
	var now atomic.Int32
	t.Cleanup(func() { // after the client's end
		redistest.Eventually(t, 20*time.Second, "nobody dials", func() bool { return now.Load() == 0 })
	})
	return func(o *redis.Options) {
		dial, dialled := o.Dialer, new(atomic.Int32)
		if dial == nil {
			dial = redis.NewDialer(o)
		}
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			now.Add(1)
			defer now.Add(-1)
			if dialled.Add(1) > first {
				time.Sleep(delay)
			}
			return dial(ctx, network, addr)
		}
	}
}
