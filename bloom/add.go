package bloom

import (
	"context"
	"fmt"
	"slices"

	"github.com/levee-go/levee/internal/redisconn"
)

// An Add is one script, which sets bits in the generation in use and in the one that a
// Rebuild has announced, updates their checksums, and appends the hashes to the log. It is
// one script because a process that loads a copy compares it with the checksums at one
// entry of the log: bits that come before or after their entry would not agree.
//
// The positions of an id depend on the generation, and this process computes them. If
// Redis has generations that this process does not know, because a Rebuild has announced
// or switched, the script does nothing and names them, and this process repeats the Add.

// A changeReply is the reply to an add or a remove.
type changeReply struct {
	generations generations
	entry       entryID // the last entry that an add made in the log
	stale       bool    // nothing was done, since the caller did not know these generations
}

// add puts ids into the set. They are in Redis first and then in the copy, so both say
// yes when it returns.
func (s *shared) add(ctx context.Context, ids []string) error {
	return s.inChunks(ctx, "Add", ids, &s.counts.adds, func(rec *record, hashes []hash) error {
		return s.addHashes(ctx, rec, hashes)
	})
}

// ensure adds the ids that the copy does not hold. The copy may be outdated, and the filter
// may abstain for it: it holds what it held. In a filter that does not count, an id that
// only looks held has to be in the log all the same, from which a Rebuild takes over what
// its scan may have missed.
func (s *shared) ensure(ctx context.Context, ids []string) error {
	if s.life.Err() != nil {
		return ErrClosed
	}
	held := s.held(ids)
	others := slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(held, id) })
	if len(others) > 0 {
		if err := s.add(ctx, others); err != nil {
			return err
		}
	}
	if len(held) > 0 && !s.o.Counting {
		ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
		defer cancel()
		_ = s.add(ctx, held)
	}
	return nil
}

// held returns the ids that the copy holds.
func (s *shared) held(ids []string) (held []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copy == nil || s.copy.generation.saturated.Load() {
		return nil
	}
	for _, id := range ids {
		if s.copy.holds(s.copy.key.sum(id)) {
			held = append(held, id)
		}
	}
	return held
}

func (s *shared) addHashes(ctx context.Context, rec *record, hashes []hash) error {
	reply, err := s.onGenerations(rec, func(g generations) (changeReply, error) {
		return s.store.add(ctx, rec, hashes, g)
	})
	if err == nil {
		s.addToCopies(rec, hashes, reply.entry)
	}
	return err
}

// addToCopies adds what this process has just added to Redis, where it is in the log at
// entry. If the log has been read that far, it has brought the add, and perhaps a
// removal of the same id after it. The reply must not set the bits again then, or the copy
// would have bits that Redis has not:
//
//  1. Add(x) takes effect in Redis, entry 5; its reply is on the way.
//  2. Another process removes x, entry 6.
//  3. The updater reads entries 5 and 6.
//  4. The reply of step 1 arrives.
func (s *shared) addToCopies(rec *record, hashes []hash, entry entryID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recentKey != rec.key {
		s.recentKey = rec.key
		s.recent.drop()
	}
	s.recent.push(hashes)
	if !s.isCurrent(rec) {
		return // no copy of rec answers, and the next one is loaded after this add
	}
	if s.ownEntry.before(entry) {
		s.ownEntry = entry
	}
	if !s.applied.before(entry) {
		return
	}
	for _, c := range []*localCopy{s.copy, s.candidate} {
		if c == nil {
			continue
		}
		for _, h := range hashes {
			c.add(h)
		}
	}
}

// addRecent adds what this process has added lately once more, because Redis may have
// lost acknowledged adds in a failover. After a flush this helps only if the key comes
// from a secret: else the new filter has another key, and the hashes mean nothing to it.
func (s *shared) addRecent(ctx context.Context, rec *record) error {
	s.mu.Lock()
	sameKey := s.recentKey == rec.key
	s.mu.Unlock()
	if !sameKey {
		return nil
	}
	hashes, _ := s.recent.take()
	for chunk := range slices.Chunk(hashes, s.o.chunk()) {
		if err := s.addHashes(ctx, rec, chunk); err != nil {
			return err
		}
	}
	return nil
}

// add puts hashes into the log and into the generations g. If Redis has other ones, it
// does nothing and returns those.
func (s *store) add(ctx context.Context, rec *record, hashes []hash, g generations) (changeReply, error) {
	call := redisconn.Call{
		Keys: []string{s.names.Record(), s.names.Log(), s.names.Rebuild()},
		Args: []any{rec.header, encodeHashes(hashes), keepLog, life.Milliseconds(), orphanLife.Milliseconds(), s.names.Channel(), s.self},
	}
	for _, generation := range []string{g.current, g.next} {
		if generation != "" {
			s.appendPositions(&call, rec.spread(s.o, generation), generation, hashes)
		}
	}
	reply, err := s.eval(ctx, addScript, call.Keys, call.Args...).List()
	if err != nil {
		return changeReply{}, err
	}
	return parseAdded(reply)
}

// appendPositions appends the positions of hashes in a generation, by piece, in the order
// in which add.lua reads them.
func (s *store) appendPositions(call *redisconn.Call, spread spread, generation string, hashes []hash) {
	touched := map[uint64][]uint64{}
	for _, h := range hashes {
		w := spread.start(h)
		for range spread.hashes {
			p := w.next(&spread)
			touched[p/pieceBits] = append(touched[p/pieceBits], p%pieceBits)
		}
	}
	call.Keys = append(call.Keys, s.names.Sums(generation))
	call.Args = append(call.Args, generation, len(touched))
	for piece, positions := range touched {
		call.Keys = append(call.Keys, s.names.Piece(generation, int(piece)))
		bytes := uint64(0)
		if s.o.Counting {
			call.Keys = append(call.Keys, s.names.Counters(generation, int(piece)))
			bytes = counterBytes(spread.size, int(piece))
		}
		call.Args = append(call.Args, piece, bytes, len(positions))
		for _, p := range positions {
			call.Args = append(call.Args, p)
		}
	}
}

func parseAdded(reply []any) (changeReply, error) {
	kind, rest, err := parseReply(reply, 2, 3)
	switch {
	case err != nil:
		return changeReply{}, err
	case kind == "stale":
		return changeReply{generations: generations{rest[0], rest[1]}, stale: true}, nil
	case kind != "ok" || len(rest) < 3:
		return changeReply{}, fmt.Errorf("unexpected reply %.20q", kind)
	}
	entry, err := decodeEntryID(rest[0])
	return changeReply{generations: generations{rest[1], rest[2]}, entry: entry}, err
}
