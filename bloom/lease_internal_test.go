package bloom

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// A heldConn holds back the n-th command that takes or renews a lease.
type heldConn struct {
	net.Conn
	*holding
}

type holding struct {
	n             atomic.Int64
	reached, goOn chan struct{}
}

func (c heldConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(leaseScript.Hash())) && c.n.Add(-1) == 0 {
		close(c.reached)
		<-c.goOn
	}
	return c.Conn.Write(b)
}

// A renewal may reach the server after the lease was released. Without the second release
// nobody has that lease, and the next Rebuild waits ten seconds for it.
func TestARenewalThatComesTooLateIsGivenBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	h := &holding{reached: make(chan struct{}), goOn: make(chan struct{})}
	rdb := s.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return heldConn{conn, h}, err
		}
	})
	f, err := Open(t.Context(), rdb, Options{Name: "f", Capacity: 1000, MaxTransaction: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Rebuild(t.Context(), func(func(string, error) bool) {}); err != nil { // the server knows the scripts
		t.Fatal(err)
	}
	h.n.Store(2) // the first takes the lease, the second renews it
	broken := errors.New("broken")
	err = f.Rebuild(t.Context(), func(yield func(string, error) bool) {
		<-h.reached
		yield("", broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	ctl, lease := s.Client(t), f.impl.(*shared).store.names.Rebuild()
	if n := ctl.Exists(t.Context(), lease).Val(); n != 0 {
		t.Error("the lease was not released")
	}
	sets := func() int64 { return s.Calls("set") } // which no other script does
	before := sets()
	close(h.goOn)
	redistest.Eventually(t, leaseLife, "it has come to the server", func() bool { return sets() > before })
	begun := time.Now()
	redistest.Eventually(t, leaseLife, "the lease is free", func() bool { return ctl.Exists(t.Context(), lease).Val() == 0 })
	if took := time.Since(begun); took > leaseLife/2 {
		t.Errorf("it was released after %v, which is when it ended by itself", took)
	}
}
