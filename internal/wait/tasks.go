package wait

import (
	"sync"
	"time"
)

// Tasks counts what is under way for an owner that can be closed. Unlike a sync.WaitGroup it lets nothing
// begin any more from then on, and it can be waited for with a limit. The zero value is ready.
type Tasks struct {
	mu      sync.Mutex // guards what follows
	running int
	idle    chan struct{} // nil: not closed yet; closed when nothing runs
}

// Begin counts a task, which owes an End. It reports false after Close.
func (t *Tasks) Begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle != nil {
		return false
	}
	t.running++
	return true
}

// End is called once for each Begin that was true.
func (t *Tasks) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running--; t.running == 0 && t.idle != nil {
		close(t.idle)
	}
}

// Go runs task in a goroutine, or not at all after Close.
func (t *Tasks) Go(task func()) {
	if t.Begin() {
		go func() {
			defer t.End()
			task()
		}()
	}
}

// Close lets no task begin any more. The channel is closed when none runs.
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

// CloseWithin is Close, and returns when no task runs, or after limit.
func (t *Tasks) CloseWithin(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.Close():
	case <-timer.C:
	}
}
