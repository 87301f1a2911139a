// Package logonce logs what the library survives and nobody else would be told of.
// A Redis that is gone fails ten thousand operations a second; an operator wants
// to read of it once.
package logonce

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// Every is how often an event of one kind is logged at the most.
const Every = time.Minute

// A Log logs events to a logger, and counts those that it does not log for
// the next of their kind, as "unlogged". It may be used concurrently, and with any
// mutex held: it leaves the work to a goroutine. A nil Log logs nothing.
type Log struct {
	log    *slog.Logger
	prefix string
	seen   *seen
}

// seen is what happened lately, by kind of event.
type seen struct {
	mu    sync.Mutex // guards what follows
	kinds map[string]*kind
}

type kind struct {
	again  time.Time // when it may be logged next
	silent int       // how many were not logged since the last
}

// New makes a Log whose messages begin with prefix.
func New(log *slog.Logger, prefix string) *Log {
	return &Log{log: log, prefix: prefix, seen: &seen{kinds: map[string]*kind{}}}
}

// To is the same Log with another logger.
func (l *Log) To(log *slog.Logger) *Log {
	return &Log{log: log, prefix: l.prefix, seen: l.seen}
}

// Info logs an event, whose kind is what. Args are those of slog.
func (l *Log) Info(what string, args ...any) { l.note(slog.LevelInfo, what, args) }

// Warn is Info for what an operator should know of.
func (l *Log) Warn(what string, args ...any) { l.note(slog.LevelWarn, what, args) }

// Error is Info for what only an operator can mend.
func (l *Log) Error(what string, args ...any) { l.note(slog.LevelError, what, args) }

func (l *Log) note(level slog.Level, what string, args []any) {
	if l == nil {
		return
	}
	silent, ok := l.seen.count(what)
	if !ok {
		return
	}
	if silent > 0 {
		args = append(args, "unlogged", silent)
	}
	go l.log.Log(context.Background(), level, l.prefix+what, args...)
}

// count counts an event, and tells whether to log it and how many were not since
// the last.
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

// Name is a name or key as it stands in a log, see Shown.
func Name(what, name string) slog.Attr { return slog.Any(what, shown(name)) }

// shown is turned into text only when it is logged.
type shown string

func (s shown) LogValue() slog.Value { return slog.StringValue(Shown(string(s))) }

// Shown is a name or key for a log. It may have come from anywhere, and be of any length:
// it is cut, and quoted if anything in it would look otherwise inside quotes. Handlers
// quote by themselves what they need to, and an ordinary id quoted twice is hard to
// search for.
func Shown(name string) string {
	cut := fmt.Sprintf("%.100s", name)
	if quoted := strconv.Quote(cut); len(quoted) != len(cut)+2 {
		return quoted
	}
	return cut
}
