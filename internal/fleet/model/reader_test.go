package model

// A reader is one Get: it looks into the memory of its process, joins the flight of its key if one
// runs, or reads Redis for itself; and if that has no answer, it opens the flight and runs it.
const (
	rBegins    = iota // looks into memory, joins a running flight
	rReads            // reads Redis for itself
	rJoins            // joins a flight, or opens it
	rLooks            // a next flight begins: reads Redis for those who are in it
	rAsks             // for the lease
	rLoad             // under the lease
	rParts            // the loader of a page looks for the row in memory
	rPartsRead        // and in Redis
	rPartsLoad        // and in the database
	rCommit
	rAbort
	rBeside    // loads beside a writer
	rAsksAgain // and asks again
	rDegraded  // loads without a lease
	rFill      // puts the result into memory
	rFinish    // ends its flight
	rWaits     // for the flight that it has joined
	rBusy      // for the lease that another process has
	rFallback  // its load has failed
	rDone
)

const tokenOfProcess = 90 // and more, see off.tokenPerLoad

// token names one acquisition of a lease.
func (x *explorer) token(i int, r *reader) uint8 {
	if x.off.tokenPerLoad {
		return tokenOfProcess + x.readers[i].proc
	}
	return uint8(8*i) + r.asked
}

func (x *explorer) who(i int) string {
	if x.tells {
		return sprintf("%s, reader %d", name(x.readers[i].proc), i+1)
	}
	return ""
}

// running returns the reader that runs the flight that reader i could join, -1 if there is none.
func (x *explorer) running(s *state, i int) int {
	for j := range x.model.readers {
		if s.readers[j].runs && x.readers[j] == x.readers[i] {
			return j
		}
	}
	return -1
}

// decide lets all who have joined the flight of reader i so far take its result.
func (s *state) decide(i int) {
	for j := range s.readers {
		if s.readers[j].in == uint8(i+1) {
			s.readers[j].may = true
		}
	}
}

// loads notes who has joined before a load.
func (s *state) loads(i int) {
	s.decide(i)
	for j := range s.readers {
		if s.readers[j].in == uint8(i+1) {
			s.readers[j].began = s.readers[j].may
		}
	}
}

// takeBack lets those take the result who had joined before the load.
func (x *explorer) takeBack(s *state, i int) {
	for j := range s.readers {
		if s.readers[j].in == uint8(i+1) && !x.off.takeBack {
			s.readers[j].may = s.readers[j].began
		}
	}
}

func (x *explorer) reader(s *state, i int) {
	is, k, p := x.readers[i], x.readers[i].key, x.readers[i].proc
	t := *s
	r := &t.readers[i]
	redis := s.procs[p].heard[k] || x.off.epochAwaited // else it waits until the epoch is known
	switch r.pc {
	case rBegins:
		if i > 0 && x.readers[i-1] == is && s.readers[i-1].pc == rBegins {
			return // the one before it begins first: they are the same
		}
		x.begins(&t, i)
	case rReads:
		if redis {
			x.reads(s, i)
		}
	case rJoins:
		if j := x.running(&t, i); j >= 0 {
			r.in, r.may, r.began, r.pc = uint8(j+1), false, false, rWaits
			x.to(&t, "%s: joins the flight of reader %d", x.who(i), j+1)
			return
		}
		r.runs = true
		if e := x.inMemory(&t, p, k); e.ver != 0 && !is.skipLocal {
			r.ver, r.epoch, r.fromHere, r.filled, r.mark, r.pc = e.ver, e.epoch, true, true, true, rFinish
			x.to(&t, "%s: opens a flight, and finds version %d in memory", x.who(i), e.ver)
			return
		}
		if r.pc = rAsks; r.unread {
			r.pc = rDegraded
		}
		x.to(&t, "%s: opens a flight", x.who(i))
	case rLooks:
		if redis {
			x.looks(s, i)
		}
	case rAsks, rAsksAgain:
		if redis || x.blocked(s, p, k) {
			x.asks(s, i)
		}
	case rBusy:
		if redis && (s.keys[k].lease == 0 || s.usable(p, k)) {
			x.looks(s, i)
		}
	case rLoad, rBeside, rDegraded:
		x.loads(s, i)
	case rParts, rPartsRead, rPartsLoad:
		x.parts(s, i)
	case rCommit:
		x.commits(s, i)
	case rAbort:
		end := func(t *state) {
			if !t.readers[i].stale {
				x.failed(t, i)
				return
			}
			x.takeBack(t, i)
			x.finish(t, i)
		}
		x.send(s, command{kind: abort, proc: p, key: k, token: x.token(i, r)}, func(t *state, _ verdict) { end(t) }, end, "%s: gives the lease back", x.who(i))
	case rFill:
		x.fills(&t, i)
	case rFinish:
		x.finish(&t, i)
		x.to(&t, "%s: gets %d, and its flight ends", x.who(i), s.readers[i].ver)
	case rFallback:
		if r.hasRead || redis || x.blocked(s, p, k) {
			x.fallsBack(s, i)
		}
	}
}

func (x *explorer) begins(t *state, i int) {
	r, is := &t.readers[i], x.readers[i]
	p, k := is.proc, is.key
	r.got = t.promised(p, k)
	if e := x.inMemory(t, p, k); e.ver != 0 && !is.skipLocal {
		x.expect(getOf(i), e.ver, r.got.ofMemory(&t.procs[p], e), "from memory")
		*r = reader{pc: rDone}
		x.to(t, "%s: gets %d from memory", x.who(i), e.ver)
		return
	}
	if j := x.running(t, i); j >= 0 {
		r.in, r.pc = uint8(j+1), rWaits
		x.to(t, "%s: begins, and joins the flight of reader %d", x.who(i), j+1)
		return
	}
	r.pc = rReads
	x.to(t, "%s: begins", x.who(i))
}

// found notes a value that a reader has read in Redis.
func (s *state) found(i int, k uint8) {
	r := &s.readers[i]
	r.ver, r.epoch, r.mark, r.fromHere, r.beside, r.pc = s.keys[k].ver, s.keys[k].epoch, true, false, false, rFill
}

// old returns the version of a value that is a fallback for a process.
func (s *state) old(p, k uint8) uint8 {
	if v := &s.keys[k]; v.epoch >= s.procs[p].known[k] {
		return v.ver
	}
	return 0
}

func (x *explorer) reads(s *state, i int) {
	k, p := x.readers[i].key, x.readers[i].proc
	unread := func(t *state) { t.readers[i].unread, t.readers[i].hasRead, t.readers[i].pc = true, true, rJoins }
	if x.blocked(s, p, k) {
		t := *s
		unread(&t)
		x.to(&t, "%s: may not read Redis", x.who(i))
		return
	}
	x.send(s, command{kind: read, proc: p, key: k}, func(t *state, v verdict) {
		r := &t.readers[i]
		if r.hasRead = true; v == found {
			t.found(i, k)
			return
		}
		r.fallback, r.pc = t.old(p, k), rJoins
	}, unread, "%s: reads Redis", x.who(i))
}

func (x *explorer) looks(s *state, i int) {
	k, p := x.readers[i].key, x.readers[i].proc
	t := *s
	t.decide(i)
	r := &t.readers[i]
	if e := x.inMemory(&t, p, k); e.ver != 0 && !x.readers[i].skipLocal {
		r.ver, r.epoch, r.fromHere, r.filled, r.mark, r.pc = e.ver, e.epoch, true, true, true, rFinish
		x.to(&t, "%s: finds %d in memory", x.who(i), e.ver)
		return
	}
	if x.blocked(s, p, k) {
		r.pc = rDegraded
		x.to(&t, "%s: may not read Redis", x.who(i))
		return
	}
	x.send(&t, command{kind: read, proc: p, key: k}, func(t *state, v verdict) {
		if t.readers[i].pc = rAsks; v == found {
			t.found(i, k)
		}
	}, func(t *state) { t.readers[i].pc = rDegraded }, "%s: reads Redis", x.who(i))
}

// asks asks for the lease; after a load beside a writer, whether the writer still holds the key.
func (x *explorer) asks(s *state, i int) {
	k, p := x.readers[i].key, x.readers[i].proc
	again := s.readers[i].pc == rAsksAgain
	t := *s
	if t.decide(i); x.blocked(s, p, k) {
		t.readers[i].pc = rDegraded
		x.to(&t, "%s: may not ask Redis", x.who(i))
		return
	}
	r := &t.readers[i]
	r.asked, r.mark = r.asked+1, true
	if r.asked == 8 {
		panic("a reader asks too often to have a token for each time")
	}
	x.send(&t, command{kind: begin, proc: p, key: k, token: x.token(i, r)}, func(t *state, v verdict) {
		r := &t.readers[i]
		switch {
		case v == found:
			t.found(i, k)
		case v == busy:
			r.pc = rBusy
		case v == held && again:
			x.takeBack(t, i)
			r.mark, r.beside, r.pc = r.bmark, true, rFill
		case v == held:
			r.bmark, r.pc = true, rBeside
		case again:
			t.keys[k].lease, r.pc = 0, rAsks // given back: it loads again, in its turn
		default:
			r.pc = rLoad
		}
	}, func(t *state) { t.readers[i].pc = rDegraded }, "%s: asks for the lease", x.who(i))
}

func (x *explorer) loads(s *state, i int) {
	is := x.readers[i]
	t := *s
	r := &t.readers[i]
	how, then := "under the lease", uint8(rCommit)
	switch r.pc {
	case rBeside:
		how, then = "beside the writer", rAsksAgain
		if x.off.asksAgain {
			then = rFill
		}
	case rDegraded:
		how, then, r.mark = "without a lease", rFill, true
	}
	wasLeased := r.pc == rLoad
	t.loads(i)
	r.epoch, r.fromHere, r.beside = t.procs[is.proc].known[is.key], false, false
	if is.page && wasLeased {
		if r.pc = rPartsRead; x.off.partsPastLocal {
			r.pc = rParts
		}
		x.to(&t, "%s: begins to load the page %s", x.who(i), how)
		return
	}
	r.ver, r.pc = t.replica[is.key], then
	if wasLeased && x.off.answerWaits {
		x.answersEarly(&t, i)
	}
	x.to(&t, "%s: loads %d %s", x.who(i), r.ver, how)
	if s.left.fails == 0 {
		return
	}
	t = *s
	t.left.fails--
	if t.loads(i); wasLeased {
		t.readers[i].pc = rAbort
	} else {
		x.failed(&t, i)
	}
	x.to(&t, "%s: its load fails", x.who(i))
}

// answersEarly gives a load to those who had joined before it. The flight goes on for the others.
func (x *explorer) answersEarly(t *state, i int) {
	r := t.readers[i]
	for j := range t.readers {
		if other := &t.readers[j]; other.in == uint8(i+1) && other.began {
			x.answer(t, j, &r)
		}
	}
	if !r.answered {
		x.answer(t, i, &r)
		t.readers[i] = r
		t.readers[i].answered = true
	}
}

// parts is the loader of a page: a Get of the row, key 0.
func (x *explorer) parts(s *state, i int) {
	p := x.readers[i].proc
	t := *s
	r := &t.readers[i]
	switch r.pc {
	case rParts:
		r.pc = rPartsRead
		if e := x.inMemory(&t, p, 0); e.ver != 0 {
			r.ver, r.pc = e.ver, rCommit
			x.to(&t, "%s: its loader finds row %d in memory", x.who(i), e.ver)
			return
		}
		x.to(&t, "%s: its loader does not find the row in memory", x.who(i))
	case rPartsRead:
		if !x.off.partsReadEpoch { // messages may be late, and this process may not know of a Clear
			x.learn(&t, p, 0)
		}
		if r.pc = rPartsLoad; t.usable(p, 0) {
			r.ver, r.pc = t.keys[0].ver, rCommit
			x.to(&t, "%s: its loader finds row %d in Redis", x.who(i), r.ver)
			return
		}
		if t.old(p, 0) != 0 {
			r.parts = t.old(p, 0)
		}
		x.to(&t, "%s: its loader finds no row in Redis", x.who(i))
	case rPartsLoad:
		r.ver, r.pc = t.replica[0], rCommit
		x.to(&t, "%s: its loader loads row %d", x.who(i), r.ver)
		if s.left.fails == 0 {
			return
		}
		t := *s
		t.left.fails--
		if r := &t.readers[i]; r.parts != 0 {
			r.ver, r.pc, r.stale = r.parts, rAbort, true
			if x.off.staleParts {
				r.pc, r.stale = rCommit, false
			}
			x.to(&t, "%s: its loader cannot load the row, and gets the old one, %d", x.who(i), r.ver)
			return
		}
		t.readers[i].pc = rAbort
		x.to(&t, "%s: its loader cannot load the row", x.who(i))
	}
}

func (x *explorer) commits(s *state, i int) {
	is := x.readers[i]
	t := *s
	t.decide(i)
	unstored := func(t *state) { x.takeBack(t, i); t.readers[i].pc = rFill }
	if x.blocked(s, is.proc, is.key) {
		unstored(&t)
		x.to(&t, "%s: may not store what it has loaded", x.who(i))
		return
	}
	r := &t.readers[i]
	if x.off.epochFirst {
		r.epoch = t.procs[is.proc].known[is.key]
	}
	c := command{kind: commit, proc: is.proc, key: is.key, token: x.token(i, r), ver: r.ver, epoch: r.epoch}
	x.send(&t, c, func(t *state, v verdict) {
		r := &t.readers[i]
		switch {
		case v == done && (r.epoch >= t.procs[is.proc].known[is.key] || x.off.clearedLoads):
			r.pc = rFill
		case v == done: // a Clear has overtaken the load
			unstored(t)
		case r.again < maxAgain:
			x.takeBack(t, i)
			r.again++
			r.ver, r.pc = 0, rAsks
		default:
			unstored(t)
		}
	}, unstored, "%s: stores %d", x.who(i), r.ver)
}

// fills puts what a reader has into the memory of its process, unless that has forgotten the key since.
func (x *explorer) fills(t *state, i int) {
	r, is := &t.readers[i], x.readers[i]
	q := &t.procs[is.proc]
	r.filled = false
	if (r.mark || x.off.mark) && r.epoch >= q.known[is.key] && !x.noLocal && !is.skipLocal {
		q.local[is.key] = entry{ver: r.ver, epoch: r.epoch, beside: r.beside}
		r.filled = true
	}
	ver, ran := r.ver, r.runs
	if !ran {
		x.answer(t, i, r)
		x.to(t, "%s: gets %d from Redis", x.who(i), ver)
		return
	}
	x.finish(t, i)
	x.to(t, "%s: gets %d, and its flight ends", x.who(i), ver)
}

// finish ends a flight: its result is for those who had joined when it was decided, and for the others if
// memory would give it to a caller who comes now. The rest go on together in the next flight.
func (x *explorer) finish(t *state, i int) {
	r := t.readers[i]
	next := -1
	for j := range t.readers {
		other := &t.readers[j]
		switch {
		case other.in != uint8(i+1):
		case other.may || x.off.joinNumber:
			x.answer(t, j, &r)
		case x.isCurrent(&r):
			now := r
			now.fromHere = true
			x.answer(t, j, &now)
		case next < 0:
			next = j
			*other = reader{pc: rLooks, runs: true, hasRead: other.hasRead, fallback: other.fallback, got: other.got}
		default:
			other.in, other.may, other.began = uint8(next+1), false, false
		}
	}
	x.answer(t, i, &r)
}

// isCurrent reports whether the memory of the process still has the result of a flight.
func (x *explorer) isCurrent(r *reader) bool { return r.filled && r.mark }

// failed ends a flight with the error of its load. That goes to all who have joined.
func (x *explorer) failed(t *state, i int) {
	for j := range t.readers {
		if r := &t.readers[j]; r.answered {
			*r = reader{pc: rDone}
		} else if j == i || r.in == uint8(i+1) {
			*r = reader{pc: rFallback, hasRead: r.hasRead, fallback: r.fallback, got: r.got}
		}
	}
}

// fallsBack looks for an old value in place of an error: the reader's own, or what the process has kept.
func (x *explorer) fallsBack(s *state, i int) {
	k, p := x.readers[i].key, x.readers[i].proc
	t := *s
	r := &t.readers[i]
	if !r.hasRead && !x.blocked(s, p, k) {
		r.fallback = t.old(p, k)
	}
	got, ver := r.got, r.fallback
	switch e := t.procs[p].local[k]; {
	case ver != 0:
		x.expect(getOf(i), ver, max(got.marked, got.read), "marked, from Redis")
	case e.ver != 0 && e.epoch >= t.procs[p].known[k]:
		ver = e.ver
		x.expect(getOf(i), ver, got.localMarked, "marked, from memory")
	default:
		if x.stays && !t.spec.dropped[k] {
			x.fail("a reader gets an error though no writer has succeeded: the old value is gone")
		}
		*r = reader{pc: rDone}
		x.to(&t, "%s: gets the error", x.who(i))
		return
	}
	*r = reader{pc: rDone}
	x.to(&t, "%s: gets %d, marked as stale", x.who(i), ver)
}

// answer ends a Get with what a reader has.
func (x *explorer) answer(t *state, i int, has *reader) {
	g, ver := t.readers[i].got, has.ver
	switch {
	case t.readers[i].answered:
	case has.stale:
		x.expect(getOf(i), ver, g.marked, "marked as stale")
	case has.fromHere:
		x.expect(getOf(i), ver, g.ofMemory(&t.procs[x.readers[i].proc], entry{ver: ver}), "from memory")
	default:
		if !has.runs {
			x.expect(getOf(i), ver, g.read, "from Redis")
		}
		if x.expect(getOf(i), ver, g.plain, "from Redis or a load"); x.ordered {
			raise(&t.spec.seen[x.readers[i].key], ver)
		}
	}
	t.readers[i] = reader{pc: rDone}
}
