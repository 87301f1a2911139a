package cache

import (
	"sync"
	"time"
)

// tasks counts what is under way. Unlike a sync.WaitGroup it can be waited for with a
// limit, and a task may begin beside the waiting: it is refused then. The zero value is
// ready.
type tasks struct {
	mu      sync.Mutex // guards what follows
	running int
	closed  bool
	idle    chan struct{} // made by wait, closed when nothing runs
}

// begin counts a task, which owes an end. It reports false after wait has been called.
func (t *tasks) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.running++
	return true
}

func (t *tasks) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 && t.closed {
		close(t.idle)
	}
}

// wait lets no task begin any more, and returns when none runs, or after limit.
func (t *tasks) wait(limit time.Duration) {
	t.mu.Lock()
	if !t.closed {
		t.closed, t.idle = true, make(chan struct{})
		if t.running == 0 {
			close(t.idle)
		}
	}
	idle := t.idle
	t.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
