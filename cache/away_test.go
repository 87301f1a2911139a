package cache_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/breaker"
	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/redistest"
)

// A way is that of a client's connections to a server in a bubble. It can be barred
// as a dead server does it, which refuses, or as a dead network, which says nothing.
type way struct {
	dial    func(context.Context, string, string) (net.Conn, error)
	refuses atomic.Bool
	silent  atomic.Bool
	delay   atomic.Pointer[chan struct{}] // when closed, the next reply to a read of test:1 arrives

	mu    sync.Mutex // guards what follows
	conns []net.Conn
}

func (w *way) refuse() {
	w.refuses.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.conns {
		_ = conn.Close()
	}
}

func (w *way) silence() { w.silent.Store(true) }

// client makes a client whose connections go this way.
func (w *way) client(r *rig, m *redistest.MiniServer) *redis.Client {
	return m.Client(r, func(o *redis.Options) {
		w.dial, o.Dialer = o.Dialer, w.open
	})
}

func (w *way) open(ctx context.Context, network, addr string) (net.Conn, error) {
	switch {
	case w.refuses.Load():
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	case w.silent.Load():
		select {
		case <-time.After(5 * time.Second): // as the dialer does that this one replaces
			return nil, os.ErrDeadlineExceeded
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	conn, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, conn)
	return &passage{Conn: conn, way: w}, nil
}

// keepBack keeps the reply to the next read of test:1 on its way until release.
func (w *way) keepBack() (release func()) {
	until := make(chan struct{})
	w.delay.Store(&until)
	return sync.OnceFunc(func() { close(until) })
}

// A passage swallows what is sent once its way is silent.
type passage struct {
	net.Conn
	way   *way
	until chan struct{} // nil: nothing is kept back
	late  time.Time     // when a read gives up
}

func (p *passage) SetReadDeadline(t time.Time) error {
	p.late = t
	return p.Conn.SetReadDeadline(t)
}

func (p *passage) SetDeadline(t time.Time) error {
	p.late = t
	return p.Conn.SetDeadline(t)
}

func (p *passage) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if p.until != nil {
		var late <-chan time.Time
		if !p.late.IsZero() {
			late = time.After(time.Until(p.late))
		}
		select {
		case <-p.until:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		}
		p.until = nil
	}
	return n, err
}

func (p *passage) Write(b []byte) (int, error) {
	if p.way.silent.Load() {
		return len(b), nil
	}
	if bytes.Contains(b, []byte(valueKey(1))) && !bytes.Contains(b, []byte("evalsha")) {
		if until := p.way.delay.Swap(nil); until != nil {
			p.until = *until
		}
	}
	return p.Conn.Write(b)
}

// Once it is known that there is no Redis, to find out whether it is back is nobody's
// business who reads: each Get takes what its load takes and nothing more. In a
// bubble that is exact. Were a caller now and then the one to ask, some of these would
// take a RedisTimeout, or the time that go-redis dials.
func TestWhileRedisIsAwayAGetTakesWhatItsLoadTakes(t *testing.T) {
	for name, bar := range map[string]func(*way){"refuses": (*way).refuse, "says nothing": (*way).silence} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cell{redis: "mini"}, func(r *rig, m *redistest.MiniServer) {
				const processes, keys, load = 4, 500, time.Millisecond
				length := redistest.Pick(4*time.Second, 20*time.Second)
				r.Cleanup(func() { time.Sleep(time.Minute) }) // after all else: go-redis goes on to dial for a while
				source := newRows(r)
				source.slowly(func(context.Context, int64) error { time.Sleep(load); return nil })
				for key := range int64(keys) {
					source.put(key, "v1")
				}
				var caches []*probe[int64, string]
				var ways []*way
				for range processes {
					w := &way{}
					ways = append(ways, w)
					caches = append(caches, openOn(r, w.client(r, m), source.source(), func(o *cache.Options) {
						o.Breaker = redistest.Must(breaker.New(breaker.Options{}))
					}))
				}
				for key := range int64(keys) {
					caches[key%processes].gives(r, key, "v1")
				}
				source.forget()
				for _, w := range ways {
					bar(w)
				}
				began := time.Now()
				var turn atomic.Int64
				// Those of one process do not all come at the same moment.
				home := crowd{caches: caches, callers: 8, pause: redistest.Pick(32*time.Millisecond, 16*time.Millisecond), patience: time.Second, pick: func() int64 {
					n := turn.Add(1)
					time.Sleep(time.Duration(n*n%31) * 100 * time.Microsecond)
					return n * 7 % keys
				}}.gather(r)
				time.Sleep(length)
				got := home()
				settled := got.between(began.Add(2*time.Second), time.Now()) // five timeouts, as no connection can be opened either
				outages := 0
				for _, c := range caches {
					outages += int(c.Stats().Rebuild.Outages)
				}
				r.Logf("%v; after the first two seconds %v; at most %d loads at one time", got, settled, source.allAtOnce())
				if bad := got.failed(); len(bad) > 0 {
					r.Errorf("%d Gets failed, as that of %d: %v", len(bad), bad[0].key, bad[0].err)
				}
				if took := settled.took(1); took > load {
					r.Errorf("a Get took %v, where its load takes %v", took, load)
				}
				if n := source.allAtOnce(); n > 32 {
					r.Errorf("%d loads at one time", n)
				}
				if outages != processes || len(settled) < 1000 {
					r.Errorf("%d outages, %d visits: this tests nothing", outages, len(settled))
				}
			})
		})
	}
}
