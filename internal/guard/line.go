package guard

import "time"

// A waiter is a call that waits for its place. Its queue's mutex guards it.
type waiter struct {
	place *Place
	since time.Time
	ready chan error // gets nil with the place, or the refusal

	line       *line // in which it waits; nil: no longer
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

// end ends the waiting of w.
func (l *line) end(w *waiter, err error) {
	l.remove(w)
	w.ready <- err
}
