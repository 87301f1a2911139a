package lock

import (
	"context"
	"slices"
	"strings"
	"time"
)

func (s *localStore) acquire(_ context.Context, t *target, b bid) (bidReply, error) {
	l := s.begin(t)
	defer l.end()
	l.forget(l.now)
	l.find(t)
	ends, held := l.lease(b.owners[0])
	switch {
	case held && ends > l.now: // the bid is repeated
		return l.granted(ends, l.ticket(b.entry)), nil
	case l.released == b.owners[0]:
		return bidReply{answer: answerGone}, nil
	case l.mode == once && l.done > l.now:
		return bidReply{answer: answerDone}, nil
	}
	l.keep()
	l.expire()
	l.mine = b.entry
	if !l.mayTake(b.ticket) {
		return l.wait(&b), nil
	}
	if !b.more {
		l.dequeue(b.entry)
	}
	l.take(&b)
	var ticket int64
	if b.more {
		ticket = l.enqueue(b.entry, 0)
	}
	l.mine = ""
	l.advance() // it may fit more: readers behind a reader, permits
	l.retain()
	return l.granted(l.now+b.lease.Milliseconds(), ticket), nil
}

func (l *localLock) granted(ends, ticket int64) bidReply {
	return bidReply{answer: answerGranted, granted: granted{fence: l.fence, ends: ends, ticket: ticket, sent: l.sent}}
}

// wait puts the entry of a bid in the queue, if it has one, and returns its reply.
func (l *localLock) wait(b *bid) bidReply {
	_, first := l.holders()
	remaining := first - l.now
	reply := busy{remaining: millis(remaining)}
	if b.entry != "" {
		if reply.ticket = l.ticket(b.entry); reply.ticket == 0 {
			reply.ticket = l.enqueue(b.entry, b.ticket)
		}
		ahead := int64(slices.IndexFunc(l.queue, func(e entry) bool { return e.name == b.entry }))
		reply.askAgain = millis(min(max(1000, min(5000, 60*ahead)), remaining+2+50*ahead))
	}
	reply.waiting = len(l.queue)
	l.retain()
	return bidReply{answer: answerBusy, busy: reply}
}

func (s *localStore) acquireAll(_ context.Context, targets []target, b bid) (bidReply, error) {
	l := s.begin(&targets[0])
	defer l.end()
	for range targets {
		l.forget(l.now)
	}
	fence := max(l.micros, l.forgotten+fences)
	for i := range targets {
		l.find(&targets[i])
		if l.owner != "" || len(l.queue) > 0 {
			return bidReply{answer: answerBusy}, nil
		}
		fence = max(fence, l.fence+fences)
	}
	for i := range targets {
		l.find(&targets[i])
		l.keep()
		l.fence = fence
		l.own(b.owners[i], b.lease.Milliseconds(), b.label)
		l.retain()
	}
	return l.granted(l.ends, 0), nil
}

func (s *localStore) release(_ context.Context, g *grant, keep time.Duration) (answer, error) {
	l := s.begin(&g.target)
	defer l.end()
	ends, _ := l.lease(g.owner)
	if !l.drop(g.owner) {
		switch {
		case l.born > g.fence:
			return l.why(), nil
		case l.released == g.owner && l.owner == "":
			return answerAgain, nil
		case g.ends > l.now:
			return answerPast, nil
		}
		return answerTaken, nil
	}
	l.released = g.owner
	what := answerExpired
	if ends > l.now {
		what = answerOK
	}
	if what == answerOK && keep > 0 { // wake all waiters: the work is done
		l.done = l.now + keep.Milliseconds()
		for _, e := range l.queue {
			l.tell(e.process(), e.name)
		}
		l.queue = nil
	}
	l.settle()
	return what, nil
}

func (s *localStore) refuse(ctx context.Context, t *target, owner string) error {
	_, err := s.release(ctx, &grant{target: *t, owner: owner}, 0)
	return err
}

func (s *localStore) leave(_ context.Context, t *target, name string) error {
	l := s.begin(t)
	defer l.end()
	l.mode = entry{name: name}.mode()
	l.dequeue(name)
	if l.drop(unclaimed + name) {
		l.permits = max(l.permits, len(l.shares)+1) // room for one: the n of the entry's caller is not known
	}
	l.settle()
	return nil
}

func (s *localStore) renew(ctx context.Context, renewals []renewal) []renewed {
	results := make([]renewed, len(renewals))
	for i, r := range renewals {
		results[i].renewReply, results[i].err = s.change(ctx, r)
	}
	return results
}

func (s *localStore) change(_ context.Context, r renewal) (renewReply, error) {
	l := s.begin(&r.grant.target)
	defer l.end()
	what := l.change(&r)
	ends, _ := l.lease(r.grant.owner)
	if r.heir != "" {
		ends, _ = l.lease(r.heir)
	}
	return renewReply{answer: what, ends: ends, sent: l.sent}, nil
}

// change changes a lease, or says why its owner does not have the lock.
func (l *localLock) change(r *renewal) answer {
	owner := r.grant.owner
	ends, held := l.lease(owner)
	switch {
	case l.born > r.grant.fence:
		return l.why()
	case !held && l.released == owner:
		return answerReleased
	case !held && !l.mode.shared():
		return answerTaken
	case !held || ends <= l.now:
		return answerExpired
	case !r.writes():
		return answerOK
	}
	if r.heir != "" {
		delete(l.shares, owner)
		owner = r.heir
	}
	l.fence = max(l.fence, r.raise)
	length := r.lease.Milliseconds()
	if r.lease == 0 {
		length = ends - l.now
	}
	if l.mode.shared() {
		l.share(owner, length)
	} else {
		l.own(owner, length, l.label)
	}
	l.retain()
	return answerOK
}

func (s *localStore) force(_ context.Context, t *target, fence int64) (answer, int64, error) {
	l := s.begin(t)
	defer l.end()
	holders, _ := l.holders()
	switch {
	case len(holders) == 0:
		return answerFree, 0, nil
	case l.fence != fence:
		return answerHeld, l.fence, nil
	}
	l.fence = max(l.fence+fences, l.micros)
	l.born, l.forced = l.fence, true
	l.own("", 0, "")
	var told []string
	for _, holder := range holders {
		delete(l.shares, holder)
		l.released = holder
		if to, _, _ := strings.Cut(holder, ":"); !slices.Contains(told, to) {
			told = append(told, to)
			l.tell(to, to)
		}
	}
	l.settle()
	return answerForced, 0, nil
}

func (s *localStore) inspect(_ context.Context, t *target) (Info, error) {
	l := s.begin(t)
	defer l.end()
	holders, first := l.holders()
	info := Info{
		Held: first > l.now, Holders: len(holders), Remaining: millis(first - l.now),
		Fence: l.fence, Waiting: len(l.queue), Done: millis(max(l.done-l.now, 0)),
	}
	if l.owned() {
		info.Label = l.label
	}
	if len(l.queue) > 0 {
		info.Longest = time.Duration(max(l.micros-l.queue[0].ticket, 0)) * time.Microsecond
	}
	return info, nil
}
