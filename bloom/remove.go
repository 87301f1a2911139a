package bloom

import (
	"context"
	"errors"
	"slices"
	"time"
)

// add puts ids into the set, some at a time.
func (s *shared) add(ctx context.Context, ids []string) error {
	for chunk := range slices.Chunk(ids, s.o.chunk()) {
		if s.life.Err() != nil {
			return ErrClosed
		}
		if err := s.addChunk(ctx, chunk); err != nil {
			return unavailable(ctx, "Add", err)
		}
		s.adds.Add(uint64(len(chunk)))
	}
	return nil
}

var errChanging = errors.New("the generations keep changing")

// attempts is how often a call is repeated because the filter has changed under it.
const attempts = 8

func (s *shared) addChunk(ctx context.Context, ids []string) error {
	hashes := make([]hash, 0, addChunk)
	for range attempts {
		inc, err := s.incarnation(ctx)
		if err != nil {
			return err
		}
		hashes = hashes[:0]
		for _, id := range ids {
			hashes = append(hashes, inc.key.sum(id))
		}
		err = s.addHashes(ctx, inc, hashes)
		if !errors.Is(err, errLost) {
			return err
		}
		s.drop(inc) // the next attempt makes a record
	}
	return errLost
}

// addHashes adds in Redis, and then here: so when it returns, both say yes.
func (s *shared) addHashes(ctx context.Context, inc *incarnation, hashes []hash) error {
	for range attempts {
		s.mu.Lock()
		guess := s.state
		s.mu.Unlock()
		done, err := s.authority.add(ctx, inc, hashes, guess)
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.inc != nil && *s.inc == *inc {
			s.state = done.state
		}
		if !done.stale {
			s.added(inc, hashes, done.entry)
		}
		s.mu.Unlock()
		if !done.stale {
			return nil
		}
	}
	return errChanging
}

// added takes over an add of our own ahead of the log. It is called with mu held.
func (s *shared) added(inc *incarnation, hashes []hash, at entry) {
	if s.recentOf != inc.key {
		s.recentOf = inc.key
		s.recent.drop()
	}
	s.recent.push(hashes)
	if s.inc == nil || *s.inc != *inc {
		return // nothing of inc answers; what will, begins later than this add
	}
	if s.own.before(at) {
		s.own = at
	}
	if !s.applied.before(at) {
		return // the log has brought it, and perhaps its Remove
	}
	for _, r := range []*replica{s.replica, s.candidate} {
		if r == nil {
			continue
		}
		for _, h := range hashes {
			r.add(h)
		}
	}
}

// addAgain adds what was added here lately: a Redis that failed over to a replica may
// have lost what it had acknowledged. After a flush it is of use only if the key is a
// secret's.
func (s *shared) addAgain(ctx context.Context, inc *incarnation) error {
	s.mu.Lock()
	same := s.recentOf == inc.key
	s.mu.Unlock()
	if !same {
		return nil
	}
	hashes, _ := s.recent.take()
	for chunk := range slices.Chunk(hashes, s.o.chunk()) {
		if err := s.addHashes(ctx, inc, chunk); err != nil {
			return err
		}
	}
	return nil
}

// remove takes ids out of the set, some at a time.
func (s *shared) remove(ctx context.Context, ids []string) error {
	begun := time.Now()
	for chunk := range slices.Chunk(ids, s.o.chunk()) {
		if s.life.Err() != nil {
			return ErrClosed
		}
		if err := s.removeChunk(ctx, begun, chunk); err != nil {
			return unavailable(ctx, "Remove", err)
		}
		s.removes.Add(uint64(len(chunk)))
	}
	return nil
}

func (s *shared) removeChunk(ctx context.Context, begun time.Time, ids []string) error {
	for range attempts {
		inc, err := s.incarnation(ctx)
		if err != nil {
			return err
		}
		hashes := make([]hash, 0, len(ids))
		for _, id := range ids {
			hashes = append(hashes, inc.key.sum(id))
		}
		err = s.removeHashes(ctx, inc, begun, hashes)
		if !errors.Is(err, errLost) {
			return err
		}
		s.drop(inc) // and nothing was removed
	}
	return errLost
}

// removeHashes removes in Redis. Here it comes with the log: an add of our own that is
// not in there yet may need the same positions.
//
// A row that was deleted before the scan of a Rebuild is not in its result. The Remove
// begins within MaxTransaction of that, and the ticket is not older than the Remove by
// more than what has passed meanwhile: so the generation must be older than the ticket
// by both. However late the script then runs, it looks at the ticket.
func (s *shared) removeHashes(ctx context.Context, inc *incarnation, begun time.Time, hashes []hash) error {
	ticket, err := s.ticket(ctx, inc)
	if err != nil {
		return err
	}
	quiet := s.o.MaxTransaction
	if quiet >= 0 {
		quiet += time.Since(begun)
	}
	for range attempts {
		s.mu.Lock()
		guess := s.state
		s.mu.Unlock()
		done, err := s.authority.remove(ctx, inc, ticket, hashes, guess, quiet)
		if err != nil {
			return err
		}
		s.mu.Lock()
		if s.inc != nil && *s.inc == *inc {
			s.state = done.state
		}
		s.mu.Unlock()
		if !done.stale {
			wake(s.kick)
			return nil
		}
	}
	return errChanging
}
