package redistest

import (
	"net"
	"sync"
	"time"
)

// A bufferedConn is a connection in memory whose writer does not wait for the reader,
// as with a socket. Without it a pipeline of more than a few commands would hang: the
// server writes its first reply while the client still writes commands, and neither
// reads.
type bufferedConn struct {
	net.Conn
	more chan struct{} // signalled by Write
	done chan struct{} // closed by Close

	mu      sync.Mutex // guards what follows
	pending []byte     // written and not sent
	err     error      // of sending
	closed  bool
}

func buffered(conn net.Conn) net.Conn {
	b := &bufferedConn{Conn: conn, more: make(chan struct{}, 1), done: make(chan struct{})}
	go b.send()
	return b
}

func (b *bufferedConn) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	b.pending = append(b.pending, data...)
	select {
	case b.more <- struct{}{}:
	default:
	}
	return len(data), nil
}

// send passes on what is written, until the connection fails or is closed.
func (b *bufferedConn) send() {
	for {
		select {
		case <-b.more:
		case <-b.done:
			return
		}
		b.mu.Lock()
		data := b.pending
		b.pending = nil
		b.mu.Unlock()
		if _, err := b.Conn.Write(data); err != nil {
			b.mu.Lock()
			b.err = err
			b.mu.Unlock()
			return
		}
	}
}

// Deadlines are for reads: a write does not wait.
func (b *bufferedConn) SetDeadline(t time.Time) error    { return b.SetReadDeadline(t) }
func (b *bufferedConn) SetWriteDeadline(time.Time) error { return nil }

func (b *bufferedConn) Close() error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.done)
	}
	b.mu.Unlock()
	return b.Conn.Close()
}
