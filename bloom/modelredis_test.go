package bloom_test

import (
	"maps"
	"slices"
)

// A mID is that of an entry, with the id that the entry adds (-1: the marker "begin"):
// after a failover to a server whose clock is behind, two entries may have the same <ms>-<n>.
type mID struct{ ms, n, id int }

func (a mID) after(b mID) bool { return a.ms > b.ms || a.ms == b.ms && a.n > b.n }

// ahead tells whether a reader at b has a before it. After a failover to a server whose
// clock is behind, new numbers may come with old times: then it has passed a.
func (a mID) ahead(b mID) bool { return a.after(b) && a.n > b.n }

type mLeased struct{ token, until int }

// A mRecord is what the record says; a reader gets it with a chunk of the log.
type mRecord struct {
	header   int // 0: there is no record
	last, at mID
	shape    int // 0: no snapshot, everybody abstains
	pieces   int // name of the snapshot
	damaged  bool
	rebuilt  int // when the last Rebuild was
}

type mSnapshot struct {
	shape  int
	pieces [mPieces]uint64
	has    [mPieces]bool
}

type mRedis struct {
	mRecord
	log       []mID
	snapshots map[int]mSnapshot
	lease     map[string]mLeased
	skew      int // of this server's clock
	when      int // it was so
}

type mRow struct {
	adder           *mProc
	start           int // of its Add
	added           int // newest time its id came into the log
	acked           int // 0: Add has not returned nil
	until           int // it commits by then, or not at all
	committed, gone bool
	lost            int  // since when Redis has lost its entry; 0: it has not
	flushed         bool // with everything else
	repaired        int  // shape of the Rebuild that found it again
}

// What Redis does, each at once.

func (r *mRedis) clone() mRedis {
	c := *r
	c.log = slices.Clip(r.log)
	c.snapshots, c.lease = maps.Clone(r.snapshots), maps.Clone(r.lease)
	return c
}

func (m *model) clock() int { return m.now + m.redis.skew }

func (r *mRedis) holds(at mID) bool {
	return slices.ContainsFunc(r.log, func(e mID) bool { return e == at })
}

// set returns what a process that loads now and reads the log would have.
func (r *mRedis) set() (bits uint64) {
	if s, ok := r.snapshots[r.pieces]; ok && r.shape != 0 {
		bits = s.pieces[0] | s.pieces[1]
	}
	for _, e := range r.log {
		if e.id >= 0 {
			bits |= 1 << e.id
		}
	}
	return bits
}

func (m *model) append(id int) mID {
	r := &m.redis
	r.last = mID{max(m.clock(), r.last.ms), r.last.n + 1, id}
	r.log = append(slices.Clip(r.log), r.last)
	m.changed = true
	return r.last
}

// trim drops entries before at, except those of the last retention and the newest
// before them: a reader that has seen all there was must find its entry.
func (m *model) trim(at mID) {
	r, cut := &m.redis, 0
	for cut < len(r.log) && at.after(r.log[cut]) && (r.log[cut].ms < m.clock()-mKeep || !m.on("a switch leaves the last retention")) {
		cut++
	}
	if cut > 0 && m.on("a trim leaves the newest entry before the retention") && at.after(r.log[cut-1]) && (cut == len(r.log) || r.log[cut].ms >= m.clock()-mKeep) {
		cut--
	}
	r.log = r.log[cut:]
}

func (m *model) ensure() mRecord {
	r := &m.redis
	whole := r.header != 0 && len(r.log) > 0 && r.log[len(r.log)-1] == r.last
	if r.header == 0 || !whole && m.on("a record without its log is made new") {
		r.mRecord = mRecord{header: m.name()}
		if m.on("a new record begins a new log") {
			r.log = nil
		}
		m.append(-1)
	}
	return m.redis.mRecord
}

// add is the script of Add.
func (m *model) add(header int, ids ...int) (at []mID, ok bool) {
	r := &m.redis
	if r.header == 0 || r.header != header && m.on("Add compares the header") {
		return nil, false
	}
	for _, id := range ids {
		if r.header != header {
			at = append(at, m.append(-1)) // the hash of another salt means no id
			continue
		}
		at = append(at, m.append(id))
		m.rows[id].added, m.rows[id].lost = m.now, 0
	}
	switch {
	case r.shape == 0:
		if m.on("Add trims a log without a snapshot") {
			m.trim(r.last)
		}
		if len(r.log) > 1 && r.log[1].ms < m.clock()-mKeep {
			m.fail("the log holds entries older than the retention, and there is no snapshot")
		}
	case r.last.n-r.at.n > mLimit && m.on("Add gives up a log that nobody compacts"):
		r.shape = 0
	}
	if r.shape != 0 && r.last.n-r.at.n > mLimit+mIDs {
		m.fail("the log grows and grows")
	}
	return at, true
}

// read returns the record and a chunk of the log from at on.
func (m *model) read(at mID) (mRecord, []mID) {
	from := slices.IndexFunc(m.redis.log, func(e mID) bool { return !at.after(e) })
	if from < 0 {
		return m.redis.mRecord, nil
	}
	return m.redis.mRecord, m.redis.log[from:min(from+mChunk, len(m.redis.log))]
}

func (m *model) take(lease string) (token int, ok bool) {
	if l := m.redis.lease[lease]; l.until > m.clock() {
		return 0, false
	}
	token = m.name()
	m.redis.lease[lease] = mLeased{token, m.clock() + mLease}
	m.changed = true
	return token, true
}

func (m *model) mine(lease string, token int) bool {
	l := m.redis.lease[lease]
	return l.token == token && l.until > m.clock()
}

func (m *model) upload(lease string, token, name, piece int, t mTable) bool {
	if !m.mine(lease, token) && m.on("an upload looks at its lease") {
		return false
	}
	s := m.redis.snapshots[name]
	s.shape, s.pieces[piece], s.has[piece] = t.shape, t.bits&mPiece(piece), true
	m.redis.snapshots[name] = s
	m.changed = true
	return true
}

func mPiece(i int) uint64 { return []uint64{0x5555555555555555, 0xaaaaaaaaaaaaaaaa}[i] }

// use switches to a snapshot. A compaction gives the record it started from.
func (m *model) use(lease string, token, name int, t mTable, base mRecord) bool {
	r := &m.redis
	switch compaction := lease == "compact"; {
	case !m.mine(lease, token) && m.on("a switch looks at its lease"),
		r.header != base.header && m.on("a switch compares the header"),
		compaction && r.shape != base.shape && m.on("the switch of a compaction compares the shape"),
		compaction && r.pieces != base.pieces && m.on("the switch of a compaction compares the pieces"),
		!r.holds(t.at) && m.on("a switch looks for its entry in the log"):
		return false
	case !compaction:
		r.shape, r.rebuilt = t.shape, m.clock()
	}
	delete(r.snapshots, r.pieces)
	r.pieces, r.at, r.damaged = name, t.at, false
	m.changed = true
	if m.on("a switch trims no further than its position") {
		m.trim(t.at)
	} else {
		m.trim(r.last)
	}
	return true
}
