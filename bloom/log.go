package bloom

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The log
//
// The log is a Redis stream. It has an entry for each id that was added, with its hash,
// and for each call of the remove script, with the positions that it has cleared. A hash
// means the same in every generation, and reveals nothing about its id.
//
// A reader names the entry that it has read last. If the log no longer has that entry, or
// never had it, the reader may have missed entries, and loads a new copy:
//
//  1. A process reads up to entry 9.
//  2. Redis fails over to a replica that has entries 1 to 7 only.
//  3. Other processes add: the log gets another entry 8, and entry 10.
//
// A read "after 9" would return entry 10 and miss the second 8. Since there is no entry 9,
// the reader notices.

// keepLog is about how many entries the log keeps: some 5 MB. A process that is further
// behind loads a new copy. A Rebuild that needs older entries waits until it does not.
const keepLog = 1 << 17

// tailChunk is how many entries are read at a time.
const tailChunk = 512

// An entryID is the ID of an entry of the log: the server's clock in milliseconds, and a
// number within the millisecond. Later entries have greater IDs. The zero entryID comes
// before all.
type entryID struct{ ms, seq uint64 }

func decodeEntryID(s string) (entryID, error) {
	a, b, ok := strings.Cut(s, "-")
	ms, err1 := strconv.ParseUint(a, 10, 63)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	e := entryID{ms, seq}
	if !ok || err1 != nil || err2 != nil || e == (entryID{}) || e.String() != s {
		return entryID{}, fmt.Errorf("bloom: the ID of a log entry must be like 1-2, got %.40q", s)
	}
	return e, nil
}

// String returns the ID as Redis writes it, "" for the zero entryID.
func (e entryID) String() string {
	if e == (entryID{}) {
		return ""
	}
	return strconv.FormatUint(e.ms, 10) + "-" + strconv.FormatUint(e.seq, 10)
}

func (e entryID) before(other entryID) bool {
	return e.ms < other.ms || e.ms == other.ms && e.seq < other.seq
}

const hashLen = 16

func encodeHashes(hashes []hash) []byte {
	b := make([]byte, 0, len(hashes)*hashLen)
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, h.a)
		b = binary.LittleEndian.AppendUint64(b, h.b)
	}
	return b
}

func decodeHashes(s string) ([]hash, error) {
	if len(s)%hashLen != 0 {
		return nil, fmt.Errorf("bloom: hashes must have %d bytes each, got %d bytes", hashLen, len(s))
	}
	hashes := make([]hash, 0, len(s)/hashLen)
	for b := []byte(s); len(b) > 0; b = b[hashLen:] {
		hashes = append(hashes, hash{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])})
	}
	return hashes, nil
}

// A logPart is the reply to one read of the log, and the state of the filter at that
// moment.
type logPart struct {
	generations generations
	last        entryID // the newest entry read
	more        bool    // there are newer ones
	hashes      []hash  // that were added
	removals    []removal
	checksums   []string // of the generation that the reader asked for: fields and values
}

// A removal is what one Remove has cleared in a generation.
type removal struct {
	after      int // how many of the hashes in the logPart were added before
	generation string
	positions  []uint64
}

// replay calls add and remove for what was added, and what was cleared in a
// generation, in the order of the log.
func (p *logPart) replay(generation string, add func(hash), remove func([]uint64)) {
	from := 0
	for _, r := range p.removals {
		for _, h := range p.hashes[from:r.after] {
			add(h)
		}
		if from = r.after; r.generation == generation {
			remove(r.positions)
		}
	}
	for _, h := range p.hashes[from:] {
		add(h)
	}
}

// tail reads the log after an entry, or only its newest ID if that is zero, and the
// checksums of a generation: all of them, or their total.
func (s *store) tail(ctx context.Context, rec *record, after entryID, generation string, all bool) (logPart, error) {
	which := "total"
	if all {
		which = "all"
	}
	reply, err := evalOn(ctx, s.logConn, nil, tailScript,
		[]string{s.names.Record(), s.names.Log(), s.names.Sums(generation)},
		rec.header, after.String(), tailChunk, which).List()
	if err != nil {
		return logPart{}, err
	}
	return parseLogPart(reply)
}

func parseLogPart(reply []any) (logPart, error) {
	kind, rest, err := parseReply(reply, 2, 4)
	if err != nil {
		return logPart{}, err
	}
	p := logPart{generations: generations{rest[0], rest[1]}}
	if kind == "gap" {
		return p, errGap
	}
	if kind != "ok" || len(rest) < 4 || len(reply) != 8 {
		return p, fmt.Errorf("unexpected reply %.20q", kind)
	}
	if p.last, err = decodeEntryID(rest[2]); err != nil {
		return p, err
	}
	if p.hashes, err = decodeHashes(rest[3]); err != nil {
		return p, err
	}
	more, ok1 := reply[5].(int64)
	checksums, ok2 := textsOf(reply[6])
	removals, ok3 := textsOf(reply[7])
	if !ok1 || !ok2 || !ok3 {
		return p, errors.New("unexpected types in a reply")
	}
	p.checksums, p.more = checksums, more != 0
	p.removals, err = parseRemovals(removals, len(p.hashes))
	return p, err
}

func textsOf(reply any) (texts []string, ok bool) {
	list, ok := reply.([]any)
	for _, part := range list {
		text, isText := part.(string)
		ok = ok && isText
		texts = append(texts, text)
	}
	return texts, ok
}

// parseRemovals reads the removals of a logPart with so many hashes.
func parseRemovals(texts []string, hashes int) (removals []removal, err error) {
	if len(texts)%3 != 0 {
		return nil, fmt.Errorf("bloom: removals must have three texts each, got %d texts", len(texts))
	}
	least := 0
	for c := range slices.Chunk(texts, 3) {
		after, err := strconv.Atoi(c[0])
		if err != nil || after < least || after > hashes {
			return nil, fmt.Errorf("bloom: a removal must come after %d to %d hashes, got %.20q", least, hashes, c[0])
		}
		least = after
		r := removal{after: after, generation: c[1]}
		for _, text := range strings.Fields(c[2]) {
			p, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("bloom: a position must be a number, got %.40q", text)
			}
			r.positions = append(r.positions, p)
		}
		removals = append(removals, r)
	}
	return removals, nil
}
