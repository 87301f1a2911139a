package bloom

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A loading is a replica before all of it is there.
type loading struct {
	*replica
	loaded uint64 // positions below are there
	sums   []sum  // of those
}

// add sets the positions that are there. The others come with their range, which
// is read from Redis after the hash went into it.
func (l *loading) add(h hash) {
	l.keep(h)
	w := l.spread.start(h)
	for range l.spread.hashes {
		if p := w.next(&l.spread); p < l.loaded && l.table.set(p) {
			l.sums[p/pieceBits].addBit(p % pieceBits)
		}
	}
}

// settle clears what the log said. Nobody asks a loading: it does not wait for adds
// of our own.
func (l *loading) settle() {
	for p := range l.cleared {
		if p < l.loaded && l.table.clear(p) {
			l.sums[p/pieceBits].dropBit(p % pieceBits)
		}
	}
	clear(l.cleared)
}

// take puts the next range in its place.
func (l *loading) take(words []uint64, bytes string) error {
	if err := decodeWords(words, bytes); err != nil {
		return err
	}
	piece := l.loaded / pieceBits
	l.sums[piece].add(words, int(l.loaded%pieceBits/64))
	l.loaded += uint64(len(words)) * 64
	return nil
}

// load copies a generation and puts it in the place of the one that answers, which
// goes on answering meanwhile: what is added goes into both.
func (f *follower) load(ctx context.Context, name string) error {
	l := &loading{replica: f.newReplica(f.inc, name)}
	l.sums = make([]sum, pieces(l.spread.size))
	f.loading = l
	defer func() { f.loading = nil }()

	err := f.copy(ctx, l)
	if err == nil {
		err = f.verify(ctx, l)
	}
	if err != nil {
		return f.postpone(name, err)
	}
	f.loading, f.failed = nil, ""
	return f.install(ctx, l.replica)
}

func (f *follower) copy(ctx context.Context, l *loading) error {
	for piece := range pieces(l.spread.size) {
		at := 0
		for words := range slices.Chunk(l.table.piece(piece), rangeBytes/8) {
			if now()-f.tried > int64(f.o.MaxLag)/4 || f.isAsked() {
				if _, err := f.poll(ctx, nil); err != nil {
					return err
				}
			}
			bytes, err := f.readRange(ctx, l.name, piece, at, len(words)*8)
			if err != nil {
				return err
			}
			if err := l.take(words, bytes); err != nil {
				return err
			}
			at += len(words) * 8
		}
	}
	return nil
}

// verify brings l to the end of the log and compares it with the sums of that moment.
func (f *follower) verify(ctx context.Context, l *loading) error {
	n, err := f.poll(ctx, l)
	if err != nil {
		return err
	}
	if n.current != l.name {
		return fmt.Errorf("generation %s is no longer in use", l.name)
	}
	sums, err := decodeSums(n.sums, len(l.sums))
	if err != nil {
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if !slices.Equal(sums, l.sums) {
		return errCorrupt
	}
	total := uint64(0)
	for _, s := range sums {
		total += s.set
	}
	l.set.Store(total)
	l.filled(total)
	return nil
}

// install lets r answer. From the moment that it is the candidate, Adds of this
// process go into it themselves; what they added before comes with the log.
func (f *follower) install(ctx context.Context, r *replica) error {
	f.mu.Lock()
	f.candidate = r
	own := f.own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.candidate = nil
	}()
	for f.at.before(own) {
		if _, err := f.poll(ctx, nil); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shared.inc != f.inc || ctx.Err() != nil {
		return errLost
	}
	r.until.Store(f.polled + int64(f.o.MaxLag))
	f.replica, f.candidate = r, nil
	f.answering.Store(r)
	f.loads.Add(1)
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// postpone keeps a generation that does not load from being tried all the time.
func (f *follower) postpone(name string, err error) error {
	if f.failed != name {
		f.backoff = 250 * time.Millisecond
	}
	f.failed, f.retry = name, now()+int64(f.backoff)
	f.backoff = min(2*f.backoff, time.Minute)
	return fmt.Errorf("loading: %w", err)
}
