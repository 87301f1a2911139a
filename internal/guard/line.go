package guard

import (
	"container/list"
	"time"
)

// A waiter is a call that waits for its place. Its queue's mutex guards it.
type waiter struct {
	place *Place
	since time.Time
	ready chan error // receives nil when the call has its place, or the refusal

	line *line // in which it waits; nil: it no longer waits
	at   *list.Element
}

// A line is a list of waiters, first in first out. The queue's mutex guards it.
type line struct{ list.List }

func (l *line) push(w *waiter) { w.line, w.at = l, l.PushBack(w) }

func (l *line) remove(w *waiter) {
	l.Remove(w.at)
	w.line = nil
}

// first returns the waiter that has waited longest, nil if none waits.
func (l *line) first() *waiter {
	if at := l.Front(); at != nil {
		return at.Value.(*waiter)
	}
	return nil
}

// end takes w out of the line and ends its waiting with err.
func (l *line) end(w *waiter, err error) {
	l.remove(w)
	w.ready <- err
}
