package model

// What package cache promises. Versions may be older than what is promised only where that says so.

// spec is what has been promised so far: the oldest version that an answer may have which is marked as
// stale, or plain.
type spec struct {
	marked, plain     [nKeys]uint8         // from Redis or a load, to every Get that begins now
	own, ownPlain     [nProcs][nKeys]uint8 // to the Gets of one process, wherever their answers are from
	heard, heardPlain [nProcs][nKeys]uint8 // from the memory of a process: messages have told it
	told              [nProcs][nKeys]uint8 // of what one process reads in Redis: a message of a Clear, or a gap, has told it to read the epoch
	seen              [nKeys]uint8         // the newest answer so far
	cleared           [nKeys]uint8         // what was committed before the last Clear
	holds, lifted     [nWriters]uint8      // holds that stand, and that were lifted, a bit for each key
	dropped           [nKeys]bool          // somebody may have dropped the value
}

// A got is what is promised to a Get, from when it begins.
type got struct{ marked, plain, read, localMarked, localPlain uint8 }

// promised is what is promised to a Get that begins now.
func (s *state) promised(p, k uint8) got {
	sp := &s.spec
	own, ownPlain := sp.own[p][k], max(sp.own[p][k], sp.ownPlain[p][k])
	return got{
		marked: max(sp.marked[k], own), plain: max(sp.marked[k], sp.plain[k], ownPlain, sp.seen[k]), read: sp.told[p][k],
		localMarked: max(sp.heard[p][k], own), localPlain: max(sp.heard[p][k], sp.heardPlain[p][k], ownPlain),
	}
}

// ofMemory is the oldest version that may be served from memory. A process that has heard nothing for
// three seconds has noticed, and serves what it got in the last second.
func (g got) ofMemory(q *process, e entry) uint8 {
	if q.link == noticed && e.old {
		return g.plain
	}
	return g.localPlain
}

// probe lets a Get begin in each process that is answered at once.
func (x *explorer) probe(s *state) {
	for p := range uint8(nProcs) {
		for k := range uint8(nKeys) {
			q, g := &s.procs[p], s.promised(p, k)
			if q.dead {
				continue
			}
			e := x.inMemory(s, p, k)
			kept := q.local[k]
			silent := x.blocked(s, p, k) || !q.heard[k] && !x.off.epochAwaited
			switch {
			case e.ver != 0:
				x.expect(probe(p), e.ver, g.ofMemory(q, e), "from memory")
			case kept.ver != 0 && kept.epoch >= q.known[k]:
				x.expect(probe(p), kept.ver, g.localMarked, "from memory, marked as stale, when its load fails")
			}
			switch {
			case silent:
			case s.usable(p, k):
				x.expect(probe(p), s.keys[k].ver, max(g.plain, g.read), "from Redis")
			case s.old(p, k) != 0:
				x.expect(probe(p), s.old(p, k), max(g.marked, g.read), "from Redis, marked as stale, when its load fails")
			}
		}
	}
}

func name(p uint8) string { return string('A' + rune(p)) }

// A get is a reader of the model, or a probe: 10 and more.
type get uint8

func probe(p uint8) get { return get(10 + p) }

func getOf(i int) get { return get(i) }

func (g get) String() string {
	if g >= 10 {
		return "a Get that begins now in " + name(uint8(g-10))
	}
	return sprintf("reader %d", g+1)
}

func (x *explorer) expect(who get, ver, promised uint8, what string) {
	if ver < promised {
		x.fail("%v gets version %d %s, and %d was promised", who, ver, what, promised)
	}
}
