package redistest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// impatient is a client that gives up at once instead of trying again.
func impatient(o *redis.Options) {
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ReadTimeout = 50 * time.Millisecond
}

func TestAServerCanBeFrozenKilledAndRestartedEmpty(t *testing.T) {
	s := Start(t)
	c, ctx := s.Client(t, impatient), t.Context()
	mustSet(t, c, "k", "v")

	s.Stop()
	if err := c.Get(ctx, "k").Err(); err == nil {
		t.Error("a frozen server answered")
	}
	s.Cont()
	Eventually(t, 5*time.Second, "it answers again", func() bool { return c.Get(ctx, "k").Val() == "v" })

	s.Kill()
	if err := c.Get(ctx, "k").Err(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v from a dead server", err)
	}
	s.Restart()
	if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("got %v from a server started anew", err)
	}
	s.Stop()
	s.Restart() // must not wait for a frozen process to go by itself
	mustSet(t, c, "k", "v")
}

func TestDataKeptOnDiskSurvivesARestart(t *testing.T) {
	s := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	c := s.Client(t)
	mustSet(t, c, "k", "v")
	s.Kill()
	s.Restart()
	if got := c.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("got %q", got)
	}
	s.Shutdown()
	s.Restart()
	if got := c.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("got %q after a shutdown", got)
	}
}

func TestStatsCountWhatTheTestSent(t *testing.T) {
	s := Start(t)
	c, ctx := s.Client(t), t.Context()
	before := s.Stat("total_connections_received")
	mustSet(t, c, "k", "v")
	for range 5 {
		c.Get(ctx, "k")
	}
	c.ClientList(ctx)
	if gets, lists, dels := s.Calls("GET"), s.Calls("client|list"), s.Calls("del"); gets != 5 || lists != 1 || dels != 0 {
		t.Errorf("%d GET, %d CLIENT LIST, %d DEL", gets, lists, dels)
	}
	if got := s.Stat("total_connections_received") - before; got != 1 {
		t.Errorf("%d connections", got)
	}
	if s.Calls("client|setinfo") != 0 || s.Calls("client|maint_notifications") != 0 {
		t.Error("the client's handshake sends more than HELLO")
	}
}

func TestAServerThatWantsAPasswordIsReady(t *testing.T) {
	s := Start(t, "--requirepass", "secret")
	if err := s.Client(t).Ping(t.Context()).Err(); err == nil {
		t.Error("no password was wanted")
	}
	if err := s.Client(t, func(o *redis.Options) { o.Password = "secret" }).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestAMissingServerSaysHowToInstallIt(t *testing.T) {
	t.Setenv("LEVEE_REDIS_SERVER", "no-such-redis-server")
	_, err := startServer(t, func(int, string) []string { return nil })
	if err == nil || !strings.Contains(err.Error(), "make redis") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutAServerATestIsSkipped(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("LEVEE_REDIS_SERVER", "")
	skipped := false
	t.Run("without", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		Start(t)
	})
	if !skipped {
		t.Error("it was not skipped")
	}
}

func TestAServerThatCannotStartShowsItsLog(t *testing.T) {
	Need(t)
	_, err := startServer(t, func(int, string) []string { return []string{"--no-such-setting", "1"} })
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") || !strings.Contains(err.Error(), "line") {
		t.Errorf("got %v", err)
	}
}

func mustSet(t *testing.T, c redis.Cmdable, key, value string) {
	t.Helper()
	if err := c.Set(context.Background(), key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}
