package model

import "slices"

// What happens beside readers and writers: messages, time, deaths, late commands, and what a
// process does in the background.

// steps visits every state that is one step away.
func (x *explorer) steps(s *state) {
	for i := range s.readers {
		if s.readers[i].pc != rDone {
			x.reader(s, i)
		}
	}
	for i := range s.writers {
		if !s.writers[i].over() {
			x.writer(s, i)
		}
	}
	for p := range s.procs {
		if !s.procs[p].dead {
			x.process(s, uint8(p))
		}
	}
	x.lateCommands(s)
	x.time(s)
}

// settle brings s into the form in which states are compared, and notes what messages have told.
func (x *explorer) settle(s *state) {
	for i, is := range x.model.writers {
		if w := &s.writers[i]; w.at != 0 && !x.knows(s, is.proc, w.at-1) {
			x.forgets(s, i) // there is nothing to forget, so when it does makes no difference
		}
	}
	slices.SortFunc(s.late[:], func(a, b command) int {
		return int(b.kind) - int(a.kind) + 16*(int(b.token+b.hold)-int(a.token+a.hold))
	})
	for p := range s.procs {
		q := &s.procs[p]
		for k := range s.keys {
			if q.inbox[k] == 0 && q.link == live {
				s.spec.heard[p][k], s.spec.heardPlain[p][k] = s.spec.marked[k], s.spec.plain[k]
			}
		}
	}
}

func raise(to *uint8, ver uint8) { *to = max(*to, ver) }

// forget drops what a process has of a key, and overtakes the marks that its readers have taken.
func (x *explorer) forget(s *state, p, k uint8) {
	s.procs[p].local[k] = entry{}
	for i := range s.readers {
		if i < len(x.readers) && x.readers[i].proc == p && x.readers[i].key == k {
			s.readers[i].mark, s.readers[i].bmark = false, false
		}
	}
}

// knows reports whether there is anything to forget.
func (x *explorer) knows(s *state, p, k uint8) bool {
	for i, is := range x.model.readers {
		if is.proc == p && is.key == k && (s.readers[i].mark || s.readers[i].bmark) {
			return true
		}
	}
	return s.procs[p].local[k] != entry{}
}

func (x *explorer) flush(s *state, p uint8) {
	for k := range s.keys {
		x.forget(s, p, uint8(k))
	}
}

// inMemory returns what the local tier answers, an empty entry if nothing.
func (x *explorer) inMemory(s *state, p, k uint8) entry {
	q := &s.procs[p]
	e := q.local[k]
	if e.ver == 0 || e.epoch < q.known[k] || q.link == noticed && e.old && !x.off.heartbeat {
		return entry{}
	}
	return e
}

// blocked reports whether a process leaves a key alone in Redis.
func (x *explorer) blocked(s *state, p, k uint8) bool {
	q := &s.procs[p]
	return q.clears || q.over || q.pend[k].on && !x.off.blocks
}

// learn takes note of the present epoch of the cache that a key is of.
func (x *explorer) learn(s *state, p, k uint8) {
	q := &s.procs[p]
	if q.heard[k] = true; q.known[k] < s.epochs[k] {
		q.known[k] = s.epochs[k]
		x.forget(s, p, k)
	}
	raise(&s.spec.own[p][k], s.spec.cleared[k])
}

func (x *explorer) process(s *state, p uint8) {
	q := &s.procs[p]
	for k := range q.inbox {
		if q.inbox[k] == 0 {
			continue
		}
		t := *s
		t.procs[p].inbox[k]--
		x.forget(&t, p, uint8(k))
		x.to(&t, "%s hears that %s is invalidated", name(p), x.key(uint8(k)))
		if s.left.twice > 0 {
			t := *s
			t.left.twice--
			x.forget(&t, p, uint8(k))
			x.to(&t, "%s hears that %s is invalidated, and will hear it again", name(p), x.key(uint8(k)))
		}
	}
	for k := range q.news {
		if q.news[k] > 0 {
			t := *s
			t.procs[p].news[k]--
			t.procs[p].heard[k] = false
			raise(&t.spec.told[p][k], t.spec.cleared[k])
			x.to(&t, "%s hears of a Clear", name(p))
		}
		if !q.heard[k] {
			t := *s
			x.learn(&t, p, uint8(k))
			x.to(&t, "%s reads the epoch", name(p))
		}
	}
	x.link(s, p)
	x.retries(s, p)
	if s.left.kills > 0 {
		x.kill(s, p)
	}
}

func (x *explorer) link(s *state, p uint8) {
	q := &s.procs[p]
	if s.left.breaks > 0 && q.link == live {
		t := *s
		t.left.breaks--
		t.procs[p].link, t.procs[p].inbox, t.procs[p].news = silent, [nKeys]uint8{}, [nKeys]uint8{}
		x.to(&t, "the connection over which %s hears messages is dead", name(p))
	}
	if q.link == silent {
		t := *s
		to := &t.procs[p]
		to.link = noticed
		for k := range to.local {
			to.local[k].old = to.local[k].ver != 0
		}
		x.to(&t, "three seconds pass, and no heartbeat has come to %s", name(p))
	}
	if q.link == noticed && slices.ContainsFunc(q.local[:], func(e entry) bool { return e.ver != 0 && !e.old }) {
		t := *s
		for k := range t.procs[p].local {
			t.procs[p].local[k].old = t.procs[p].local[k].ver != 0
		}
		x.to(&t, "a second passes")
	}
	if q.link != live {
		t := *s
		t.procs[p].link, t.procs[p].heard = live, [nKeys]bool{x.off.gapReadsEpoch, x.off.gapReadsEpoch}
		for k := range t.keys {
			raise(&t.spec.told[p][k], t.spec.cleared[k])
		}
		if !x.off.gapForgets {
			x.flush(&t, p)
		}
		x.to(&t, "%s has a new connection for messages", name(p))
	}
}

// retries are what the process tries again that Redis has not confirmed.
func (x *explorer) retries(s *state, p uint8) {
	q := &s.procs[p]
	for k := range q.pend {
		if !q.pend[k].on {
			continue
		}
		t := *s
		to := &t.procs[p]
		switch was := q.pend[k]; was.tried {
		case untried:
			x.exec(&t, command{kind: invalidate, proc: p, key: uint8(k), lifts: was.lifts})
			to.pend[k].tried = tried
			x.to(&t, "%s invalidates %s again", name(p), x.key(uint8(k)))
		case asked:
			if to.pend[k].tried = untried; !x.off.asksSince {
				x.to(&t, "%s hears that %s is invalidated, which was asked for again since", name(p), x.key(uint8(k)))
				continue
			}
			fallthrough
		default:
			raise(&t.spec.marked[k], was.ver)
			raise(&t.spec.plain[k], max(was.ver, was.soft))
			to.pend[k] = pending{}
			to.over = to.over && slices.ContainsFunc(to.pend[:], func(p pending) bool { return p.on })
			x.to(&t, "%s is told that %s is invalidated", name(p), x.key(uint8(k)))
		}
	}
	if q.clears {
		t := *s
		x.exec(&t, command{kind: clearAll, proc: p, keys: all})
		t.procs[p].clears = false
		x.learn(&t, p, 0)
		x.learn(&t, p, 1)
		x.to(&t, "%s clears the cache: confirmed", name(p))
	}
}

// unconfirmed makes an invalidation pending.
func (x *explorer) unconfirmed(t *state, p, k, lifts uint8) {
	q := &t.procs[p]
	t.spec.dropped[k] = true
	n := uint8(0)
	for i := range q.pend {
		if q.pend[i].on && uint8(i) != k {
			n++
		}
	}
	if q.clears {
		return
	}
	if x.room > 0 && n >= x.room {
		if q.over = x.off.becomesClear; !q.over {
			q.pend, q.clears = [nKeys]pending{}, true
		}
		return
	}
	was := q.pend[k]
	q.pend[k] = pending{true, was.tried, was.lifts | lifts, was.ver, was.soft}
	if was.tried == tried {
		q.pend[k].tried = asked
	}
}

func (x *explorer) kill(s *state, p uint8) {
	t := *s
	t.left.kills--
	t.procs[p] = process{dead: true}
	for i := range x.model.readers {
		if x.readers[i].proc == p {
			t.readers[i] = reader{pc: rDone}
		}
	}
	for i := range x.model.writers {
		if w := &t.writers[i]; x.writers[i].proc == p && w.pc != wDone {
			*w = writer{pc: wDead, ver: w.ver}
		}
	}
	x.to(&t, "%s is killed", name(p))
}

// lateCommands come to Redis when their callers have left.
func (x *explorer) lateCommands(s *state) {
	for i := range s.late {
		if s.late[i].kind == none {
			continue
		}
		t := *s
		c := t.late[i]
		t.late[i] = command{}
		what := x.exec(&t, c)
		x.to(&t, "the %s that was given up comes to Redis: %s", c.says(), what.says(&t, c.key))
	}
}

// send lets a caller send a command: it is answered, or its reply is lost, or it is given up and may
// come late; a hold may also come twice.
func (x *explorer) send(s *state, c command, answered func(*state, verdict), lost func(*state), format string, args ...any) {
	if x.tells {
		format = sprintf(format, args...)
	}
	t := *s
	v := x.exec(&t, c)
	says := ""
	if x.tells {
		says = v.says(s, c.key)
	}
	answered(&t, v)
	x.to(&t, "%s: %s", format, says)
	switch c.kind {
	case read, begin, commit, abort:
		if x.calm {
			return
		}
	}
	if s.left.timeouts == 0 {
		return
	}
	if c.kind != read {
		t = *s
		t.left.timeouts--
		x.exec(&t, c)
		lost(&t)
		x.to(&t, "%s: done, and the reply is lost", format)
	}
	for i := range s.late {
		if s.late[i].kind == none {
			t = *s
			t.left.timeouts--
			if c.kind != read {
				t.late[i] = c
			}
			lost(&t)
			x.to(&t, "%s: no reply, and it has not come to Redis yet", format)
			if c.hold != 0 {
				t = *s
				t.left.timeouts--
				x.exec(&t, c)
				t.late[i] = c
				lost(&t)
				x.to(&t, "%s: done, the reply is lost, and the client sends it once more", format)
			}
			break
		}
	}
}

// time ends leases and holds.
func (x *explorer) time(s *state) {
	for i := range s.keys {
		k := &s.keys[i]
		if k.lease != 0 && (s.left.lapses > 0 || !x.off.leaseEnds && !x.wanted(s, k.lease)) {
			t := *s
			if x.wanted(s, k.lease) {
				t.left.lapses--
			}
			t.keys[i].lease = 0
			x.to(&t, "the lease of %s ends by its time", x.key(uint8(i)))
		}
		for w := range x.model.writers {
			if k.holds>>w&1 == 0 {
				continue
			}
			ended := s.writers[w].over()
			if !ended && s.left.lapses == 0 {
				continue
			}
			t := *s
			if !ended {
				t.left.lapses--
			}
			t.keys[i].holds &^= 1 << w
			t.spec.holds[w] &^= 1 << i
			if s.writers[w].pc == wDead && x.writers[w].keys>>i&1 == 1 {
				raise(&t.spec.plain[i], s.writers[w].ver)
			}
			if !x.off.besideEnds {
				x.forgetBeside(&t, uint8(i))
			}
			x.to(&t, "the hold of writer %d on %s ends by its time", w+1, x.key(uint8(i)))
		}
	}
}

// forgetBeside ends what was loaded beside a writer: nobody keeps that for longer than the hold lasts.
func (x *explorer) forgetBeside(s *state, k uint8) {
	for p := range s.procs {
		if s.procs[p].local[k].beside {
			s.procs[p].local[k] = entry{}
		}
	}
	for i := range x.model.readers {
		if r := &s.readers[i]; x.readers[i].key == k {
			r.bmark, r.mark = false, r.mark && !r.beside
		}
	}
}

// wanted reports whether the owner of a lease is going to use it.
func (x *explorer) wanted(s *state, token uint8) bool {
	if token >= setToken {
		pc := s.writers[token-setToken].pc
		return pc == wSet || pc == wLoads || pc == wReplaces
	}
	for i := range x.model.readers {
		switch r := &s.readers[i]; r.pc {
		case rLoad, rParts, rPartsRead, rPartsLoad, rCommit, rAbort:
			if x.token(i, r) == token {
				return true
			}
		}
	}
	return false
}
