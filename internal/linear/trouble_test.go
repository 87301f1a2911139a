package linear

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A way is that of a process to Redis. In trouble it carries commands, which Redis
// executes, and no replies as they should come.
type way struct{ trouble atomic.Int32 }

const (
	none  int32 = iota
	late        // replies come late, many of them after their caller has given up
	lossy       // replies are lost, with their connections
	out         // so are messages, and there are no new connections

	troubles
)

var errTrouble = errors.New("the connection is lost")

// over is a change of a client's options: its connections go this way.
func (w *way) over(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if w.trouble.Load() == out {
			return nil, errTrouble
		}
		conn, err := dial(ctx, network, addr)
		return &wayConn{Conn: conn, way: w}, err
	}
}

type wayConn struct {
	net.Conn
	way      *way
	messages atomic.Bool // it is a subscriber's
}

func (c *wayConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("subscribe")) {
		c.messages.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *wayConn) Read(b []byte) (n int, err error) {
	n, err = c.Conn.Read(b)
	trouble := c.way.trouble.Load()
	if c.messages.Load() && trouble != out {
		trouble = none
	}
	switch trouble {
	case late:
		time.Sleep(rand.N(time.Second))
	case lossy, out:
		n, err = 0, errors.Join(errTrouble, c.Close())
	}
	return n, err
}
