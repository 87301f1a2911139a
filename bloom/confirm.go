package bloom

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// confirmTimeout is how long MayContain waits for Redis to confirm a no, before it says
// yes.
const confirmTimeout = 100 * time.Millisecond

// A confirmation is one read of the log that callers wait for. It begins after they
// have asked, so it sees every add from before. Callers that come while a read runs
// share the next one.
type confirmation struct {
	done chan struct{} // closed at the end of the read
	ok   bool          // the read has reached the end of the log; written before done is closed
}

// finish ends the confirmation, if there is one.
func (c *confirmation) finish(ok bool) {
	if c != nil {
		c.ok = ok
		close(c.done)
	}
}

// confirm waits until the copy has everything that was added before the call, and
// reports whether it has.
func (s *shared) confirm(ctx context.Context) bool {
	s.mu.Lock()
	if s.confirmation == nil {
		s.confirmation = &confirmation{done: make(chan struct{})}
	}
	c := s.confirmation
	s.mu.Unlock()
	wait.Wake(s.asked)

	timer := time.NewTimer(confirmTimeout)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.ok
	case <-timer.C:
	case <-ctx.Done():
	case <-s.life.Done():
	}
	return false
}

// takeConfirmation returns the confirmation that callers wait for, nil for none. The
// updater takes it before it begins to read: later callers get another one.
func (s *shared) takeConfirmation() *confirmation {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.confirmation
	s.confirmation = nil
	return c
}

func (s *shared) isAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmation != nil
}
