package bloom

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/levee-go/levee/internal/failpoint"
)

// A snapshot is the record's description of the snapshot in use. The pieces never change: they
// are written under a new name, and put in use by one script.
type snapshot struct {
	shape   string  // as encode writes it; "": there is no snapshot, every process abstains
	pieces  string  // names the hash in Redis with the pieces; "": it is empty
	at      entryID // the newest entry of the log that it includes
	last    entryID // the newest entry of the log
	damaged bool    // a process could not load it
	invalid int64   // when the filter was last invalidated, in microseconds; 0: never
}

// since returns how many entries the log has after the snapshot.
func (snap snapshot) since() uint64 { return snap.last.number - snap.at.number }

// A piece is a part of a table, followed by a checksum of 4 bytes. Larger pieces would hardly
// save time, and make other clients of Redis wait longer. With Redis' overhead a piece takes
// just 256 KiB: with a few bytes more it would take 320 KiB.
const (
	pieceBytes = 256<<10 - 64
	pieceWords = pieceBytes / 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errCorrupt = errors.New("a piece of the snapshot is missing or corrupt")

// piece returns the words of the i-th piece.
func (t *table) piece(i int) []uint64 {
	return t.words[i*pieceWords : min((i+1)*pieceWords, len(t.words))]
}

func (t *table) pieces() int { return (len(t.words) + pieceWords - 1) / pieceWords }

// checksum returns the checksum of a piece, which also covers the place of the piece.
func checksum(pieces string, i int, bytes []byte) uint32 {
	place := binary.LittleEndian.AppendUint64([]byte(pieces), uint64(i))
	return crc32.Update(crc32.Checksum(place, castagnoli), castagnoli, bytes)
}

// encodePiece returns what Redis stores for the i-th piece of a table that may be written
// meanwhile.
func (t *table) encodePiece(pieces string, i int) []byte {
	words := t.piece(i)
	b := make([]byte, 0, len(words)*8+4)
	for j := range words {
		b = binary.LittleEndian.AppendUint64(b, atomic.LoadUint64(&words[j]))
	}
	return binary.LittleEndian.AppendUint32(b, checksum(pieces, i, b))
}

// decodePiece fills the i-th piece of a table that no other goroutine uses.
func (t *table) decodePiece(pieces string, i int, text string) error {
	words, b := t.piece(i), []byte(text)
	if len(b) != len(words)*8+4 {
		return fmt.Errorf("%w: %d bytes in place of %d", errCorrupt, len(b), len(words)*8+4)
	}
	sum := binary.LittleEndian.Uint32(b[len(b)-4:])
	if b = b[:len(b)-4]; checksum(pieces, i, b) != sum {
		return errCorrupt
	}
	set := 0
	for j := range words {
		words[j] = binary.LittleEndian.Uint64(b[8*j:])
		set += bits.OnesCount64(words[j])
	}
	t.filled(t.set.Add(uint64(set)))
	return nil
}

// save makes a table the snapshot in use, which includes the log up to the entry at. The
// caller has read that entry into the table before, so that the bits are no older. While save
// runs, adds go on: the log has them, whether or not they get into the snapshot.
//
// The scripts check the lease at each step, the log and the record at the last one. Without
// these checks:
//
//   - A process is stopped between two steps. Meanwhile a Rebuild puts another snapshot
//     in use and shortens the log up to there. The switch would bring back a snapshot
//     without what the log has lost (the lease, the shape and the entry).
//   - Redis fails over, and loses the entries before at. The switch would make other
//     processes assume that they have these entries (the entry).
func (s *shared) save(ctx context.Context, rec *record, t *table, at entryID, l *lease, rebuilt bool) (snapshot, error) {
	next := snapshot{shape: t.shape.encode(), pieces: rand.Text(), at: at}
	for i := range t.pieces() {
		err := insist(ctx, func() error { return s.store.write(ctx, l, next.pieces, i, t.encodePiece(next.pieces, i)) })
		if err != nil {
			return next, err
		}
	}
	old := "" // the script needs its name, to delete it
	for range attempts {
		inUse := ""
		err := insist(ctx, func() (err error) {
			inUse, err = s.store.makeCurrent(ctx, rec, l, next, old, rebuilt)
			return err
		})
		if err != nil || inUse == old {
			return next, err
		}
		old = inUse
	}
	return next, errLeaseLost
}

// load makes a copy of the snapshot in use, and then the copy that answers. Until then the
// old copy answers.
func (s *shared) load(ctx context.Context, rec *record, snap snapshot) error {
	before := s.answering.Load()
	shape, err := decodeShape(snap.shape)
	if err != nil {
		return s.unloadable(ctx, rec, snap, err)
	}
	t := newTable(shape, rec.key, s.o.MaxFalsePositiveRate, false)
	for i := range t.pieces() {
		if snap.pieces == "" {
			break
		}
		err := insist(ctx, func() error {
			text, err := s.store.read(ctx, snap.pieces, i)
			if err == nil {
				err = t.decodePiece(snap.pieces, i, text)
			}
			return err
		})
		if err != nil {
			return s.unloadable(ctx, rec, snap, err)
		}
	}

	s.feed(t)
	defer s.starve(t)
	t.addAll(s.lately(rec))
	inUse, _, begun, err := s.readLog(ctx, rec, snap.at, func(part logPart) error {
		t.addAll(part.hashes)
		return nil
	})
	if err != nil {
		return s.unloadable(ctx, rec, snap, err)
	}
	if inUse.pieces != snap.pieces { // or a failover has lost snap, and its entry of the log may be another one
		return errOvertaken
	}
	failpoint.At("install")
	return s.install(rec, t, snap, begun, func(now *localCopy) bool { return now == nil || now == before })
}

var errOvertaken = errors.New("another snapshot was put in use meanwhile")

// unloadable returns the error of a load that failed with err. If the snapshot, or the log after
// it, is damaged, it notes that in Redis: a process that has a copy then writes a new snapshot. If
// the snapshot is no longer in use, it returns errOvertaken.
func (s *shared) unloadable(ctx context.Context, rec *record, snap snapshot, err error) error {
	if !errors.Is(err, errCorrupt) && !errors.Is(err, errGap) {
		return err
	}
	inUse, failed := s.store.damaged(ctx, rec, snap)
	if failed == nil && !inUse {
		return errOvertaken
	}
	return fmt.Errorf("loading: %w", err)
}

// compact makes the copy that answers the snapshot in use, so that the log can be shortened,
// or because another process could not load the snapshot. If another process has the lease to
// do so, compact does nothing.
func (s *shared) compact(ctx context.Context, rec *record, c *localCopy, at entryID) error {
	l := s.newLease(rec, s.store.names.Compact())
	defer l.release()
	mine, _, _, err := l.acquire(ctx, 0)
	if err != nil || !mine {
		return err
	}
	_, err = s.save(ctx, rec, c.table, at, l, false)
	return err
}

const (
	minLog     = 1 << 17 // entries that the log may have in any case, about 5 MB
	entryBytes = 40      // about what an entry takes in Redis
)

// compactAfter returns how many entries may follow a snapshot: minLog, or as many as take the
// memory of the snapshot. So no more is written to Redis for snapshots than for adds.
func (s shape) compactAfter() uint64 { return max(minLog, s.positions()/8/entryBytes) }

// insist calls fn up to three times, until it succeeds. It does not repeat fn when ctx has ended,
// or after an error that Redis would return again.
func insist(ctx context.Context, fn func() error) (err error) {
	for range 3 {
		err = fn()
		if err == nil || ctx.Err() != nil || errors.Is(err, errCorrupt) || errors.Is(err, errLost) || errors.Is(err, errGap) || errors.Is(err, errLeaseLost) {
			break
		}
	}
	return err
}

// giveUpAfter returns how many entries may follow a snapshot that no process replaces. As long
// as this process does not know the snapshot, it does not give it up.
func (s *shared) giveUpAfter() uint64 {
	s.mu.Lock()
	inUse := s.snapshot.shape
	s.mu.Unlock()
	if shape, err := decodeShape(inUse); err == nil {
		return 8 * shape.compactAfter()
	}
	return 1 << 53
}

// feed adds a table to fed: from then on this process's adds and the log go into it.
func (s *shared) feed(t *table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fed = append(s.fed, t)
}

// feeds reports whether a table of that shape is fed.
func (s *shared) feeds(shape string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.fed, func(t *table) bool { return t.shape.encode() == shape })
}

// lately returns the hashes of the ids that this process has added lately or owes. Redis may have
// lost or lack them, so a table that is fed needs them too.
func (s *shared) lately(rec *record) []hash {
	s.mu.Lock()
	ids, _ := s.recent.take()
	ids = append(ids, s.owed...)
	s.mu.Unlock()
	return rec.key.appendSums(nil, ids)
}

// starve removes a table from fed, unless the table answers.
func (s *shared) starve(t *table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.answering.Load(); c == nil || c.table != t {
		s.unfed(t)
	}
}

// unfed removes a table from fed. The caller holds mu.
func (s *shared) unfed(t *table) {
	s.fed = slices.DeleteFunc(s.fed, func(other *table) bool { return other == t })
}

// install makes a table of the snapshot snap, which has everything that Redis held at begun, the
// copy that answers. It does so only if this process knows of no later Invalidate, and if may
// reports true for the copy that answers now (nil: none).
func (s *shared) install(rec *record, t *table, snap snapshot, begun int64, may func(now *localCopy) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != rec || s.life.Err() != nil {
		return errLost
	}
	old := s.answering.Load()
	if snap.invalid < s.invalid[rec.header] || !may(old) {
		return errOvertaken
	}
	if old != nil && old.table != t {
		s.unfed(old.table)
	}
	c := &localCopy{table: t, key: rec.key, shape: snap.shape}
	c.until.Store(begun + int64(s.o.MaxLag))
	s.answering.Store(c)
	s.loads.Add(1)
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}
