package redistest

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// Without ClockTTL the key never expires here.
func TestAnHourOfTTLPassesInABubble(t *testing.T) {
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		c, ctx := Mini(t).Client(t), t.Context()
		if err := c.Set(ctx, "k", "v", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Millisecond)
		if got := c.Get(ctx, "k").Val(); got != "v" {
			t.Errorf("got %q before its time", got)
		}
		if ttl := c.PTTL(ctx, "k").Val(); ttl != time.Millisecond {
			t.Errorf("%v left", ttl)
		}
		time.Sleep(2 * time.Millisecond)
		if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("got %v after its time", err)
		}
	})
	if real := time.Since(began); real > 30*time.Second {
		t.Errorf("it took %v", real)
	}
}

func TestScriptsRunInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ctx := Mini(t).Client(t), t.Context()
		script := redis.NewScript(`
			redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
			return {redis.call('PTTL', KEYS[1]), redis.call('TIME')[1]}`)
		got, err := script.Run(ctx, c, []string{"k"}, "v", 500).Slice() // EVALSHA, NOSCRIPT, EVAL
		if err != nil || got[0] != int64(500) {
			t.Fatalf("got %v, %v", got, err)
		}
		if _, err := script.EvalSha(ctx, c, []string{"k"}, "v", 500).Slice(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if n := c.Exists(ctx, "k").Val(); n != 0 {
			t.Error("the script's key did not expire")
		}
	})
}

// A goroutine left by client, subscription or server makes the bubble panic.
func TestASubscriptionLivesAndEndsInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := Mini(t)
		a, b, ctx := m.Client(t), m.Client(t), t.Context()
		sub := a.Subscribe(ctx, "news")
		defer sub.Close()
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		messages := sub.Channel()
		time.Sleep(10 * time.Minute) // over many health checks
		if err := b.Publish(ctx, "news", "hello").Err(); err != nil {
			t.Fatal(err)
		}
		if got := (<-messages).Payload; got != "hello" {
			t.Errorf("got %q", got)
		}
	})
}

func TestAMiniServerCanHangInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := Mini(t)
		c := m.Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, 300*time.Millisecond })
		mustSet(t, c, "k", "v")
		m.Before(func(command string, args []string) {
			if command == "GET" && args[0] == "k" {
				time.Sleep(time.Second)
			}
		})
		start := time.Now()
		if err := c.Get(t.Context(), "other").Err(); !errors.Is(err, redis.Nil) || time.Since(start) != 0 {
			t.Errorf("%v after %v from another key", err, time.Since(start))
		}
		if err := c.Get(t.Context(), "k").Err(); err == nil || time.Since(start) != 300*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		m.Before(nil)
		if got := c.Get(t.Context(), "k").Val(); got != "v" {
			t.Errorf("got %q", got)
		}
		time.Sleep(time.Second) // the hanging command must find its way out before the end
	})
}

// A pipeline is longer than what a pipe in memory takes without a reader.
func TestAMiniServerTakesLongPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := Mini(t).Client(t)
		p := rdb.Pipeline()
		for range 1000 {
			p.Set(t.Context(), "key", strings.Repeat("x", 1000), time.Minute)
		}
		if _, err := p.Exec(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
