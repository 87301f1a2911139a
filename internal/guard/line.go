package guard

import "time"

// A waiter is a call that waits for its place. Its queue's mutex guards it.
type waiter struct {
	place *Place
	since time.Time
	ready chan error // receives nil when the call has its place, or the refusal

	line       *line // in which it waits; nil: it no longer waits
	prev, next *waiter
}

// A line is a list of waiters, first in first out. The queue's mutex guards it.
type line struct {
	first, last *waiter
	len         int
}

func (l *line) push(w *waiter) {
	w.line, w.prev, w.next = l, l.last, nil
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.len++
}

func (l *line) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.line = nil
	l.len--
}

// end takes w out of the line and ends its waiting with err.
func (l *line) end(w *waiter, err error) {
	l.remove(w)
	w.ready <- err
}
