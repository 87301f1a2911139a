package bloom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// news is what the log has told.
type news struct {
	state
	last   entry // newest entry read
	hashes []hash
	more   bool     // there are newer ones
	sums   []string // fields and values
	clears []clearing
}

// A clearing is what a Remove has cleared in a generation.
type clearing struct {
	after      int // how many of the hashes came before
	generation string
	positions  []uint64
}

// each goes through what was added, and what was cleared in a generation, in the order
// in which it happened.
func (n *news) each(generation string, add func(hash), forget func([]uint64)) {
	from := 0
	for _, c := range n.clears {
		for _, h := range n.hashes[from:c.after] {
			add(h)
		}
		if from = c.after; c.generation == generation {
			forget(c.positions)
		}
	}
	for _, h := range n.hashes[from:] {
		add(h)
	}
}

// tail reads the log behind from, or only where it ends if from is zero, together
// with the sums of generation: all of them, or their total.
func (a *authority) tail(ctx context.Context, inc *incarnation, from entry, generation string, all bool) (news, error) {
	which := ""
	if all {
		which = "all"
	}
	reply, err := a.call(ctx, a.poll, tailScript,
		[]string{a.names.Record(), a.names.Log(), a.names.Sums(generation)},
		inc.header, from.String(), tailChunk, which)
	if err != nil {
		return news{}, err
	}
	return parseNews(reply)
}

func parseNews(reply []any) (news, error) {
	kind, rest, err := parseReply(reply, 2, 4)
	if err != nil {
		return news{}, err
	}
	n := news{state: state{rest[0], rest[1]}}
	if kind == "gap" {
		return n, errGap
	}
	if kind != "ok" || len(rest) < 4 || len(reply) != 8 {
		return n, fmt.Errorf("unexpected reply %.20q", kind)
	}
	if n.last, err = decodeEntry(rest[2]); err != nil {
		return n, err
	}
	if n.hashes, err = decodeHashes(rest[3]); err != nil {
		return n, err
	}
	more, ok1 := reply[5].(int64)
	sums, ok2 := textsOf(reply[6])
	clears, ok3 := textsOf(reply[7])
	if !ok1 || !ok2 || !ok3 {
		return n, errors.New("unexpected types in a reply")
	}
	n.sums, n.more = sums, more != 0
	n.clears, err = parseClears(clears, len(n.hashes))
	return n, err
}

func textsOf(reply any) (texts []string, ok bool) {
	list, ok := reply.([]any)
	for _, part := range list {
		text, is := part.(string)
		ok = ok && is
		texts = append(texts, text)
	}
	return texts, ok
}

// parseClears reads what was cleared, among so many hashes.
func parseClears(texts []string, hashes int) (clears []clearing, err error) {
	if len(texts)%3 != 0 {
		return nil, fmt.Errorf("bloom: %d texts of what was cleared", len(texts))
	}
	least := 0
	for c := range slices.Chunk(texts, 3) {
		after, err := strconv.Atoi(c[0])
		if err != nil || after < least || after > hashes {
			return nil, fmt.Errorf("bloom: cleared after %.20q of %d hashes", c[0], hashes)
		}
		least = after
		one := clearing{after: after, generation: c[1]}
		for _, text := range strings.Fields(c[2]) {
			p, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("bloom: position %.40q", text)
			}
			one.positions = append(one.positions, p)
		}
		clears = append(clears, one)
	}
	return clears, nil
}
