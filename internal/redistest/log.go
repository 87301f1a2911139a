package redistest

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Log is what was logged. It may be used concurrently; the zero value is empty.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Logger writes to the log, a line for each event.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write adds to the log.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count is how often the log says what.
func (l *Log) Count(what string) int { return strings.Count(l.String(), what) }

// Await waits until the log says what.
func (l *Log) Await(t testing.TB, what string) {
	t.Helper()
	Eventually(t, 10*time.Second, "it is logged: "+what, func() bool { return l.Count(what) > 0 })
}

// go-redis logs each connection that it cannot make. Tests take servers away all the
// time: of 447 lines of a failed run 289 were such lines.
func init() { redis.SetLogger(silence{}) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
