package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/lock/redlock"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

type servers []*redistest.Server

func startServers(t *testing.T, n int) (all servers) {
	for range n {
		all = append(all, redistest.Start(t))
	}
	return all
}

// quorum makes a Quorum of the servers that is closed with the test.
func (s servers) quorum(t *testing.T, o lock.Options) *redlock.Quorum {
	t.Helper()
	return open(t, s.clients(t), o)
}

func (s servers) clients(t *testing.T) (all []redis.UniversalClient) {
	for _, server := range s {
		all = append(all, server.Client(t, func(o *redis.Options) { o.DialerRetries = 1 }))
	}
	return all
}

// behindProxies makes clients whose traffic faults can strike.
func (s servers) behindProxies(t *testing.T) (links []*redistest.FaultProxy, nodes []redis.UniversalClient) {
	for _, server := range s {
		p := redistest.Proxy(t, server.Addr())
		links, nodes = append(links, p), append(nodes, p.Client(t))
	}
	return links, nodes
}

func open(t *testing.T, nodes []redis.UniversalClient, o lock.Options) *redlock.Quorum {
	t.Helper()
	q, err := redlock.New(nodes, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	return q
}

// take takes the lock "a". A machine that is busy takes longer than a quorum waits.
func take(t *testing.T, q *redlock.Quorum) *redlock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lease, err := q.Lock(ctx, "a")
	for errors.Is(err, lock.ErrUnavailable) {
		lease, err = q.Lock(ctx, "a")
	}
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// unlock gives a lease back, which may go on in the background.
func unlock(t *testing.T, l *redlock.Lease) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil && !errors.Is(err, lock.ErrUnavailable) {
		t.Error(err)
	}
}
