package bloom

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/wait"
)

// Remove
//
// A Remove counts the positions of an id down, and clears those that reach zero. If it
// counts down what the id did not count up, it clears positions of other ids, and the
// filter denies ids that exist. Three checks prevent that.
//
// The ticket: the remove script runs twice if the client or the network sends it again
// after its reply was lost. So a Remove first gets a ticket from Redis, and the script does
// nothing unless it finds the ticket and deletes it. A ticket request that runs twice
// issues two tickets, of which nobody spends the first. A ticket lives much longer than a
// call may take, so a ticket that is missing was spent and has not expired.
//
// The age of the generation: a generation that a Rebuild has made lacks ids whose row was
// deleted before its scan.
//
//  1. The deletion of the row of x commits.
//  2. A Rebuild scans; x is not in its generation.
//  3. The Rebuild switches to that generation.
//  4. Remove(x) begins, at most MaxTransaction after step 1, and gets a ticket.
//
// The script compares two times of Redis' clock: since, at which the generation came in
// use, and that of the ticket. The deletion committed at most MaxTransaction before
// Remove began, and Remove began at most time.Since(begun) before the ticket was issued:
// the sum of both is minAge. If the generation was in use minAge before the ticket, its
// scan was over before the deletion, and has seen the row. If not, the script removes
// nothing. A script that runs late decides the same, because it compares with the ticket
// and not with its own time.
//
// The counters: the script removes an id only if all its counters are above zero. It does
// not count a full counter down, because that has lost count.
//
// The copy of this process hears of a removal from the log, like all others: see
// localCopy for why it must not clear bits earlier.

// ticketLife is how long a ticket can be spent, much longer than callTimeout.
const ticketLife = time.Minute

func (s *shared) remove(ctx context.Context, ids []string) error {
	begun := time.Now()
	return s.inChunks(ctx, "Remove", ids, &s.counts.removes, func(rec *record, hashes []hash) error {
		return s.removeHashes(ctx, rec, begun, hashes)
	})
}

func (s *shared) removeHashes(ctx context.Context, rec *record, begun time.Time, hashes []hash) error {
	ticket, err := s.store.ticket(ctx, rec)
	if err != nil {
		return err
	}
	minAge := s.o.MaxTransaction
	if minAge >= 0 {
		minAge += time.Since(begun)
	}
	_, err = s.onGenerations(rec, func(g generations) (changeReply, error) {
		return s.store.remove(ctx, rec, ticket, hashes, g, minAge)
	})
	if err == nil {
		wait.Wake(s.announced)
	}
	return err
}

// ticket gets a ticket for one Remove.
func (s *store) ticket(ctx context.Context, rec *record) (string, error) {
	reply, err := s.eval(ctx, ticketScript, []string{s.names.Record(), s.names.Tickets()}, rec.header, ticketLife.Milliseconds()).List()
	if err != nil {
		return "", err
	}
	_, texts, err := parseReply(reply, 1, 1)
	if err != nil {
		return "", err
	}
	return texts[0], nil
}

// remove takes hashes out of the generation g.current, if that was in use minAge before
// the ticket was issued; a negative minAge: at once. If another generation is in use, it
// does nothing and returns that.
func (s *store) remove(ctx context.Context, rec *record, ticket string, hashes []hash, g generations, minAge time.Duration) (changeReply, error) {
	call := redisconn.Call{
		Keys: []string{s.names.Record(), s.names.Log(), s.names.Tickets(), s.names.Sums(g.current)},
		Args: []any{rec.header, g.current, ticket, max(minAge.Milliseconds(), -1), keepLog, life.Milliseconds(), s.names.Channel(), s.self},
	}
	s.appendRemoved(&call, rec.spread(s.o, g.current), g.current, hashes)
	reply, err := s.eval(ctx, removeScript, call.Keys, call.Args...).List()
	if err != nil {
		return changeReply{}, err
	}
	kind, rest, err := parseReply(reply, 2, 2)
	if err != nil {
		return changeReply{}, err
	}
	return changeReply{generations: generations{rest[0], rest[1]}, stale: kind == "stale"}, nil
}

// appendRemoved appends the pieces that hashes touch in a generation, and then for each
// hash where its positions are: which of those pieces, and the position in it.
func (s *store) appendRemoved(call *redisconn.Call, spread spread, generation string, hashes []hash) {
	if generation == "" {
		call.Args = append(call.Args, spread.hashes, 0)
		return
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
				call.Keys = append(call.Keys, s.names.Piece(generation, int(piece)), s.names.Counters(generation, int(piece)))
				given = append(given, piece, counterBytes(spread.size, int(piece)))
			}
			positions = append(positions, numbers[piece], p%pieceBits)
		}
	}
	call.Args = append(call.Args, spread.hashes, len(numbers))
	call.Args = append(append(call.Args, given...), positions...)
}
