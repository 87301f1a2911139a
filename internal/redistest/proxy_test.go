package redistest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// wire is a connection without a client's retries and pools.
type wire struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{conn, t, bufio.NewReader(conn)}
}

// send sends a command whose words hold no spaces.
func (w *wire) send(command string) {
	w.t.Helper()
	words := strings.Fields(command)
	var b strings.Builder
	b.WriteString("*" + string(rune('0'+len(words))) + "\r\n")
	for _, word := range words {
		b.WriteString("$" + string(rune('0'+len(word))) + "\r\n" + word + "\r\n")
	}
	if _, err := w.Write([]byte(b.String())); err != nil {
		w.t.Error(err)
	}
}

// receive returns the next frame, "" if none comes within the time.
func (w *wire) receive(within time.Duration) (string, error) {
	_ = w.SetReadDeadline(time.Now().Add(within))
	frame, err := readFrame(w.r)
	return string(frame), err
}

func (w *wire) want(reply string) {
	w.t.Helper()
	if got, err := w.receive(10 * time.Second); got != reply {
		w.t.Errorf("got %q, %v, want %q", got, err, reply)
	}
}

func (w *wire) wantSilence() {
	w.t.Helper()
	if got, err := w.receive(50 * time.Millisecond); !errors.Is(err, errTimeout) {
		w.t.Errorf("got %q, %v, want silence", got, err)
	}
}

var errTimeout = os.ErrDeadlineExceeded

func (w *wire) wantEnd(want error) {
	w.t.Helper()
	if got, err := w.receive(10 * time.Second); !errors.Is(err, want) {
		w.t.Errorf("got %q, %v, want the end by %v", got, err, want)
	}
}

func TestAHealthyProxyPassesEverything(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	for _, protocol := range []int{2, 3} {
		c, ctx := p.Client(t, func(o *redis.Options) { o.Protocol = protocol }), t.Context()
		big := strings.Repeat("levee\r\n", 200_000)
		mustSet(t, c, "big", big)
		if c.Get(ctx, "big").Val() != big {
			t.Error("a big value is changed")
		}
		cmds, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for range 2000 {
				pipe.Incr(ctx, "n")
			}
			return nil
		})
		if err != nil || len(cmds) != 2000 {
			t.Errorf("pipeline: %v", err)
		}
		got, err := redis.NewScript("return {KEYS[1], {1, false, 'x'}}").Run(ctx, c, []string{"k"}).Slice()
		if err != nil || len(got) != 2 {
			t.Errorf("script: %v, %v", got, err)
		}
	}
	if got := s.Client(t).Get(t.Context(), "n").Val(); got != "4000" {
		t.Errorf("n is %s", got)
	}
}

func TestALostReplyIsThatOfTheNamedCommand(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	p.DropReplies(1, "incr n")
	c, ctx := p.Client(t, impatient), t.Context()
	mustSet(t, c, "n", "0")
	if err := c.Incr(ctx, "other").Err(); err != nil {
		t.Errorf("another key: %v", err)
	}
	if err := c.Incr(ctx, "n").Err(); err == nil {
		t.Error("the reply was not lost")
	}
	if n, err := c.Incr(ctx, "n").Result(); n != 2 || err != nil {
		t.Errorf("got %d, %v: the first command must have been executed, and its loss the only one", n, err)
	}
}

// What a lost reply does to a client that tries again: the reason for the fault.
func TestALostReplyMakesARetryRunTwice(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	p.DropReplies(1, "INCR")
	c := p.Client(t, func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond })
	if n, err := c.Incr(t.Context(), "n").Result(); n != 2 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestNothingFollowsALostReplyOnItsConnection(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	p.DropReplies(1, "INCR")
	w := dial(t, p.Addr())
	for _, command := range []string{"PING", "INCR n", "PING"} {
		w.send(command)
	}
	w.want("+PONG\r\n")
	w.wantSilence()
}

func TestACutReplyIsNoticedAtOnce(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	p.CutReplies(1, "INCR")
	w := dial(t, p.Addr())
	w.send("INCR n")
	w.wantEnd(syscall.ECONNRESET)
	w = dial(t, p.Addr())
	w.send("INCR n")
	w.want(":2\r\n")
}

func TestAHeldReplyArrivesWhenReleased(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	held, release := p.HoldReply("GET k")
	mustSet(t, s.Client(t), "k", "old")
	w := dial(t, p.Addr())
	w.send("GET k")
	<-held
	mustSet(t, s.Client(t), "k", "new")
	w.wantSilence()
	release()
	w.want("$3\r\nold\r\n")
}

func TestAHeldReplyIsCutAlone(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	held, cut := p.HoldAndCut("GET k")
	w, other := dial(t, p.Addr()), dial(t, p.Addr())
	w.send("GET k")
	<-held
	w.wantSilence()
	cut()
	w.wantEnd(syscall.ECONNRESET)
	other.send("GET k")
	other.want("$-1\r\n")
}

func TestTwoRepliesAreSwapped(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	mustSet(t, s.Client(t), "a", "1")
	mustSet(t, s.Client(t), "b", "2")
	p.SwapReplies(1, "GET")
	a, b := dial(t, p.Addr()), dial(t, p.Addr())
	a.send("GET a")
	b.send("GET b")
	a.want("$1\r\n2\r\n")
	b.want("$1\r\n1\r\n")
	a.send("GET a")
	a.want("$1\r\n1\r\n")
}

func TestAReplyIsRewritten(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	p.RewriteReplies(1, "GET", func(reply []byte) []byte {
		if string(reply) != "$-1\r\n" {
			t.Errorf("the reply was %q", reply)
		}
		return []byte("$3\r\nbad\r\n")
	})
	w := dial(t, p.Addr())
	for _, want := range []string{"$3\r\nbad\r\n", "$-1\r\n"} {
		w.send("GET k")
		w.want(want)
	}
}

// Waiting for each of the thirty replies in turn would take three seconds.
func TestADelayPassesForAllRepliesAtOnce(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	p.Delay(100 * time.Millisecond)
	lag, start := MeasureLag(t), time.Now()
	for range 30 {
		w.send("PING")
	}
	for range 30 {
		w.want("+PONG\r\n")
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > lag.Allow(2*time.Second) {
		t.Errorf("it took %v", took)
	}
}

func TestRepliesComeInSlices(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	p.Slice(1, 20*time.Millisecond)
	start := time.Now()
	w.send("PING")
	w.want("+PONG\r\n")
	if took := time.Since(start); took < 6*20*time.Millisecond {
		t.Errorf("seven bytes took %v", took)
	}
}

func TestALimitCutsAReplyInTwo(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	old := dial(t, p.Addr())
	old.send("PING")
	old.want("+PONG\r\n")
	p.Limit(10)
	for _, w := range []*wire{old, dial(t, p.Addr())} {
		w.send("PING")
		w.want("+PONG\r\n")
		w.send("PING")
		rest, err := io.ReadAll(w.r)
		if string(rest) != "+PO" || err != nil {
			t.Errorf("the rest is %q, %v", rest, err)
		}
	}
	p.Heal()
	w := dial(t, p.Addr())
	w.send("PING")
	w.send("PING")
	w.want("+PONG\r\n")
	w.want("+PONG\r\n")
}

func TestCutResetsAndRefuseRefuses(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	first := dial(t, p.Addr())
	first.send("PING")
	first.want("+PONG\r\n")
	p.Refuse(true)
	if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v, %v", conn, err)
	}
	first.send("PING")
	first.want("+PONG\r\n")
	p.Cut()
	first.wantEnd(syscall.ECONNRESET)
	p.Refuse(false)
	second := dial(t, p.Addr())
	second.send("PING")
	second.want("+PONG\r\n")
	if p.Opened() != 2 {
		t.Errorf("%d connections", p.Opened())
	}
}

func TestARedirectedProxyLeavesPresentConnections(t *testing.T) {
	first, second := Start(t), Start(t)
	mustSet(t, first.Client(t), "at", "first")
	mustSet(t, second.Client(t), "at", "second")
	p := Proxy(t, first.Addr())
	before := p.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	for range 2 {
		if at := before.Get(t.Context(), "at").Val(); at != "first" {
			t.Errorf("a connection from before leads to the %s", at)
		}
		p.Redirect(second.Addr())
	}
	if at := p.Client(t).Get(t.Context(), "at").Val(); at != "second" {
		t.Errorf("a new connection leads to the %q", at)
	}
}

func TestABlackHoleKeepsEverythingUntilItEnds(t *testing.T) {
	p := Proxy(t, Start(t).Addr())
	old := dial(t, p.Addr())
	old.send("PING")
	old.want("+PONG\r\n")
	p.Blackhole(true)
	fresh := dial(t, p.Addr())
	for _, w := range []*wire{old, fresh} {
		w.send("PING")
		w.wantSilence()
	}
	p.Blackhole(false)
	old.want("+PONG\r\n")
	fresh.want("+PONG\r\n")
}

// The server must not learn that a client behind a black hole went away.
func TestABlackHoleForOldConnectionsLetsNewOnesPass(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	old := dial(t, p.Addr())
	old.send("CLIENT SETNAME forgotten")
	old.want("+OK\r\n")
	silent := dial(t, p.Addr())
	silent.send("PING")
	silent.want("+PONG\r\n")
	p.BlackholeOld()
	silent.send("PING")
	silent.wantSilence()
	fresh := dial(t, p.Addr())
	fresh.send("PING")
	fresh.want("+PONG\r\n")
	_ = old.Close()
	fresh.send("PING")
	fresh.want("+PONG\r\n")
	if list := s.Client(t).ClientList(t.Context()).Val(); !strings.Contains(list, "name=forgotten") {
		t.Errorf("the server noticed:\n%s", list)
	}
	p.Heal()
	p.Cut()
	Eventually(t, 5*time.Second, "the server notices a cut", func() bool {
		return !strings.Contains(s.Client(t).ClientList(t.Context()).Val(), "name=forgotten")
	})
}

func TestMessagesAreDroppedAndNothingElse(t *testing.T) {
	s := Start(t)
	for _, protocol := range []int{2, 3} {
		p := Proxy(t, s.Addr())
		c, ctx := p.Client(t, func(o *redis.Options) { o.Protocol = protocol }), t.Context()
		sub := c.Subscribe(ctx, "news")
		defer sub.Close()
		receive := func() any {
			t.Helper()
			got, err := sub.ReceiveTimeout(ctx, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		receive()
		p.DropMessages(true)
		c.Publish(ctx, "news", "lost")
		if err := sub.Subscribe(ctx, "more"); err != nil {
			t.Fatal(err)
		}
		if got, ok := receive().(*redis.Subscription); !ok || got.Channel != "more" {
			t.Errorf("protocol %d: got %v", protocol, got)
		}
		if err := sub.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if got, ok := receive().(*redis.Pong); !ok {
			t.Errorf("protocol %d: got %v", protocol, got)
		}
		p.DropMessages(false)
		c.Publish(ctx, "more", "heard")
		if got, ok := receive().(*redis.Message); !ok || got.Payload != "heard" {
			t.Errorf("protocol %d: got %v", protocol, got)
		}
	}
}

func TestAProxyBeforeADeadServerEndsConnections(t *testing.T) {
	s := Start(t)
	p := Proxy(t, s.Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	s.Kill()
	w.wantEnd(io.EOF)
	dial(t, p.Addr()).wantEnd(io.EOF)
	s.Restart()
	w = dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
}

func TestAReplicaFollowsThroughTheProxy(t *testing.T) {
	master := Start(t, "--repl-diskless-sync-delay", "0")
	p := Proxy(t, master.Addr())
	host, port, _ := net.SplitHostPort(p.Addr())
	replica := Start(t, "--replicaof", host+" "+port)
	mustSet(t, master.Client(t), "k", "v")
	c := replica.Client(t)
	Eventually(t, 20*time.Second, "the replica has the key", func() bool { return c.Get(t.Context(), "k").Val() == "v" })
	p.Blackhole(true)
	mustSet(t, master.Client(t), "k", "new")
	if n := master.Client(t).Wait(t.Context(), 1, 50*time.Millisecond).Val(); n != 0 {
		t.Error("the replica heard of it through a black hole")
	}
	p.Heal()
	Eventually(t, 20*time.Second, "the replica follows again", func() bool { return c.Get(t.Context(), "k").Val() == "new" })
}
