package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy stands between the shops and Redis, and can take Redis away from them or make it slow. It works alike for a server of the
// program's own and for one that others use too.
type proxy struct {
	target string
	l      net.Listener
	gone   atomic.Bool
	delay  atomic.Int64 // of what Redis answers, nanoseconds

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]bool
	ended bool
	work  sync.WaitGroup
}

func openProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target, l: l, conns: map[net.Conn]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.l.Addr().String() }

// stop takes Redis away, or gives it back: connections end, and new ones end at once.
func (p *proxy) stop(gone bool) {
	p.gone.Store(gone)
	if gone {
		p.closeAll()
	}
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) close() {
	_ = p.l.Close()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.closeAll()
	p.work.Wait()
}

func (p *proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		if p.gone.Load() {
			_ = c.Close()
			continue
		}
		p.work.Go(func() { p.serve(c) })
	}
}

func (p *proxy) serve(user net.Conn) {
	defer user.Close()
	server, err := net.DialTimeout("tcp", p.target, 3*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.note(user, server) {
		return
	}
	defer p.forget(user, server)
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, user)
		_ = server.Close()
		_ = user.Close()
	})
	p.late(user, server)
	_ = user.Close()
	up.Wait()
}

func (p *proxy) note(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.gone.Load() {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// late copies what Redis says, each piece after the delay of the moment at which it came, and in order.
func (p *proxy) late(to io.Writer, from io.Reader) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 4096)
	var out sync.WaitGroup
	out.Go(func() {
		failed := false
		for next := range pieces {
			if wait := time.Until(next.due); wait > 0 && !failed {
				time.Sleep(wait)
			}
			if !failed {
				_, err := to.Write(next.bytes)
				failed = err != nil
			}
		}
	})
	for {
		buffer := make([]byte, 8<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			pieces <- piece{buffer[:n], time.Now().Add(time.Duration(p.delay.Load()))}
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	out.Wait()
}
