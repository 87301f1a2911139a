package main

import (
	"net"
	"time"
)

// A proxy passes bytes on to a server, and its answers back a while later, as if the server were that far away.
// The delay is one of latency alone: what follows closely on something arrives closely after it.
type proxy struct {
	listener net.Listener
	target   string
	delay    time.Duration
}

func startProxy(target string, delay time.Duration) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{l, target, delay}
	go p.accept()
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// stop takes no more connections. Those that are open end with their clients.
func (p *proxy) stop() { _ = p.listener.Close() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		go passOn(client, server)
		go p.passLater(server, client)
	}
}

func passOn(from, to net.Conn) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// A chunk is a part of an answer, and when it is to arrive.
type chunk struct {
	bytes []byte
	due   time.Time
}

func (p *proxy) passLater(from, to net.Conn) {
	chunks := make(chan chunk, 4096)
	go func() {
		defer to.Close()
		defer from.Close()
		for c := range chunks {
			sleepUntil(c.due)
			if _, err := to.Write(c.bytes); err != nil {
				break
			}
		}
		for range chunks { // the reader must not hang
		}
	}()
	defer close(chunks)
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			chunks <- chunk{buffer[:n], time.Now().Add(p.delay)}
		}
		if err != nil {
			return
		}
	}
}
