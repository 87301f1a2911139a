package bloom

import (
	"context"
	"fmt"
	"slices"
)

// A download is a copy of which only a part has come from Redis. It comes range by
// range while adds and removals go on. The updater reads the log from before the first
// range on, so that the download misses nothing:
//
//  1. The download reads range 1, without position p.
//  2. Add(x) in another process sets p in range 1 and q in range 2.
//  3. The updater reads the Add in the log and sets p. It leaves q alone, since range 2
//     will bring it.
//  4. The download reads range 2, with q.
//
// When all ranges have come, the updater reads the log to its end. Redis returns with it
// the checksums of that moment, and the download must have the same. A piece that was
// evicted, cut short or overwritten differs in them.
type download struct {
	copy      *localCopy
	loaded    uint64     // positions below this have come
	checksums []checksum // of what has come, by piece
}

func newDownload(c *localCopy) *download {
	return &download{copy: c, checksums: make([]checksum, pieces(c.generation.spread.size))}
}

// add sets those positions of h that have come.
func (d *download) add(h hash) {
	d.copy.keep(h)
	g := d.copy.generation
	w := g.spread.start(h)
	for range g.spread.hashes {
		if p := w.next(&g.spread); p < d.loaded && g.table.set(p) {
			d.checksums[p/pieceBits].addBit(p % pieceBits)
		}
	}
}

// clearNow clears what the log has cleared, in the part that has come. It need not
// wait for Adds of this process, since nobody asks a download.
func (d *download) clearNow() {
	for p := range d.copy.cleared {
		if p < d.loaded && d.copy.generation.table.clear(p) {
			d.checksums[p/pieceBits].dropBit(p % pieceBits)
		}
	}
	clear(d.copy.cleared)
}

// put fills words, the next range of the table, from what Redis holds.
func (d *download) put(words []uint64, bytes string) error {
	if err := decodeWords(words, bytes); err != nil {
		return err
	}
	d.checksums[d.loaded/pieceBits].add(words, int(d.loaded%pieceBits/64))
	d.loaded += uint64(len(words)) * 64
	return nil
}

// load makes a copy of a generation and lets it answer. Until then the old copy answers,
// and the updater goes on to read the log into both.
func (u *updater) load(ctx context.Context, name string) error {
	d := newDownload(newLocalCopy(u.record, u.filter.o, name))
	u.download = d
	defer func() { u.download = nil }()

	err := u.readPieces(ctx, d)
	if err == nil {
		err = u.verify(ctx, d)
	}
	if err != nil {
		return u.postpone(name, err)
	}
	u.download, u.failed = nil, ""
	return u.install(ctx, d.copy)
}

// readPieces reads all ranges, and the log between them whenever it is due.
func (u *updater) readPieces(ctx context.Context, d *download) error {
	table := &d.copy.generation.table
	for piece := range pieces(d.copy.generation.spread.size) {
		at := 0
		for words := range slices.Chunk(table.piece(piece), rangeBytes/8) {
			if now()-u.tried > int64(u.filter.o.MaxLag)/4 || u.filter.isAsked() {
				if _, err := u.readLog(ctx, nil); err != nil {
					return err
				}
			}
			bytes, err := u.filter.store.readRange(ctx, d.copy.name, piece, at, len(words)*8)
			if err != nil {
				return err
			}
			if err := d.put(words, bytes); err != nil {
				return err
			}
			at += len(words) * 8
		}
	}
	return nil
}

// verify reads the log to its end and compares the download with the checksums that Redis
// had at that moment.
func (u *updater) verify(ctx context.Context, d *download) error {
	part, err := u.readLog(ctx, d)
	if err != nil {
		return err
	}
	if part.generations.current != d.copy.name {
		return fmt.Errorf("generation %s is no longer in use", d.copy.name)
	}
	checksums, err := decodeChecksums(part.checksums, len(d.checksums))
	if err != nil {
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if !slices.Equal(checksums, d.checksums) {
		return errCorrupt
	}
	total := uint64(0)
	for _, c := range checksums {
		total += c.set
	}
	d.copy.generation.set.Store(total)
	d.copy.generation.filled(total)
	return nil
}

// install lets c answer. As soon as c is the candidate, Adds of this process set their
// bits in c. The bits of earlier Adds come with the log, so c answers only when the log
// has been read up to the newest of those.
func (u *updater) install(ctx context.Context, c *localCopy) error {
	s := u.filter
	s.mu.Lock()
	s.candidate = c
	own := s.ownEntry
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.candidate = nil
	}()
	for u.at.before(own) {
		if _, err := u.readLog(ctx, nil); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != u.record || ctx.Err() != nil {
		return errLost
	}
	c.until.Store(u.polled + int64(s.o.MaxLag))
	s.copy, s.candidate = c, nil
	s.answering.Store(c)
	s.loads.Add(1)
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// postpone keeps a generation that did not load from being tried all the time.
func (u *updater) postpone(name string, err error) error {
	if u.failed != name {
		u.backoff = firstBackoff
	}
	u.failed, u.retryAt = name, now()+int64(u.backoff)
	u.backoff = min(2*u.backoff, maxBackoff)
	return fmt.Errorf("loading: %w", err)
}
