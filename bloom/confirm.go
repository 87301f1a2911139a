package bloom

import (
	"context"
	"time"
)

func (s *shared) mayContain(ctx context.Context, id string) bool {
	if !s.denies(id) {
		return true
	}
	return s.o.Confirm && !(s.confirm(ctx) && s.denies(id))
}

// An ask is a look into the log that begins later.
type ask struct {
	done chan struct{} // closed when the look is over
	ok   bool          // it has reached the end; to be read when it is over
}

func (a *ask) finish(ok bool) {
	if a != nil {
		a.ok = ok
		close(a.done)
	}
}

// confirm waits until everything is taken over that was added before the call, and
// tells whether it is. All who wait share one look into the log.
func (s *shared) confirm(ctx context.Context) bool {
	s.mu.Lock()
	if s.ask == nil {
		s.ask = &ask{done: make(chan struct{})}
	}
	a := s.ask
	s.mu.Unlock()
	wake(s.asked)

	timer := time.NewTimer(confirmTimeout)
	defer timer.Stop()
	select {
	case <-a.done:
		return a.ok
	case <-timer.C:
	case <-ctx.Done():
	case <-s.life.Done():
	}
	return false
}

// confirmTimeout is how long a no waits to be confirmed; then it is none.
const confirmTimeout = 100 * time.Millisecond

func (s *shared) takeAsk() *ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.ask
	s.ask = nil
	return a
}

func (s *shared) isAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ask != nil
}
