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

// A heldConn keeps the n-th command that takes the turn from its way to the server.
type heldConn struct {
	net.Conn
	*holding
}

type holding struct {
	n             atomic.Int64
	reached, goOn chan struct{}
}

func (c heldConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(turnScript.Hash())) && c.n.Add(-1) == 0 {
		close(c.reached)
		<-c.goOn
	}
	return c.Conn.Write(b)
}

// A renewal that is under way when the turn is given back may come to the server after
// that. Left there it is a turn that nobody has, and holds the next Rebuild up for ten
// seconds.
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
	h.n.Store(2) // the first takes the turn, the second is to keep it
	broken := errors.New("broken")
	err = f.Rebuild(t.Context(), func(yield func(string, error) bool) {
		<-h.reached
		yield("", broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	ctl, lease := s.Client(t), f.shared.names.Rebuild()
	if n := ctl.Exists(t.Context(), lease).Val(); n != 0 {
		t.Error("the turn was not given back")
	}
	turns := func() int64 { return s.Calls("set") } // which no other script does
	before := turns()
	close(h.goOn)
	redistest.Eventually(t, turnLife, "it has come to the server", func() bool { return turns() > before })
	begun := time.Now()
	redistest.Eventually(t, turnLife, "the turn is free", func() bool { return ctl.Exists(t.Context(), lease).Val() == 0 })
	if took := time.Since(begun); took > turnLife/2 {
		t.Errorf("it was given back after %v, which is when it ended by itself", took)
	}
}
