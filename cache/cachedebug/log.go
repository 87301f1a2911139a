package cachedebug

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
)

// A Log is a slog.Handler that passes records on and keeps the last lines for the page. Make it
// with [NewLog].
type Log struct {
	next slog.Handler
	text slog.Handler // writes into lines
	last *lastLines
}

// longestLine is how many bytes of a line are kept.
const longestLine = 1 << 10

// NewLog makes a Log that keeps up to n lines, of the levels that next is enabled for. If next is
// nil, records of level Info and above are kept and passed to no other handler.
//
//	log := cachedebug.NewLog(slog.Default().Handler(), 100)
//	o := cache.Options{Name: "product", Logger: slog.New(log)}
func NewLog(next slog.Handler, n int) *Log {
	last := &lastLines{most: max(n, 1)}
	return &Log{next: next, text: slog.NewTextHandler(last, &slog.HandlerOptions{Level: slog.Level(-1 << 10)}), last: last}
}

// Enabled implements slog.Handler.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool {
	if l.next == nil {
		return level >= slog.LevelInfo
	}
	return l.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l *Log) Handle(ctx context.Context, r slog.Record) error {
	err := l.text.Handle(ctx, r)
	if l.next != nil {
		err = errors.Join(err, l.next.Handle(ctx, r))
	}
	return err
}

// WithAttrs implements slog.Handler.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := &Log{text: l.text.WithAttrs(attrs), last: l.last}
	if l.next != nil {
		with.next = l.next.WithAttrs(attrs)
	}
	return with
}

// WithGroup implements slog.Handler.
func (l *Log) WithGroup(name string) slog.Handler {
	with := &Log{text: l.text.WithGroup(name), last: l.last}
	if l.next != nil {
		with.next = l.next.WithGroup(name)
	}
	return with
}

// Lines returns the last lines, the newest first. A nil Log has none.
func (l *Log) Lines() []string {
	if l == nil {
		return nil
	}
	return l.last.newestFirst()
}

// lastLines keeps the last lines. Each Write is a line, as a slog.TextHandler writes them.
type lastLines struct {
	most int

	mu    sync.Mutex // guards what follows
	lines []string   // a ring, once it is full
	next  int        // where the next line goes
}

func (l *lastLines) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line[:min(len(line), longestLine)]), "\n")
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < l.most {
		l.lines = append(l.lines, text)
	} else {
		l.lines[l.next] = text
	}
	l.next = (l.next + 1) % l.most
	return len(line), nil
}

func (l *lastLines) newestFirst() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := make([]string, len(l.lines))
	for i := range lines {
		lines[i] = l.lines[(l.next-1-i+2*len(l.lines))%len(l.lines)]
	}
	return lines
}
