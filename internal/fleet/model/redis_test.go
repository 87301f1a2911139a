package model

// What Redis does. A command is one script: nothing comes in between.

type kind uint8

const (
	none kind = iota
	read
	begin
	commit
	abort
	invalidate // also hold, lift and expire: by its fields
	claim      // the first step of Set and of Refresh
	set        // the last
	clearAll
)

// A command is what a process sends to Redis.
type command struct {
	kind   kind
	proc   uint8
	key    uint8
	token  uint8 // begin, commit, abort, claim, set
	ver    uint8 // commit, set
	epoch  uint8 // of ver
	keys   uint8 // clearAll: of the caches that are cleared, a bit for each
	hold   uint8 // invalidate: 1 + the writer whose hold is placed
	lifts  uint8 // holds to lift
	expire bool  // mark the value, and do not drop it
	leave  bool  // or let it be; claim: it is a Refresh that takes the lease
}

// A verdict is what Redis says.
type verdict uint8

const (
	done verdict = iota
	found
	granted
	held
	busy
	refused
)

// usable reports whether a process takes the value of a key as an answer.
func (s *state) usable(p, k uint8) bool {
	v := &s.keys[k]
	return v.ver != 0 && !v.marked && v.epoch >= s.procs[p].known[k]
}

// exec lets Redis run a command.
func (x *explorer) exec(s *state, c command) verdict {
	k := &s.keys[c.key]
	switch c.kind {
	case read:
		if s.usable(c.proc, c.key) {
			return found
		}
	case begin:
		switch {
		case s.usable(c.proc, c.key):
			return found
		case k.holds != 0 && !x.off.holdRefuses:
			return held
		case k.lease != 0 && k.lease != c.token:
			return busy
		}
		k.lease = c.token
		return granted
	case commit:
		if k.lease != c.token && !x.off.tokenCompared {
			return refused
		}
		for w := range s.writers {
			if s.spec.holds[w]>>c.key&1 == 1 {
				x.fail("a value is stored while writer %d holds the key", w+1)
			}
		}
		k.ver, k.marked, k.epoch, k.lease = c.ver, false, c.epoch, 0
	case abort:
		if k.lease == 0 || k.lease != c.token && !x.off.abortCompares {
			return refused
		}
		if k.lease != c.token {
			x.fail("an abort ends the lease of another load")
		}
		k.lease = 0
		if x.off.abortKeepsNotes {
			k.notes = 0
		}
	case invalidate:
		x.invalidate(s, c)
	case claim:
		switch {
		case c.leave && x.off.refreshTakes:
			return done
		case c.leave && k.holds != 0:
			return held
		case c.leave:
			k.lease = c.token
			return done
		}
		k.ver, k.marked, k.epoch, k.lease = 0, false, 0, c.token
	case set:
		stands := k.lease == c.token || x.off.setHasTwoSteps || x.off.refreshTakes
		if stands {
			k.ver, k.marked, k.epoch = c.ver, false, c.epoch
		}
		if k.lease == c.token {
			k.lease = 0
		}
		s.publish(c.proc, c.key)
		if !stands {
			return refused
		}
	case clearAll:
		for k := range s.keys {
			if c.keys>>k&1 == 0 {
				continue
			}
			s.epochs[k]++
			s.spec.cleared[k] = s.rows[k]
			for q := range s.procs {
				if to := &s.procs[q]; uint8(q) != c.proc && to.link == live && !to.dead {
					to.news[k]++
				}
			}
		}
	}
	return done
}

func (x *explorer) invalidate(s *state, c command) {
	k := &s.keys[c.key]
	place := uint8(0)
	if c.hold != 0 {
		place = 1 << (c.hold - 1)
	}
	if k.notes&place != 0 {
		return
	}
	switch {
	case c.leave:
	case c.expire:
		k.marked = k.ver != 0
	default:
		k.ver, k.marked, k.epoch = 0, false, 0
	}
	if place == 0 && !x.off.invalidateEndsLease || place != 0 && !x.off.holdEndsLease {
		k.lease = 0
	}
	lifts := c.lifts
	if x.off.liftsOwn && lifts != 0 {
		lifts = 0xff
	}
	switch {
	case x.off.liftLeavesNote:
	case x.off.foundLeavesNote:
		k.notes |= c.lifts &^ k.holds
	default: // a hold that is not there may be on its way, and so may one that is; of a confirmed one no note is needed
		k.notes |= c.lifts
	}
	k.holds = k.holds&^lifts | place
	for w := range s.writers {
		if c.lifts>>w&1 == 1 {
			s.spec.lifted[w] |= 1 << c.key
			s.spec.holds[w] &^= 1 << c.key
		}
		if place>>w&1 == 1 {
			s.spec.holds[w] |= 1 << c.key
		}
		if k.holds>>w&1 == 1 && s.spec.lifted[w]>>c.key&1 == 1 {
			x.fail("a hold stands whose writer has lifted it: nothing is stored until it ends by itself")
		}
	}
	s.publish(c.proc, c.key)
}

// publish sends "invalidated" to the other processes.
func (s *state) publish(from, k uint8) {
	for q := range s.procs {
		if to := &s.procs[q]; uint8(q) != from && to.link == live && !to.dead && to.inbox[k] < 3 {
			to.inbox[k]++
		}
	}
}
