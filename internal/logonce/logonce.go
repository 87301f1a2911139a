// Package logonce logs events that the library survives and that no caller learns of,
// at most once a minute for each kind. If Redis is down, ten thousand operations a
// second fail; an operator wants to read that once.
package logonce

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// Every is the shortest time between two logged events of one kind.
const Every = time.Minute

// A Log logs events to a logger. It counts the events that it does not log; the next
// event of their kind carries the count as "unlogged". It may be used concurrently,
// and with any mutex held, but for Last: a goroutine calls the logger. A nil Log logs nothing.
type Log struct {
	log    *slog.Logger
	prefix string
	seen   *seen
}

// A seen counts the recent events by kind.
type seen struct {
	mu    sync.Mutex // guards what follows
	kinds map[string]*kind
}

type kind struct {
	again  time.Time // when it may be logged next
	silent int       // how many were not logged since the last
}

// New makes a Log whose messages begin with prefix, and whose lines carry their events.
func New(log *slog.Logger, prefix string) *Log {
	return &Log{log: WithEvents(log), prefix: prefix, seen: &seen{kinds: map[string]*kind{}}}
}

// To returns a Log with another logger, which shares the counts of l.
func (l *Log) To(log *slog.Logger) *Log {
	return &Log{log: WithEvents(log), prefix: l.prefix, seen: l.seen}
}

// Info logs an event of the kind what. args are key-value pairs or Attrs, as for slog.
func (l *Log) Info(what string, args ...any) { l.note(slog.LevelInfo, what, args) }

// Warn is like Info for an event that an operator should know of.
func (l *Log) Warn(what string, args ...any) { l.note(slog.LevelWarn, what, args) }

// Error is like Info for an event that only an operator can fix.
func (l *Log) Error(what string, args ...any) { l.note(slog.LevelError, what, args) }

// Last is like Error, and returns when the logger has: the process may end then. The caller must
// hold no mutex.
func (l *Log) Last(what string, args ...any) {
	if line := l.line(slog.LevelError, what, args); line != nil {
		line()
	}
}

func (l *Log) note(level slog.Level, what string, args []any) {
	if line := l.line(level, what, args); line != nil {
		go line()
	}
}

// line returns what calls the logger, or nil for an event that is only counted.
func (l *Log) line(level slog.Level, what string, args []any) func() {
	if l == nil {
		return nil
	}
	silent, ok := l.seen.count(what)
	if !ok {
		return nil
	}
	if silent > 0 {
		args = append(args, "unlogged", silent)
	}
	return func() { l.log.Log(context.Background(), level, l.prefix+what, args...) }
}

// count counts an event. It reports whether to log it, and how many events of its kind
// have gone unlogged since the last logged one.
func (s *seen) count(what string) (silent int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds[what]
	if k == nil {
		k = &kind{}
		s.kinds[what] = k
	}
	now := time.Now()
	if now.Before(k.again) {
		k.silent++
		return 0, false
	}
	silent = k.silent
	*k = kind{again: now.Add(Every)}
	return silent, true
}

// Name returns an Attr with a name or key, formatted by Shown.
func Name(what, name string) slog.Attr { return slog.Any(what, shown(name)) }

// A shown is formatted only when it is logged.
type shown string

func (s shown) LogValue() slog.Value { return slog.StringValue(Shown(string(s))) }

// Shown returns a name or key for a log line. A key may come from anywhere and have any
// length: Shown cuts it to 100 characters, and quotes it if strconv.Quote would escape
// anything in it. Other names stay unquoted: handlers quote where they need to, and an
// ordinary id quoted twice is hard to search for.
func Shown(name string) string {
	cut := fmt.Sprintf("%.100s", name)
	if quoted := strconv.Quote(cut); len(quoted) != len(cut)+2 {
		return quoted
	}
	return cut
}
