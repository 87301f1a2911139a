package redisconn_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

func TestDoGivesEachConnItsOwnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := redisconn.New(m.Client(t, roomy), opTimeout, 2)
		longer := c.WithTimeout(time.Second, 1)
		hang := func(context.Context) (string, error) { time.Sleep(10 * time.Second); return "", nil }
		for _, test := range []struct {
			c    *redisconn.Conn
			want time.Duration
		}{{c, opTimeout}, {longer, time.Second}} {
			began := time.Now()
			_, err := redisconn.Do(t.Context(), test.c, hang, nil)
			if took := time.Since(began); !errors.Is(err, redisconn.ErrTimeout) || took != test.want {
				t.Errorf("got %v after %v, want ErrTimeout after %v", err, took, test.want)
			}
		}
		// One operation of c has no answer yet, and the only one of longer.
		if _, err := redisconn.Do(t.Context(), longer, hang, nil); !errors.Is(err, redisconn.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
		got, err := redisconn.Do(t.Context(), c, func(ctx context.Context) (string, error) { return c.Client.Ping(ctx).Result() }, nil)
		if got != "PONG" || err != nil {
			t.Errorf("got %q, %v, want PONG", got, err)
		}
		time.Sleep(10 * time.Second)
	})
}

// DoOnCaller cannot leave an operation behind. So the client has to keep to the time,
// also one that go-redis leaves waiting by default.
func TestDoOnCallerComesBackInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := openConn(t, m.Client(t, roomy), opTimeout)
		get := func(ctx context.Context, rdb redis.Cmdable) ([]byte, error) {
			return redisconn.GetRange(ctx, rdb, "k", 10)
		}
		if _, err := redisconn.DoOnCaller(t.Context(), c, get); err != nil {
			t.Fatal(err)
		}
		hang(t, m)
		began := time.Now()
		_, err := redisconn.DoOnCaller(t.Context(), c, get)
		if took := time.Since(began); err == nil || took != opTimeout {
			t.Errorf("got %v after %v, want an error after %v", err, took, opTimeout)
		}
	})
}

func TestDoOnCallerCountsAsARunningOperation(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := redisconn.New(m.Client(t, roomy), opTimeout, 1)
		nothing := func(context.Context, redis.Cmdable) (int, error) { return 0, nil }
		_, _ = redisconn.DoOnCaller(t.Context(), c, func(context.Context, redis.Cmdable) (int, error) {
			if _, err := redisconn.DoOnCaller(t.Context(), c, nothing); !errors.Is(err, redisconn.ErrBusy) {
				t.Errorf("got %v, want ErrBusy", err)
			}
			return 0, nil
		})
		if _, err := redisconn.DoOnCaller(t.Context(), c, nothing); err != nil {
			t.Errorf("the place was not given back: %v", err)
		}
	})
}

func TestMayUseCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rdb := m.Client(t, roomy)
		c := openConn(t, rdb, opTimeout)
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wrapped := openConn(t, struct{ redis.UniversalClient }{rdb}, opTimeout)
		for name, test := range map[string]struct {
			c    *redisconn.Conn
			ctx  context.Context
			want bool
		}{
			"no deadline":                   {c, t.Context(), true},
			"a deadline at the timeout":     {c, within(opTimeout), true},
			"a deadline before the timeout": {c, within(opTimeout - 1), false},
			"an ended context":              {c, ended, false},
			"not a plain client":            {wrapped, t.Context(), false},
		} {
			if got := test.c.MayUseCaller(test.ctx); got != test.want {
				t.Errorf("%s: got %v, want %v", name, got, test.want)
			}
		}
	})
}

// Each operation that times out on its caller's goroutine costs a connection. Without
// a pause a slow server would see nothing but new connections.
func TestAfterALostConnectionCallersDoNotReadThemselvesForASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := openConn(t, m.Client(t, roomy), opTimeout)
		_, heal := hang(t, m)
		_, _ = redisconn.DoOnCaller(t.Context(), c, func(ctx context.Context, rdb redis.Cmdable) ([]byte, error) {
			return redisconn.GetRange(ctx, rdb, "k", 10)
		})
		heal()
		for _, wait := range []time.Duration{0, time.Second - time.Nanosecond} {
			if time.Sleep(wait); c.MayUseCaller(t.Context()) {
				t.Errorf("%v after the connection was lost a caller may read", wait)
			}
		}
		if time.Sleep(time.Nanosecond); !c.MayUseCaller(t.Context()) {
			t.Error("after a second no caller may read")
		}
		_, _ = redisconn.DoOnCaller(t.Context(), c, func(ctx context.Context, rdb redis.Cmdable) ([]byte, error) {
			return redisconn.GetRange(ctx, rdb, "k", 10)
		})
		if !c.MayUseCaller(t.Context()) {
			t.Error("after a read that was answered no caller may read")
		}
	})
}

// A caller who cancels loses no connection: the read is answered all the same. If that
// counted as a lost one, a caller a second who hangs up would send all others' reads to
// other goroutines.
func TestACallerWhoCancelsCostsNobodyTheirReads(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		c := openConn(t, m.Client(t, roomy), opTimeout)
		ctx, cancel := context.WithCancel(t.Context())
		_, _ = redisconn.DoOnCaller(ctx, c, func(context.Context, redis.Cmdable) ([]byte, error) {
			cancel()
			return nil, context.Canceled
		})
		if !c.MayUseCaller(t.Context()) {
			t.Error("no caller may read")
		}
	})
}

func TestPunctual(t *testing.T) {
	s := redistest.Start(t)
	plain, obeys := s.Client(t), s.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	punctual := redisconn.Punctual(plain, opTimeout)
	if o := punctual.Options(); !o.ContextTimeoutEnabled || o.ReadTimeout != opTimeout || o.WriteTimeout != opTimeout {
		t.Errorf("got read and write timeouts of %v, %v", o.ReadTimeout, o.WriteTimeout)
	}
	if o := plain.Options(); o.ContextTimeoutEnabled || o.ReadTimeout == opTimeout {
		t.Error("the user's client has been changed")
	}
	if redisconn.Punctual(obeys, opTimeout) != obeys {
		t.Error("a client that obeys contexts was copied, and the copy loses hooks that are added later")
	}
	if redisconn.Punctual(struct{ redis.UniversalClient }{plain}, opTimeout) != nil {
		t.Error("got a client for one whose connections are unknown")
	}
	s.Stop()
	defer s.Cont()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	began, lag := time.Now(), redistest.MeasureLag(t)
	if err := punctual.Ping(ctx).Err(); err == nil || time.Since(began) > lag.Allow(2*opTimeout) {
		t.Errorf("got %v after %v, want an error after %v", err, time.Since(began), opTimeout)
	}
}

// A GET of what somebody else has put there may be hundreds of megabytes.
func TestGetRangeReadsOneByteMoreThanAllowed(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		rdb := newClient()
		rdb.Set(t.Context(), "long", strings.Repeat("x", 1000), 0)
		rdb.Set(t.Context(), "short", "xy", 0)
		rdb.LPush(t.Context(), "list", "x")
		for key, want := range map[string]int{"long": 11, "short": 2, "none": 0, "list": 0} {
			if data, err := redisconn.GetRange(t.Context(), rdb, key, 10); len(data) != want || err != nil {
				t.Errorf("%s: got %d bytes, %v, want %d", key, len(data), err, want)
			}
		}
	})
}
