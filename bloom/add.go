package bloom

import (
	"context"
	"fmt"
	"time"
)

// added is the answer to an add.
type added struct {
	state
	entry entry // the last one in the log
	stale bool  // nothing was done: state names a generation that was not given
}

// add puts hashes into the log and into the generations of s, which must be all there
// are, or nothing is done.
func (a *authority) add(ctx context.Context, inc *incarnation, hashes []hash, s state) (added, error) {
	names := []string{a.names.Record(), a.names.Log(), a.names.Rebuild()}
	args := []any{inc.header, encodeHashes(hashes), keepLog, life.Milliseconds(), orphanLife.Milliseconds(), a.names.Channel(), a.self}
	for _, generation := range []string{s.current, s.next} {
		if generation != "" {
			names, args = a.appendPositions(names, args, inc, generation, hashes)
		}
	}
	reply, err := a.call(ctx, a.run, addScript, names, args...)
	if err != nil {
		return added{}, err
	}
	return parseAdded(reply)
}

// appendPositions appends the positions of hashes in a generation, by piece.
func (a *authority) appendPositions(names []string, args []any, inc *incarnation, generation string, hashes []hash) ([]string, []any) {
	spread, touched := a.spread(inc, generation), map[uint64][]uint64{}
	for _, h := range hashes {
		w := spread.start(h)
		for range spread.hashes {
			p := w.next(&spread)
			touched[p/pieceBits] = append(touched[p/pieceBits], p%pieceBits)
		}
	}
	names = append(names, a.names.Sums(generation))
	args = append(args, generation, len(touched))
	for piece, positions := range touched {
		names = append(names, a.names.Piece(generation, int(piece)))
		counters := uint64(0)
		if a.o.Counting {
			names = append(names, a.names.Counters(generation, int(piece)))
			counters = counterBytes(spread.size, int(piece))
		}
		args = append(args, piece, counters, len(positions))
		for _, p := range positions {
			args = append(args, p)
		}
	}
	return names, args
}

func parseAdded(reply []any) (added, error) {
	s, rest, err := parseReply(reply, 2, 3)
	switch {
	case err != nil:
		return added{}, err
	case s == "stale":
		return added{state: state{rest[0], rest[1]}, stale: true}, nil
	case s != "ok" || len(rest) < 3:
		return added{}, fmt.Errorf("unexpected reply %.20q", s)
	}
	e, err := decodeEntry(rest[0])
	return added{state: state{rest[1], rest[2]}, entry: e}, err
}

// ticket gets what one remove spends. A script whose reply is lost is sent again, by
// the client or by the network, and a position counted down twice may be cleared while
// others stand on it. So Redis itself hands out what it takes: a ticket that was issued
// twice has two names, and one that was spent is gone.
func (a *authority) ticket(ctx context.Context, inc *incarnation) (string, error) {
	reply, err := a.call(ctx, a.run, ticketScript, []string{a.names.Record(), a.names.Tickets()}, inc.header, ticketLife.Milliseconds())
	if err != nil {
		return "", err
	}
	_, texts, err := parseReply(reply, 1, 1)
	if err != nil {
		return "", err
	}
	return texts[0], nil
}

// remove takes hashes out of the generation of s in use, or does nothing if another one
// is, or if that is not older by quiet than the ticket; a negative quiet is none.
func (a *authority) remove(ctx context.Context, inc *incarnation, ticket string, hashes []hash, s state, quiet time.Duration) (added, error) {
	names := []string{a.names.Record(), a.names.Log(), a.names.Tickets(), a.names.Sums(s.current)}
	args := []any{inc.header, s.current, ticket, max(quiet.Milliseconds(), -1), keepLog, life.Milliseconds(), a.names.Channel(), a.self}
	names, args = a.appendRemoved(names, args, inc, s.current, hashes)
	reply, err := a.call(ctx, a.run, removeScript, names, args...)
	if err != nil {
		return added{}, err
	}
	kind, rest, err := parseReply(reply, 2, 2)
	if err != nil {
		return added{}, err
	}
	return added{state: state{rest[0], rest[1]}, stale: kind == "stale"}, nil
}

// appendRemoved appends the pieces that hashes touch in a generation, and the
// positions of each hash in them.
func (a *authority) appendRemoved(names []string, args []any, inc *incarnation, generation string, hashes []hash) ([]string, []any) {
	spread := a.spread(inc, generation)
	if generation == "" {
		return names, append(args, spread.hashes, 0)
	}
	numbers := map[uint64]int{} // of the pieces, in the order in which they are given
	var given, positions []any
	for _, h := range hashes {
		w := spread.start(h)
		for range spread.hashes {
			p := w.next(&spread)
			piece := p / pieceBits
			if numbers[piece] == 0 {
				numbers[piece] = len(numbers) + 1
				names = append(names, a.names.Piece(generation, int(piece)), a.names.Counters(generation, int(piece)))
				given = append(given, piece, counterBytes(spread.size, int(piece)))
			}
			positions = append(positions, numbers[piece], p%pieceBits)
		}
	}
	args = append(args, spread.hashes, len(numbers))
	return names, append(append(args, given...), positions...)
}
