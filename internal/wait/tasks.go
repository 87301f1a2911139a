package wait

import (
	"sync"
	"time"
)

// Tasks counts the running tasks of an owner that can be closed. Unlike a sync.WaitGroup it refuses new
// tasks after Close, and waiting for the running ones can have a time limit. The zero value is ready to use.
type Tasks struct {
	mu      sync.Mutex // guards what follows
	running int
	idle    chan struct{} // nil before Close; closed when no task runs
}

// Begin counts a task and returns true; the task must call End once. After Close it returns false.
func (t *Tasks) Begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle != nil {
		return false
	}
	t.running++
	return true
}

// End ends a task for which Begin returned true.
func (t *Tasks) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 && t.idle != nil {
		close(t.idle)
	}
}

// Go runs task in a new goroutine. After Close it does nothing.
func (t *Tasks) Go(task func()) {
	if t.Begin() {
		go func() {
			defer t.End()
			task()
		}()
	}
}

// Close makes Begin refuse new tasks. The returned channel is closed when no task runs.
func (t *Tasks) Close() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle == nil {
		if t.idle = make(chan struct{}); t.running == 0 {
			close(t.idle)
		}
	}
	return t.idle
}

// CloseWithin makes Begin refuse new tasks, and waits until no task runs, or for limit.
func (t *Tasks) CloseWithin(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.Close():
	case <-timer.C:
	}
}
