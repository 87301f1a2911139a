package model

// A writer is one call. Write holds its keys, runs the transaction, and ends the holds; the others commit first.
const (
	wBegins = iota
	wHold
	wTx
	wDrop  // of several keys: all are dropped before one is opened
	wWaits // in the background, until that is confirmed; then all are dropped once more
	wEnd
	wClaim // Set
	wSet
	wClear
	wTakes // Refresh: the lease, from whoever has it
	wLoads
	wReplaces
	wLags // it has returned, and the replicas may lag behind it
	wDone
	wDead // with its process
)

// over reports whether the call has returned, and nothing goes on for it.
func (w *writer) over() bool { return w.pc == wDone || w.pc == wDead }

const setToken = 100 // and more: the tokens of Set

func (x *explorer) writer(s *state, i int) {
	is := x.writers[i]
	t := *s
	w := &t.writers[i]
	call := ""
	if x.tells {
		call = sprintf("%s, %s %d", name(is.proc), is.call, i+1)
	}
	if w.at != 0 {
		k, returned := w.at-1, ""
		if x.forgets(&t, i); w.pc == wDone {
			returned = ", and it returns"
		}
		x.to(&t, "%s: its process forgets %s%s", call, x.key(k), returned)
		return
	}
	switch w.pc {
	case wLags:
		x.caughtUp(&t, i, call)
	case wBegins:
		if x.inTurn && i > 0 && !s.writers[i-1].over() {
			return
		}
		if w.todo = is.keys; is.call == writeCall {
			w.pc = wHold
			x.writer(&t, i)
			return
		}
		x.commit(&t, i, is.keys)
		for k := range uint8(nKeys) {
			if is.keys>>k&1 == 1 {
				t.spec.dropped[k] = true
				if x.off.redisFirst {
					x.forget(&t, is.proc, k)
				}
			}
		}
		w.pc = [...]uint8{invalidateCall: wEnd, expireCall: wEnd, setCall: wClaim, clearCall: wClear, refreshCall: wTakes}[is.call]
		x.to(&t, "%s: version %d is committed, and it begins", call, w.ver)
	case wTx:
		x.transaction(s, i, call)
	case wClear:
		x.clears(s, i, call)
	case wWaits:
		if q := &s.procs[is.proc]; !q.clears && !q.pend[0].on && !q.pend[1].on {
			w.pc, w.closed = wEnd, true
			x.to(&t, "%s: has returned, and now all of its keys are dropped", call)
		}
	default:
		for k := range uint8(nKeys) {
			if w.todo>>k&1 == 1 {
				x.calls(s, i, k, call)
			}
		}
	}
}

// commit makes new versions of rows.
func (x *explorer) commit(t *state, i int, keys uint8) {
	for k := range t.rows {
		if keys>>k&1 == 1 {
			t.rows[k]++
			t.writers[i].ver = t.rows[k]
		}
	}
	if !x.lags {
		t.replica = t.rows
	}
}

// calls calls Redis for one key: any of those that are left, since a Write calls for all at once.
func (x *explorer) calls(s *state, i int, k uint8, call string) {
	is := x.writers[i]
	w := &s.writers[i]
	at := func(t *state) { t.writers[i].at = k + 1 }
	switch w.pc {
	case wHold:
		x.send(s, command{kind: invalidate, proc: is.proc, key: k, hold: uint8(i + 1), expire: !x.off.expiresFirst},
			func(t *state, _ verdict) { at(t) }, at, "%s: holds %s", call, x.key(k))
	case wDrop:
		x.send(s, command{kind: invalidate, proc: is.proc, key: k, expire: w.failed}, func(t *state, _ verdict) { at(t) },
			func(t *state) { x.notConfirmed(t, i, k); at(t) }, "%s: drops %s", call, x.key(k))
	case wEnd:
		c := command{kind: invalidate, proc: is.proc, key: k}
		what := "invalidates"
		if x.lags && !x.off.lagHolds {
			c.hold = uint8(1 + nWriters + i)
		}
		if is.call == writeCall && !w.closed {
			c.lifts, what = 1<<i, "invalidates and opens"
		}
		switch {
		case w.closed:
		case w.failed && x.off.failureExpires:
			c.leave, what = true, "opens"
		case w.failed, is.call == expireCall, x.off.dropsLast && is.call == writeCall:
			c.expire = true
			what = "expires and opens"
			if is.call == expireCall {
				what = "expires"
			}
		}
		x.send(s, c, func(t *state, _ verdict) { at(t) }, func(t *state) { x.notConfirmed(t, i, k); at(t) }, "%s: %s %s", call, what, x.key(k))
	case wClaim:
		if x.off.setHasTwoSteps {
			x.sets(s, i, k, call)
			return
		}
		epoch := s.procs[is.proc].known[k] // of the value: what is cleared from now on ends it
		x.send(s, command{kind: claim, proc: is.proc, key: k, token: uint8(setToken + i)},
			func(t *state, _ verdict) { t.writers[i].pc, t.writers[i].epoch = wSet, epoch }, func(t *state) { x.notConfirmed(t, i, k); at(t) }, "%s: takes the lease of %s", call, x.key(k))
	case wSet:
		x.sets(s, i, k, call)
	case wTakes, wLoads, wReplaces:
		x.refreshes(s, i, k, call)
	}
}

// refreshes is Refresh: it takes the lease, loads while the old value is still served, and replaces it. When
// others take the lease away too often, or a writer holds the key, it invalidates.
func (x *explorer) refreshes(s *state, i int, k uint8, call string) {
	w, p := s.writers[i], x.writers[i].proc
	token := uint8(setToken + i)
	gaveUp := func(t *state) { // it reports ErrUnavailable
		x.forget(t, p, k)
		t.writers[i] = writer{pc: wDone}
	}
	switch w.pc {
	case wTakes:
		x.send(s, command{kind: claim, proc: p, key: k, token: token, leave: true}, func(t *state, v verdict) {
			if t.writers[i].pc = wLoads; v == held {
				t.writers[i].pc = wEnd
			}
		}, gaveUp, "%s: takes the lease of %s", call, x.key(k))
	case wLoads:
		t := *s
		t.writers[i].ver, t.writers[i].epoch, t.writers[i].pc = t.rows[k], t.procs[p].known[k], wReplaces
		x.to(&t, "%s: loads %d", call, t.rows[k])
	case wReplaces:
		x.send(s, command{kind: set, proc: p, key: k, token: token, ver: w.ver, epoch: w.epoch}, func(t *state, v verdict) {
			to := &t.writers[i]
			switch to.again++; {
			case v == done || x.off.refreshTakes:
				to.at = k + 1
			case to.again > maxAgain:
				to.pc = wEnd
			default:
				to.pc = wTakes
			}
		}, gaveUp, "%s: stores %d", call, w.ver)
	}
}

// sets is the second step of Set.
func (x *explorer) sets(s *state, i int, k uint8, call string) {
	w := s.writers[i]
	if x.off.epochFirst {
		w.epoch = s.procs[x.writers[i].proc].known[k]
	}
	x.send(s, command{kind: set, proc: x.writers[i].proc, key: k, token: uint8(setToken + i), ver: w.ver, epoch: w.epoch},
		func(t *state, _ verdict) { t.writers[i].at = k + 1 },
		func(t *state) { x.notConfirmed(t, i, k); t.writers[i].at = k + 1 }, "%s: stores %d", call, w.ver)
}

// notConfirmed has the process of a writer try again what Redis has not confirmed.
func (x *explorer) notConfirmed(t *state, i int, k uint8) {
	w := &t.writers[i]
	w.errs |= 1 << k
	lifts := uint8(0)
	if w.pc == wEnd && x.writers[i].call == writeCall && !w.closed {
		lifts = 1 << i
	}
	x.unconfirmed(t, x.writers[i].proc, k, lifts)
}

// forgets drops what the writer's process knows of a key, after Redis has; the last one ends the phase.
func (x *explorer) forgets(t *state, i int) {
	w, is := &t.writers[i], x.writers[i]
	k := w.at - 1
	if !x.off.redisFirst {
		x.forget(t, is.proc, k)
	}
	w.at = 0
	if w.todo &^= 1 << k; w.todo != 0 {
		return
	}
	switch w.pc {
	case wHold:
		w.pc = wTx
	case wDrop:
		next := uint8(wEnd)
		if w.errs != 0 && !x.off.opensLast {
			x.returns(t, i)
			next = wWaits
		}
		w.pc, w.todo, w.errs = next, is.keys, 0
	default:
		x.returns(t, i)
	}
}

// transaction commits, or not, and says the one or the other.
func (x *explorer) transaction(s *state, i int, call string) {
	is := x.writers[i]
	end := func(t *state, failed bool) {
		w := &t.writers[i]
		w.failed, w.todo, w.pc = failed, is.keys, wEnd
		if is.keys == all && !x.off.dropsAll {
			w.pc = wDrop
		}
		for k := range uint8(nKeys) {
			t.spec.dropped[k] = t.spec.dropped[k] || !failed && is.keys>>k&1 == 1
			if x.off.redisFirst && is.keys>>k&1 == 1 {
				x.forget(t, is.proc, k)
			}
		}
	}
	t := *s
	x.commit(&t, i, is.keys)
	end(&t, false)
	x.to(&t, "%s: commits version %d", call, t.writers[i].ver)
	if x.lies {
		t = *s
		x.commit(&t, i, is.keys)
		end(&t, true)
		x.to(&t, "%s: commits version %d, and learns of a failure", call, t.writers[i].ver)
	}
	if x.refuses {
		t = *s
		end(&t, true)
		x.to(&t, "%s: rolls back", call)
	}
}

// returns notes what a call promises that returns.
func (x *explorer) returns(t *state, i int) {
	w, is := t.writers[i], x.writers[i]
	if x.lags && w.pc != wLags {
		t.writers[i].pc = wLags
		return
	}
	for k := range uint8(nKeys) {
		if is.keys>>k&1 == 0 {
			continue
		}
		soft := w.failed || is.call == expireCall
		if !soft {
			raise(&t.spec.own[is.proc][k], w.ver)
		}
		raise(&t.spec.ownPlain[is.proc][k], w.ver)
		if q := &t.procs[is.proc]; w.errs>>k&1 == 1 && (q.pend[k].on || x.room > 0) {
			if raise(&q.pend[k].soft, w.ver); !soft {
				raise(&q.pend[k].ver, w.ver)
			}
			continue
		}
		if w.pc == wDrop {
			continue
		}
		if !soft {
			raise(&t.spec.marked[k], w.ver)
		}
		raise(&t.spec.plain[k], w.ver)
	}
	if w.pc != wDrop {
		t.writers[i] = writer{pc: wDone}
	}
}

// caughtUp ends the time for which the replicas may lag behind a writer, and with it the hold that this
// left. Nobody is told.
func (x *explorer) caughtUp(t *state, i int, call string) {
	if t.replica != t.rows {
		t.replica = t.rows
		x.to(t, "the replicas catch up")
		return
	}
	for k := range t.keys {
		if x.writers[i].keys>>k&1 == 1 {
			if t.keys[k].holds &^= 1 << (nWriters + i); !x.off.besideEnds {
				x.forgetBeside(t, uint8(k))
			}
		}
	}
	x.returns(t, i)
	x.to(t, "%s: ReplicaLag has passed since", call)
}

// clears is Clear, which forgets everything also when it is not confirmed.
func (x *explorer) clears(s *state, i int, call string) {
	is := x.writers[i]
	end := func(t *state) {
		for k := range uint8(nKeys) {
			if is.keys>>k&1 == 1 {
				x.forget(t, is.proc, k)
				raise(&t.spec.own[is.proc][k], t.writers[i].ver)
				t.spec.dropped[k] = true
			}
		}
		t.writers[i] = writer{pc: wDone}
	}
	learn := func(t *state, _ verdict) {
		for k := range uint8(nKeys) {
			if is.keys>>k&1 == 1 {
				x.learn(t, is.proc, k)
			}
		}
		end(t)
	}
	x.send(s, command{kind: clearAll, proc: is.proc, keys: is.keys}, learn,
		func(t *state) { t.procs[is.proc].pend, t.procs[is.proc].clears = [nKeys]pending{}, true; end(t) }, "%s: clears", call)
}

// says names a command.
func (c command) says() string {
	switch c.kind {
	case begin:
		return "question for the lease"
	case commit:
		return sprintf("commit of %d", c.ver)
	case abort:
		return "abort"
	case claim:
		return "first step of a Set"
	case set:
		return sprintf("second step of a Set, of %d,", c.ver)
	case clearAll:
		return "Clear"
	}
	switch {
	case c.hold != 0:
		return sprintf("hold of writer %d", c.hold)
	case c.expire:
		return "Expire"
	}
	return "Invalidate"
}

// says names a reply about a key.
func (v verdict) says(s *state, k uint8) string {
	switch v {
	case found:
		return sprintf("%d", s.keys[k].ver)
	case granted:
		return "granted"
	case held:
		return "held by a writer"
	case busy:
		return "another has it"
	case refused:
		return "refused"
	}
	return "done"
}
