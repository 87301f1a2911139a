package redistest

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// A link is one connection through the proxy. Three goroutines serve it: up
// passes commands on and notes them; down reads replies, finds the command each
// belongs to, and lets the rules have their way with it; out writes what is left
// to the client when it is due.
type link struct {
	p       *FaultProxy
	client  net.Conn
	pending chan reply
	done    chan struct{} // closed when the link ends
	ending  sync.Once

	left      int  // bytes the client may still get, negative: no limit; guarded by p.mu
	forgotten bool // nothing passes any more; guarded by p.mu

	mu         sync.Mutex // guards what follows
	server     net.Conn   // set once, before up, down and out start
	asked      [][]string // commands without a reply, oldest first
	subscribed bool       // version 2 sends messages as if they were replies
	raw        bool       // what follows is a stream, not replies
	mute       bool       // a reply was lost: what comes after it never arrives
}

type reply struct {
	bytes []byte
	due   time.Time
}

// serve passes bytes in both directions until either side is gone.
func (l *link) serve(server net.Conn) {
	defer server.Close()
	if !l.attach(server) {
		return
	}
	var work sync.WaitGroup
	work.Go(l.up)
	work.Go(l.out)
	l.down()
	close(l.pending) // out writes what it has and closes the link
	work.Wait()
}

// attach is false when the link has ended already.
func (l *link) attach(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		return false
	default:
		l.server = server
		return true
	}
}

// close ends the link in an orderly way: the client reads what was sent, then EOF.
func (l *link) close() {
	l.ending.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.done)
		_ = l.client.Close()
		if l.server != nil {
			_ = l.server.Close()
		}
	})
}

// reset ends the link with an RST to the client.
func (l *link) reset() {
	if tcp, ok := l.client.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	l.close()
}

// passable waits while nothing may pass. It is false when the link has ended.
func (l *link) passable() bool {
	for {
		l.p.mu.Lock()
		hole, forgotten := l.p.hole, l.forgotten
		l.p.mu.Unlock()
		if hole == nil && !forgotten {
			return true
		}
		if forgotten {
			hole = nil // and so it stays
		}
		select {
		case <-hole:
		case <-l.done:
			return false
		}
	}
}

func (l *link) up() {
	defer l.close()
	in := bufio.NewReader(l.client)
	for {
		frame, err := readFrame(in)
		if !l.passable() || err != nil { // in a black hole the client's end is not heard of either
			return
		}
		l.ask(words(frame))
		if _, err := l.server.Write(frame); err != nil {
			return
		}
	}
}

// ask notes a command whose reply is to come.
func (l *link) ask(command []string) {
	if len(command) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch name := strings.ToUpper(command[0]); {
	case strings.HasSuffix(name, "SUBSCRIBE"):
		l.subscribed = true // answered by messages, one for each channel
		return
	case l.raw:
		return // a replica's acknowledgements are not answered
	case name == "PSYNC", name == "SYNC", name == "MONITOR":
		l.raw = true
	}
	l.asked = append(l.asked, command)
}

// down reads from the server until the link ends.
func (l *link) down() {
	in := bufio.NewReader(l.server)
	for {
		frame, err := l.next(in)
		if err != nil {
			return
		}
		arrived := time.Now()
		if frame = l.apply(frame); frame == nil {
			continue
		}
		l.p.mu.Lock()
		due := arrived.Add(l.p.delay)
		l.p.mu.Unlock()
		select {
		case l.pending <- reply{frame, due}:
		case <-l.done:
			return
		}
	}
}

// next reads a reply or, from a stream, what there is.
func (l *link) next(in *bufio.Reader) ([]byte, error) {
	l.mu.Lock()
	streaming := l.raw && len(l.asked) == 0
	l.mu.Unlock()
	if !streaming {
		return readFrame(in)
	}
	chunk := make([]byte, 32<<10)
	n, err := in.Read(chunk)
	return chunk[:n], err
}

// apply returns what becomes of a frame from the server, nil if nothing does.
func (l *link) apply(frame []byte) []byte {
	command, message := l.answers(frame)
	if message {
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		if l.p.deaf && kind(frame, "message") {
			return nil
		}
		return frame
	}
	if command != nil {
		if rule := l.p.match(command); rule != nil {
			frame = rule.act(l, frame)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute {
		return nil
	}
	return frame
}

// answers returns the command that a frame is the reply to, or says that it is a
// pub/sub message, which is nobody's reply.
func (l *link) answers(frame []byte) (command []string, message bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if frame[0] == '>' || l.subscribed && frame[0] == '*' && kind(frame, "message", "subscribe") {
		return nil, true
	}
	if len(l.asked) == 0 || frame[0] == '\n' {
		return nil, false
	}
	command, l.asked = l.asked[0], l.asked[1:]
	return command, false
}

// kind tells whether the first word of a message ends in one of the suffixes:
// there are message, pmessage and smessage, and as many ways to subscribe.
func kind(frame []byte, suffixes ...string) bool {
	message := words(frame)
	return len(message) > 0 && slices.ContainsFunc(suffixes, func(suffix string) bool {
		return strings.HasSuffix(message[0], suffix)
	})
}

// out writes replies to the client, and closes the link after the last.
func (l *link) out() {
	defer l.close()
	for reply := range l.pending {
		if !l.sleep(time.Until(reply.due)) || !l.passable() || !l.write(reply.bytes) {
			return
		}
	}
	l.passable()
}

func (l *link) write(b []byte) bool {
	for len(b) > 0 {
		n, pause, last := l.portion(len(b))
		if _, err := l.client.Write(b[:n]); err != nil || last || !l.sleep(pause) {
			return false
		}
		b = b[n:]
	}
	return true
}

// portion says how many of n bytes to write now, what to wait afterwards, and
// whether they are the last on this connection.
func (l *link) portion(n int) (now int, pause time.Duration, last bool) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.slice > 0 {
		n, pause = min(n, l.p.slice), l.p.pause
	}
	if l.left >= 0 {
		n = min(n, l.left)
		l.left -= n
		last = l.left == 0
	}
	return n, pause, last
}

// sleep is false when the link has ended meanwhile.
func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}
