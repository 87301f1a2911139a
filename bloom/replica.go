package bloom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// A replica is this process's copy of a generation. It is loaded range by range
// while adds go on, and follows the log from before its first range was read: so
// it holds at least what Redis held at the entry of the log that it has reached.
// When the log has no more, both hold exactly the same, which is when their sums
// are compared.
type replica struct {
	*generation
	key   key
	name  string
	until atomic.Int64 // a no counts before that, on the clock of now
}

var start = time.Now()

// now is a clock that no change of the time of day disturbs.
func now() int64 { return int64(time.Since(start)) }

var errCorrupt = errors.New("what redis holds does not add up")

func (s *shared) newReplica(inc *incarnation, name string) *replica {
	return &replica{generation: newGeneration(s.o, inc.key, inc.number(name)), key: inc.key, name: name}
}

// denies tells whether id surely is not in the set.
func (s *shared) denies(id string) bool {
	r := s.answering.Load()
	if r == nil {
		return false
	}
	// The order matters: what made until be as late as this is in the bits that are
	// read after it, and the clock is read last, so that a process that is stopped
	// anywhere between does not answer from what it knew before.
	until := r.until.Load()
	return !r.saturated.Load() && !r.contains(r.key.sum(id)) && now() < until
}

// A loading is a replica before all of it is there.
type loading struct {
	*replica
	loaded uint64 // positions below are there
	sums   []sum  // of those
}

// add sets the positions that are there. The others come with their range, which
// is read from Redis after the hash went into it.
func (l *loading) add(h hash) {
	w := l.spread.start(h)
	for range l.spread.hashes {
		if p := w.next(&l.spread); p < l.loaded && l.table.set(p) {
			l.sums[p/pieceBits].addBit(p % pieceBits)
		}
	}
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

// A follower keeps the replica of a shared filter up. It is one goroutine, and what
// it holds is its own.
type follower struct {
	*shared
	inc     *incarnation
	at      entry    // where it is in the log
	polled  int64    // when it last asked and reached the end
	tried   int64    // when it last asked
	loading *loading // or nil

	failed  string // the generation that did not load
	retry   int64  // when to try it again
	backoff time.Duration
	again   bool // what was added here lately is to be added again
	touched int64
	trouble string // what was last said about it
}

// burst is how long the follower rests after an announcement, since more may come.
const burst = 5 * time.Millisecond

func (s *shared) follow(ctx context.Context) {
	f := &follower{shared: s}
	pace := s.o.MaxLag / 4
	for ctx.Err() == nil {
		err := f.step(ctx)
		f.report(ctx, err)
		if err != nil {
			s.rest(ctx, max(pace, 100*time.Millisecond))
		} else {
			s.rest(ctx, pace)
		}
	}
	s.takeAsk().finish(false)
}

// rest waits until it is time to look again.
func (s *shared) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.asked:
	case <-s.kick:
		timer.Reset(burst)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.asked:
		}
	}
}

// step looks into the log, and loads the generation in use if it is not the one
// that is there.
func (f *follower) step(ctx context.Context) error {
	inc, err := f.incarnation(ctx)
	if err != nil {
		return err
	}
	if f.inc != inc {
		f.inc, f.at = inc, entry{}
	}
	if f.again {
		if err := f.addAgain(ctx, inc); err != nil {
			return err
		}
		f.again = false
	}
	n, err := f.poll(ctx, nil)
	if err == nil && f.wants(n.current) {
		err = f.load(ctx, n.current)
	}
	if err == nil {
		f.touch(ctx, n.current)
	}
	if errors.Is(err, errLost) || errors.Is(err, errGap) {
		f.drop(f.inc)
		f.at, f.failed, f.again = entry{}, "", true
	}
	return err
}

// wants tells whether a generation is to be loaded.
func (f *follower) wants(current string) bool {
	f.mu.Lock()
	r := f.replica
	f.mu.Unlock()
	if current == "" || r != nil && r.name == current {
		return false
	}
	return current != f.failed || now() >= f.retry
}

// poll reads the log to its end and takes over what it says. The sums of l, if it is
// not nil, come with the end.
func (f *follower) poll(ctx context.Context, l *loading) (news, error) {
	ask := f.takeAsk()
	n, err := f.read(ctx, l)
	ask.finish(err == nil)
	return n, err
}

func (f *follower) read(ctx context.Context, l *loading) (news, error) {
	for {
		f.mu.Lock()
		r, own := f.replica, f.own
		f.mu.Unlock()
		of := ""
		if l != nil {
			of = l.name
		} else if r != nil {
			of = r.name
		}
		f.tried = now()
		n, err := f.tail(ctx, f.inc, f.at, of, l != nil)
		if err != nil {
			return n, err
		}
		f.apply(n)
		if n.more {
			continue
		}
		if n.last.before(own) {
			return n, fmt.Errorf("%w: an add of our own is missing", errGap)
		}
		if r != nil && l == nil && n.current == r.name && !f.agrees(r, n) {
			return n, fmt.Errorf("%w: %w", errGap, errCorrupt)
		}
		f.polled = f.tried
		if r != nil {
			r.until.Store(f.polled + int64(f.o.MaxLag))
		}
		return n, nil
	}
}

// apply takes over a part of the log.
func (f *follower) apply(n news) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range []*replica{f.replica, f.candidate} {
		if r == nil {
			continue
		}
		for _, h := range n.hashes {
			r.add(h)
		}
	}
	if f.loading != nil {
		for _, h := range n.hashes {
			f.loading.add(h)
		}
	}
	f.at = n.last
	if f.shared.inc == f.inc {
		f.state = n.state
	}
}

// agrees tells whether r has as many bits set as Redis says, unless an Add of ours
// has gone ahead of the log.
func (f *follower) agrees(r *replica, n news) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.last.before(f.own) {
		return true
	}
	return len(n.sums) == 2 && n.sums[1] == fmt.Sprint(r.set.Load())
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

// touch prolongs now and then the life of what is in use. A failure is made good
// by the next one.
func (f *follower) touch(ctx context.Context, current string) {
	if current == "" || f.touched != 0 && now()-f.touched < int64(touchEvery) {
		return
	}
	size, _ := f.o.size()
	if f.authority.touch(ctx, current, pieces(size)) == nil {
		f.touched = now()
	}
}

// report says once what goes wrong, and that it is over.
func (f *follower) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	f.warnFull()
	f.mu.Unlock()
	what := ""
	if err != nil {
		what = fmt.Sprintf("%.200v", err)
	}
	if what == f.trouble {
		return
	}
	f.trouble = what
	if what == "" {
		f.o.Logger.Info("bloom: filter follows redis again", "filter", f.quoted)
		return
	}
	f.o.Logger.Warn("bloom: filter does not follow redis and abstains when it is behind", "filter", f.quoted, "error", what)
}
