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
	err := errLate
	for range attempts {
		if !errors.Is(err, errLate) {
			break
		}
		err = s.onRecord(ctx, func(rec *record) error {
			hashes := rec.key.appendSums(make([]hash, 0, len(ids)), ids)
			last, err := s.store.add(ctx, rec, hashes, s.giveUpAfter())
			if err != nil {
				return err
			}
			return s.added(rec, hashes, last)
		})
	}
	return err
}

// errLate is the end of an add whose reply came so late that nobody knows any more whether the log
// has shown it. The add is repeated.
var errLate = errors.New("a reply was late")

// added puts hashes into the tables of this process, after Redis has put them into the log,
// the last of them at the entry last. It notes the entries: the updater will have to find
// them when it reads that far. If it has read that far already, it must have found them. If
// not, Redis has lost them since, or something else before them:
//
//  1. Add(x) gets entry 8, and the reply is on the way.
//  2. Redis fails over and loses entry 8. Another process adds y: another entry 8.
//  3. The updater reads it. Nobody has told it of the first.
//  4. The reply of step 1 arrives.
func (s *shared) added(rec *record, hashes []hash, last entryID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != rec {
		return errLost
	}
	for i, h := range hashes {
		number := last.number + 1 - uint64(len(hashes)) + uint64(i)
		switch {
		case number > s.at.number:
			s.own[number] = h
		case s.at.number-number >= uint64(len(s.passed)):
			return errLate
		case s.passed[number%uint64(len(s.passed))] != h:
			return errLost
		}
		for _, t := range s.fed {
			t.add(h)
		}
	}
	s.newest = max(s.newest, last.number)
	return nil
}

// read applies a part of the log to the tables of this process. It fails if the log has
// something else where Redis has acknowledged an add of this process.
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
		s.passed[number%uint64(len(s.passed))] = h
		for _, t := range s.fed {
			t.add(h)
		}
	}
	s.at, s.snapshot = part.entry, part.snapshot
	return nil
}

// ensure adds the ids that the copy does not hold. The copy may be outdated, and the filter
// may abstain for it: it holds what it held. An id that only looks held has to be in the log
// all the same, from which a Rebuild takes over what its scan may have missed, but Redis may
// be away for that.
func (s *shared) ensure(ctx context.Context, ids []string) error {
	if s.life.Err() != nil {
		return ErrClosed
	}
	c := s.answering.Load()
	held := func(id string) bool {
		return c != nil && !c.table.saturated.Load() && c.table.contains(c.key.sum(id))
	}
	var old, others []string
	for _, id := range ids {
		if held(id) {
			old = append(old, id)
		} else {
			others = append(others, id)
		}
	}
	if err := s.add(ctx, others); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	_ = s.add(ctx, old)
	return nil
}

// add puts hashes into the log, and returns the entry of the last. If more than most entries
// follow the snapshot, it gives that up.
func (s *store) add(ctx context.Context, rec *record, hashes []hash, most uint64) (last entryID, err error) {
	reply, err := s.eval(ctx, addScript, []string{s.names.Record(), s.names.Log()}, rec.header, encodeHashes(hashes),
		s.o.logRetention().Milliseconds(), most, s.names.Channel(), s.self).List()
	if err != nil {
		return entryID{}, err
	}
	_, texts, err := parseReply(reply, 1, 1)
	if err != nil {
		return entryID{}, err
	}
	return decodeEntryID(texts[0])
}
