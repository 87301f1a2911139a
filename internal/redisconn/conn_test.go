package redisconn_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/contain"
	"github.com/levee-go/levee/internal/redisconn"
)

// offline returns a Conn of a client that no test connects.
func offline(t *testing.T, limit int) *redisconn.Conn {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	return redisconn.New(rdb, opTimeout, limit)
}

func TestDoReturnsWhatTheOperationReturns(t *testing.T) {
	got, err := redisconn.Do(t.Context(), offline(t, 1), time.Second, func(context.Context) (int, error) { return 7, io.EOF }, nil)
	if got != 7 || !errors.Is(err, io.EOF) {
		t.Fatalf("got %d, %v", got, err)
	}
}

// A call that waits for op itself fails here: op does not look at its context, as a
// go-redis read does not.
func TestDoLeavesAnOperationThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := offline(t, 2)
		var late int
		hang := func(context.Context) (int, error) { time.Sleep(5 * time.Second); return 7, nil }
		start := time.Now()
		_, err := redisconn.Do(t.Context(), c, opTimeout, hang, func(v int, _ error) { late = v })
		if !errors.Is(err, redisconn.ErrTimeout) || time.Since(start) != opTimeout {
			t.Errorf("came back after %v with %v", time.Since(start), err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		start = time.Now()
		_, err = redisconn.Do(ctx, c, opTimeout, hang, nil)
		if !errors.Is(err, context.Canceled) || time.Since(start) != time.Millisecond {
			t.Errorf("came back after %v with %v, want the cancellation at once", time.Since(start), err)
		}

		// Both operations still run, so there is no room for a third.
		if _, err = redisconn.Do(t.Context(), c, opTimeout, hang, nil); !errors.Is(err, redisconn.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if late != 7 {
			t.Errorf("the late result was %d, want 7", late)
		}
	})
}

// An operation runs the user's hooks too. That it panicked must not be taken for a
// cancellation, which is what the end of its context looks like.
func TestAPanicIsTheOperationsError(t *testing.T) {
	c := offline(t, 1)
	for range 1000 {
		_, err := redisconn.Do(t.Context(), c, time.Minute, func(context.Context) (int, error) { panic("ouch") }, nil)
		var p *contain.PanicError
		if !errors.As(err, &p) {
			t.Fatalf("got %v", err)
		}
	}
}

// A GET of what somebody else has put there may be hundreds of megabytes.
func TestReadReadsOneByteMoreThanAllowed(t *testing.T) {
	everywhere(t, func(t *testing.T, newClient func() *redis.Client) {
		rdb := newClient()
		c := redisconn.New(rdb, time.Second, 1)
		rdb.Set(t.Context(), "long", strings.Repeat("x", 1000), 0)
		rdb.Set(t.Context(), "short", "xy", 0)
		rdb.LPush(t.Context(), "list", "x")
		keys := []string{"long", "short", "none", "list"}
		many, errs := c.ReadMany(t.Context(), keys, 10)
		for i, want := range []int{11, 2, 0, 0} {
			if data, err := c.Read(t.Context(), keys[i], 10); len(data) != want || err != nil {
				t.Errorf("%s: got %d bytes, %v, want %d", keys[i], len(data), err, want)
			}
			if len(many[i]) != want || errs[i] != nil {
				t.Errorf("%s of many: got %d bytes, %v, want %d", keys[i], len(many[i]), errs[i], want)
			}
		}
	})
}
