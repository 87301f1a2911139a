package bloom

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// The log
//
// The log is a Redis stream with an entry for each id that was added, which holds the id's
// hash. A hash means the same in a table of any shape, and reveals nothing about its id.
// The scripts number the entries without a gap.
//
// A reader names the entry that it has read last. If the log no longer has that entry, or
// never had it, or if a number is missing after it, the reader has missed entries:
//
//  1. A process reads up to entry 9.
//  2. Redis fails over to a replica that has entries 1 to 7 only.
//  3. Other processes add: the log gets another entry 8, another 9, and entry 10.
//
// A read "after 9" would return entry 10 and miss the second 8. Since the second entry 9 has
// another time in its ID, or holds another hash, the reader notices.

// tailChunk is how many entries are read at a time.
const tailChunk = 4096

// An entryID is the ID of an entry of the log: the server's clock in milliseconds, and the
// number of the entry. Later entries have greater numbers. As a clock may stand still or go
// back, two histories may have different entries of one ID, so the hash that the entry holds
// is compared too.
type entryID struct {
	ms, number uint64
	hash       string // 16 bytes; "": not known
}

func decodeEntryID(s string) (entryID, error) {
	a, b, ok := strings.Cut(s, "-")
	ms, err1 := strconv.ParseUint(a, 10, 53)
	number, err2 := strconv.ParseUint(b, 10, 53)
	e := entryID{ms: ms, number: number}
	if !ok || err1 != nil || err2 != nil || e.String() != s {
		return entryID{}, fmt.Errorf("the ID of a log entry must be like 1-2, got %.40q", s)
	}
	return e, nil
}

// String returns the ID as Redis writes it.
func (e entryID) String() string {
	return strconv.FormatUint(e.ms, 10) + "-" + strconv.FormatUint(e.number, 10)
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
		return nil, fmt.Errorf("hashes must have %d bytes each, got %d bytes", hashLen, len(s))
	}
	hashes := make([]hash, 0, len(s)/hashLen)
	for b := []byte(s); len(b) > 0; b = b[hashLen:] {
		hashes = append(hashes, hash{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])})
	}
	return hashes, nil
}

// readLog reads the log from the entry after at to its end, passes it to apply in parts, and
// returns the snapshot in use at the end, the newest entry, and when the last read began. By
// then apply has got everything that Redis held at that moment.
func (s *shared) readLog(ctx context.Context, rec *record, at entryID, apply func(logPart) error) (snap snapshot, end entryID, begun int64, err error) {
	for {
		begun = now()
		part, err := s.store.tail(ctx, rec, at)
		if err != nil {
			return part.snapshot, at, begun, err
		}
		s.heard(rec, part.snapshot.invalid)
		if part.first = at.number + 1; part.entry.number+1 != part.first+uint64(len(part.hashes)) {
			return part.snapshot, at, begun, errGap
		}
		if len(part.hashes) == 0 {
			part.entry.hash = at.hash
		}
		if err := apply(part); err != nil {
			return part.snapshot, at, begun, err
		}
		if at = part.entry; !part.more {
			return part.snapshot, at, begun, nil
		}
	}
}

// A logPart is the reply to one read of the log, and what the record said at that moment.
type logPart struct {
	snapshot snapshot
	entry    entryID // the newest entry that was read
	hashes   []hash
	first    uint64 // the number of the entry with the first of the hashes
	more     bool   // there are newer entries
}

// tail reads a part of the log after the entry after.
func (s *store) tail(ctx context.Context, rec *record, after entryID) (logPart, error) {
	reply, err := evalOn(ctx, s.logConn, tailScript,
		[]string{s.names.Record(), s.names.Log()}, rec.header, after.String(), tailChunk, after.hash).List()
	if err != nil {
		return logPart{}, err
	}
	return parseLogPart(reply)
}

func parseLogPart(reply []any) (logPart, error) {
	kind, texts, err := parseReply(reply, 7, 7)
	if err != nil {
		return logPart{}, err
	}
	if len(reply) != 10 {
		return logPart{}, errReply(reply)
	}
	more, ok1 := reply[8].(int64)
	invalid, ok2 := reply[9].(int64)
	if !ok1 || !ok2 {
		return logPart{}, errReply(reply)
	}
	p := logPart{snapshot: snapshot{shape: texts[0], pieces: texts[1], damaged: texts[4] != "", invalid: invalid}, more: more != 0}
	p.snapshot.at, _ = decodeEntryID(texts[2]) // text that is no ID is not in the log: the snapshot cannot be loaded
	p.snapshot.last, err = decodeEntryID(texts[3])
	switch {
	case kind == "gap" || err != nil:
		return p, errGap
	case kind != "ok":
		return p, errReply(reply)
	}
	if p.entry, err = decodeEntryID(texts[5]); err != nil {
		return p, err
	}
	p.hashes, err = decodeHashes(texts[6])
	p.entry.hash = texts[6][max(0, len(texts[6])-hashLen):]
	return p, err
}
