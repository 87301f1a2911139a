package bloom

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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

// apply takes over a part of the log. What is cleared waits until there is no add of
// our own ahead of it, which may need it.
func (f *follower) apply(n news) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range []*replica{f.replica, f.candidate} {
		if r == nil {
			continue
		}
		n.each(r.name, r.add, r.forget)
		if !n.last.before(f.own) {
			r.settle()
		}
	}
	if l := f.loading; l != nil {
		n.each(l.name, l.add, l.forget)
		l.settle()
	}
	f.at = n.last
	if f.shared.inc == f.inc {
		f.state, f.applied = n.state, n.last
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
