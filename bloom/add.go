package bloom

import (
	"context"
	"errors"
	"slices"
	"time"
)

// ensureTimeout is how long Ensure waits for Redis to log an id that the copy holds.
const ensureTimeout = 100 * time.Millisecond

// add appends ids to the log and puts them into the tables of this process.
func (s *shared) add(ctx context.Context, ids []string) error {
	for chunk := range slices.Chunk(ids, addChunk) {
		if s.life.Err() != nil {
			return ErrClosed
		}
		s.recent.push(chunk) // before Redis has them: what Redis loses just after its reply is added again too
		if err := s.addChunk(ctx, chunk); err != nil {
			return unavailable(ctx, "Add", err)
		}
		s.counts.adds.Add(uint64(len(chunk)))
	}
	return nil
}

func (s *shared) addChunk(ctx context.Context, ids []string) error {
	return s.onRecord(ctx, func(rec *record) error {
		hashes := rec.key.appendSums(make([]hash, 0, len(ids)), ids)
		last, err := s.store.add(ctx, rec, hashes, s.giveUpAfter())
		if err != nil {
			return err
		}
		return s.added(rec, hashes, last)
	})
}

// errLate reports that the reply to an add came after the updater had read past the add's
// entries. The add is repeated.
var errLate = errors.New("a reply was late")

// added puts hashes into the tables of this process, after Redis has put them into the log,
// the last of them as the entry last. It notes the entries in own: the updater must find them
// when it reads that far. If the updater has read that far already, it has not compared what it
// found, and added returns errLate:
//
//  1. Add(x) gets entry 8, and the reply is on the way.
//  2. Redis fails over and loses entry 8. Another process adds y: another entry 8.
//  3. The updater reads y's entry 8, and does not know of x's.
//  4. The reply of step 1 arrives.
func (s *shared) added(rec *record, hashes []hash, last entryID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := last.number + 1 - uint64(len(hashes))
	switch {
	case s.record != rec:
		return errLost
	case first <= s.at.number:
		return errLate
	}
	for i, h := range hashes {
		s.own[first+uint64(i)] = h
		for _, t := range s.fed {
			t.add(h)
		}
	}
	s.newest = max(s.newest, last.number)
	return nil
}

// read applies a part of the log to the tables of this process. It fails if an entry that
// Redis has acknowledged for an add of this process has another hash in the log.
func (s *shared) read(rec *record, part logPart) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != rec {
		return errLost
	}
	for i, h := range part.hashes {
		number := part.first + uint64(i)
		if own, ok := s.own[number]; ok && own != h {
			return errGap
		}
		delete(s.own, number)
		for _, t := range s.fed {
			t.add(h)
		}
	}
	s.at, s.snapshot = part.entry, part.snapshot
	return nil
}

// ensure adds ids, but does not fail for ids that the copy holds, even if the copy is so outdated
// that the filter abstains: ids stay in it. An id that only looks as if the copy held it must get
// into the log all the same, from which a Rebuild takes over what its scan has missed:
//
//  1. The Rebuild of another process scans past the place of x.
//  2. Ensure(x) here, where x looks held. It does not reach Redis.
//  3. The row of x commits.
//  4. The Rebuild puts a snapshot without x in use.
//
// So the updater adds x when Redis can be reached again. If the updater has not reached Redis for
// MaxLag, ensure does not try to either.
func (s *shared) ensure(ctx context.Context, ids []string) error {
	if s.life.Err() != nil {
		return ErrClosed
	}
	c := s.answering.Load()
	var old, others []string
	for _, id := range ids {
		if c != nil && !c.table.saturated.Load() && c.table.contains(c.key.sum(id)) {
			old = append(old, id)
		} else {
			others = append(others, id)
		}
	}
	if len(old) > 0 && c.left() > 0 {
		soon, cancel := context.WithTimeout(ctx, ensureTimeout)
		defer cancel()
		if s.add(soon, ids) == nil {
			return nil
		}
	}
	s.recent.push(old)
	s.owe(old)
	return s.add(ctx, others)
}

// owe puts ids into the tables of this process, and leaves it to the updater to add them to the
// log. If they are too many, the updater adds those that are in recent.
func (s *shared) owe(ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		for _, t := range s.fed {
			t.addAll(s.record.key.appendSums(nil, ids))
		}
	}
	if s.owed = append(s.owed, ids...); len(s.owed) > 2*maxRecent {
		s.owed, s.lost = nil, true
	}
}

// payOff adds the ids that are owed to the log, and the ids that this process has added lately if
// Redis may have lost them.
func (s *shared) payOff(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.lost {
			recent, _ := s.recent.take()
			s.owed, s.lost = append(recent, s.owed...), false
		}
		chunk := s.owed[:min(addChunk, len(s.owed))]
		s.mu.Unlock()
		if len(chunk) == 0 {
			return nil
		}
		if err := s.addChunk(ctx, chunk); err != nil {
			return err
		}
		s.mu.Lock()
		s.owed = s.owed[min(len(chunk), len(s.owed)):] // fewer if there were too many meanwhile
		s.mu.Unlock()
	}
}

// add puts hashes into the log, and returns the entry of the last hash. If more than most
// entries follow the snapshot, it gives the snapshot up.
func (s *store) add(ctx context.Context, rec *record, hashes []hash, most uint64) (last entryID, err error) {
	reply, err := s.eval(ctx, addScript, []string{s.names.Record(), s.names.Log()}, rec.header, encodeHashes(hashes),
		s.o.logRetention().Milliseconds(), most, s.names.Channel(), s.self, minLog).List()
	if err != nil {
		return entryID{}, err
	}
	_, texts, err := parseReply(reply, 1, 1)
	if err != nil {
		return entryID{}, err
	}
	return decodeEntryID(texts[0])
}
