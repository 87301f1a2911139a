package bloom_test

import (
	"fmt"
	"iter"
	"slices"
)

// A mTable is a copy of the table, or one in the making.
type mTable struct {
	bits  uint64
	at    mID // the table holds the log up to here
	shape int
	until int // a no counts before that time
}

type mProc struct {
	m             *model
	name          int
	threads       []*mThread
	dead          bool
	paused, cut   int // until then
	slept         int // time that passed while it was paused
	header        int // 0: must join
	view          mRecord
	copy, cand    *mTable
	tail          mID         // position of the reader
	own           []mID       // own entries that the reader has not met yet
	recent        map[int]int // id: when it was added
	owed          []int       // ids that looked held, and that Redis has not confirmed
	readAt, retry int
}

// What a process does.

type mThread struct {
	label   string
	stalled int // until then, say on its way to Redis
	ready   func() bool
	yield   func(struct{}) bool
	next    func() (struct{}, bool)
	stop    func()
}

type mKilled struct{}

func (t *mThread) wait(label string, ready func() bool) {
	t.label, t.ready = label, ready
	if !t.yield(struct{}{}) {
		panic(mKilled{})
	}
}

func (t *mThread) step(label string) { t.wait(label, func() bool { return true }) }

func (p *mProc) start(run func(*mThread)) {
	t := &mThread{}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if v := recover(); v != nil && v != any(mKilled{}) {
				panic(v)
			}
		}()
		for t.yield = yield; ; {
			run(t)
		}
	})
	t.next()
	p.threads = append(p.threads, t)
}

func (m *model) open() *mProc {
	p := &mProc{m: m, name: m.name(), recent: map[int]int{}, readAt: -mLag}
	p.start(p.add)
	p.start(p.follow)
	p.start(p.load)
	p.start(p.compact)
	p.start(p.rebuild)
	m.procs = append(m.procs, p)
	return p
}

func (p *mProc) kill() {
	p.dead = true
	for _, t := range p.threads {
		t.stop()
	}
}

func (p *mProc) reached() bool { return p.cut <= p.m.now }

func (p *mProc) time() int {
	if p.m.on("the clock goes on in a process that is stopped") {
		return p.m.now
	}
	return p.m.now - p.slept
}

func (p *mProc) answers() bool {
	return p.copy != nil && (p.time() < p.copy.until || !p.m.on("a no counts for MaxLag"))
}

func (p *mProc) add(t *mThread) {
	m := p.m
	t.wait("Add", func() bool {
		return p.header != 0 && m.ids < mIDs && (!m.calm && m.rnd.IntN(5) == 0 || m.now > m.lastAdd+mKeep+mLag)
	})
	id := m.ids
	m.ids++
	m.rows[id] = mRow{adder: p, start: m.now}
	m.lastAdd = m.now
	if m.on("an id is remembered before it is sent") {
		p.recent[id] = m.now
	}
	looksHeld := m.rnd.IntN(4) == 0 // so it is an Ensure
	for sent := false; !sent; {
		header, begin := p.header, m.now
		t.step(fmt.Sprint("Add: send ", id))
		if !p.reached() {
			p.owe(id, looksHeld)
			return
		}
		at, ok := m.add(header, id)
		if !ok {
			p.lost()
			return
		}
		if t.step(fmt.Sprint("Add: reply for ", id)); m.now > begin+mCall {
			p.owe(id, looksHeld)
			return
		}
		m.rows[id].until = m.now + mTx
		if sent = at[0].ahead(p.tail); sent {
			p.own = append(p.own, at[0])
		}
		sent = sent || !m.on("an Add that the reader has passed is sent again")
	}
	p.recent[id] = m.rows[id].start
	if m.on("Add sets the candidate first") {
		p.cand.set(id)
		t.step("Add: set in the copy")
		p.copy.set(id)
	} else {
		p.copy.set(id)
		t.step("Add: set in the candidate")
		p.cand.set(id)
	}
	m.rows[id].acked = m.now
}

// owe is the end of an Ensure that Redis has not confirmed.
func (p *mProc) owe(id int, looksHeld bool) {
	m := p.m
	if !looksHeld || p.copy == nil {
		return // an error, and the row does not commit
	}
	row := &m.rows[id]
	row.acked, row.until = m.now, m.now+mTx
	row.lost, row.flushed = m.now, false // even if the log got it, that may be too long ago for a Rebuild
	p.copy.set(id)
	p.cand.set(id)
	if m.on("what looks held is owed") {
		p.owed = append(p.owed, id)
	}
}

func (t *mTable) set(id int) {
	if t != nil {
		t.bits |= 1 << id
	}
}

// lost makes p abstain and join again.
func (p *mProc) lost() { p.header, p.copy, p.cand, p.own, p.view = 0, nil, nil, nil, mRecord{} }

func (p *mProc) join(t *mThread) {
	m := p.m
	t.wait("join: make or get the record", p.reached)
	v := m.ensure()
	t.step("join: add the recent ids again")
	if !p.reached() {
		return
	}
	var ids []int
	for id := range p.m.ids {
		if at, ok := p.recent[id]; ok && m.now < at+mRetention {
			ids = append(ids, id)
		}
	}
	if !m.on("a process that joins adds its recent ids again") {
		ids = nil
	}
	at, ok := m.add(v.header, ids...)
	if !ok {
		return
	}
	p.header, p.tail = v.header, v.last
	p.own = slices.DeleteFunc(p.own, func(o mID) bool { return !o.ahead(p.tail) })
	p.own = append(p.own, at...)
	p.readAt = -mLag
}

// payOff adds what is owed.
func (p *mProc) payOff(t *mThread) {
	m := p.m
	for len(p.owed) > 0 && p.header != 0 {
		header, owed := p.header, slices.Clone(p.owed)
		t.step("pay off: send")
		if !p.reached() {
			return
		}
		at, ok := m.add(header, owed...)
		t.step("pay off: reply")
		if !ok || header != p.header {
			p.lost()
			return
		}
		if !at[0].ahead(p.tail) {
			continue
		}
		p.own = append(p.own, at...)
		p.owed = p.owed[len(owed):]
	}
}

// next checks that a chunk goes on from at, and returns the new position.
func (p *mProc) next(at mID, v mRecord, chunk []mID) (to mID, bits uint64, gap bool) {
	m := p.m
	if len(chunk) == 0 || chunk[0] != at {
		if m.on("a reader must find its own entry") || len(chunk) == 0 {
			return at, 0, m.on("a reader must find its own entry")
		}
	}
	for i, e := range chunk {
		if e.n != chunk[0].n+i && m.on("numbers must be contiguous") {
			return at, 0, true
		}
		if e.id >= 0 {
			bits |= 1 << e.id
		}
	}
	to = chunk[len(chunk)-1]
	return to, bits, len(chunk) < mChunk && to != v.last && m.on("the log must end with the last entry")
}

// follow reads the log, with or without a copy.
func (p *mProc) follow(t *mThread) {
	m := p.m
	for p.header == 0 {
		p.join(t)
	}
	t.wait("read: begin", func() bool {
		return p.header == 0 || m.now >= p.readAt+mLag/4
	})
	p.payOff(t)
	p.readAt = m.now
	for begin, now := p.time(), m.now; p.header != 0; {
		from := p.tail
		t.step("read: in Redis")
		if !p.reached() {
			return
		}
		v, chunk := m.read(from)
		owned := slices.Clone(p.own)
		t.step("read: reply")
		if p.header == 0 || p.tail != from {
			return // of another life
		}
		if p.copy == nil && !m.on("a process follows the log without a copy") {
			from, owned, p.own = v.last, nil, nil
			chunk = []mID{from}
		}
		to, bits, gap := p.next(from, v, chunk)
		if v.header != p.header && m.on("a reader compares the header") || gap {
			p.lost()
			return
		}
		for _, o := range p.own {
			met := slices.ContainsFunc(chunk, func(e mID) bool { return e == o })
			if !met && !o.ahead(to) && m.on("a reader must meet all own entries") {
				p.lost()
				return
			}
		}
		if to == v.last && m.on("the end is not before an own entry") && slices.ContainsFunc(owned, func(o mID) bool { return o.ahead(to) }) {
			p.lost()
			return
		}
		p.own = slices.DeleteFunc(p.own, func(o mID) bool { return !o.ahead(to) })
		p.tail, p.view = to, v
		if p.copy != nil {
			p.copy.bits |= bits
		}
		if p.cand != nil && m.on("the reader reads into the candidate too") {
			p.cand.bits |= bits // so that tail need not go back when it is installed
		}
		if v.shape == 0 && m.on("a reader sees that there is no snapshot") {
			p.copy = nil
		}
		if to == v.last || len(chunk) < mChunk {
			if p.copy != nil && m.on("a no counts from the sending of the read") {
				p.copy.until = begin + mLag
			} else if p.copy != nil {
				p.copy.until = p.time() + mLag
			}
			p.noticed(now)
			return
		}
	}
}

func (p *mProc) load(t *mThread) {
	m := p.m
	t.wait("load: read the record", func() bool {
		return p.header != 0 && p.view.shape != 0 && (p.copy == nil || p.copy.shape != p.view.shape) && m.now >= p.retry
	})
	p.retry = m.now + 50
	v := m.redis.mRecord
	if !p.reached() || v.header != p.header || v.shape == 0 {
		return
	}
	c := &mTable{shape: v.shape, at: v.at}
	for i := range mPieces {
		t.step("load: read a piece")
		s := m.redis.snapshots[v.pieces]
		if !p.reached() || !s.has[i] {
			p.unloadable(v)
			return
		}
		if s.shape == c.shape { // bits of another shape mean other ids
			c.bits |= s.pieces[i]
		}
	}
	if v.header != p.header {
		return
	}
	if !p.catchUp(t, "load", c) {
		if !m.redis.holds(v.at) {
			p.unloadable(v)
		}
		return
	}
	t.step("load: install")
	p.install(c)
}

// unloadable notes that the snapshot of a record is damaged, if it is in use.
func (p *mProc) unloadable(v mRecord) {
	if r := &p.m.redis; p.reached() && r.header == v.header && r.pieces == v.pieces {
		r.damaged = true
	}
}

// catchUp makes c the candidate and reads the log into it up to the end.
func (p *mProc) catchUp(t *mThread, who string, c *mTable) bool {
	m := p.m
	if m.on("a candidate is one before the log is read") {
		p.nominate(c)
	}
	if !p.readInto(t, who, c) {
		if p.cand == c {
			p.cand = nil
		}
		return false
	}
	if !m.on("a candidate is one before the log is read") {
		t.step(who + ": make it the candidate")
		p.nominate(c)
	}
	return true
}

func (p *mProc) nominate(c *mTable) {
	p.cand = c
	for id, at := range p.recent {
		if p.m.now < at+mRetention && p.m.on("a candidate gets the recent ids") {
			c.set(id)
		}
	}
	for _, id := range p.owed {
		if p.m.on("a candidate gets what is owed") {
			c.set(id)
		}
	}
}

func (p *mProc) readInto(t *mThread, who string, c *mTable) bool {
	m, header, begin := p.m, p.header, p.time()
	for header != 0 {
		t.step(who + ": read the log")
		v, chunk := m.read(c.at)
		to, bits, gap := p.next(c.at, v, chunk)
		if !p.reached() || v.header != header || header != p.header || gap {
			return false
		}
		c.bits, c.at = c.bits|bits, to
		if to == v.last || len(chunk) < mChunk {
			c.until = begin + mLag
			return true
		}
	}
	return false
}

func (p *mProc) install(c *mTable) {
	if p.cand != c || p.header == 0 {
		return // lost meanwhile, or there is a newer candidate
	}
	p.copy, p.cand = c, nil
}

func (p *mProc) compact(t *mThread) {
	m := p.m
	t.wait("compact: take the lease", func() bool {
		return p.answers() && p.copy.shape == p.view.shape && (p.view.damaged || p.view.last.n-p.view.at.n > mThreshold)
	})
	token, ok := m.take("compact")
	if !p.reached() || !ok {
		return
	}
	c, base, name := p.copy, p.view, m.name()
	up := mTable{shape: c.shape, at: p.tail}
	for i := range mPieces {
		t.step("compact: upload a piece")
		if up.bits = c.bits; !p.reached() || !m.upload("compact", token, name, i, up) {
			return
		}
	}
	if !m.on("a compaction takes its position before the bits") && p.copy == c {
		up.at = p.tail
	}
	t.step("compact: switch")
	if p.reached() {
		m.use("compact", token, name, up, base)
	}
}

func (p *mProc) rebuild(t *mThread) {
	m := p.m
	t.wait("rebuild: take the lease", func() bool {
		return p.header != 0 && p.view.header != 0 && (p.view.shape == 0 || p.view.damaged && (p.copy == nil || p.copy.shape != p.view.shape) || !m.calm && m.clock() > p.view.rebuilt+2*mTx)
	})
	token, ok := m.take("rebuild")
	base := m.redis.mRecord
	if !p.reached() || !ok || base.header != p.header {
		return
	}
	t.step("rebuild: begin")
	next := &mTable{shape: m.name()}
	var wait int
	if next.at, wait = m.begin(); !p.reached() || base.header != m.redis.header {
		return
	}
	for ready := false; !ready; {
		ready = m.clock() >= wait
		if !p.renew(t, token, next) {
			return
		}
		t.wait("rebuild: wait", func() bool { return m.clock() >= wait || m.calm || m.rnd.IntN(4) == 0 })
	}
	before := m.committed()
	for i := range 3 {
		t.step("rebuild: scan")
		for id := i; id < m.ids; id += 3 {
			if row := &m.rows[id]; row.committed && !row.gone {
				next.set(id)
			}
		}
		if !p.renew(t, token, next) {
			return
		}
	}
	if m.on("a Rebuild's table is a candidate before its last read") {
		if !p.catchUp(t, "rebuild", next) {
			return
		}
	} else {
		if !p.readInto(t, "rebuild", next) {
			return
		}
	}
	up, name, header := *next, m.name(), p.header
	for i := range mPieces {
		t.step("rebuild: upload a piece")
		if !p.reached() || !m.upload("rebuild", token, name, i, up) {
			return
		}
	}
	t.step("rebuild: switch")
	if !p.reached() || !m.use("rebuild", token, name, up, base) {
		return
	}
	for id := range m.ids {
		if row := &m.rows[id]; (up.bits|before)>>id&1 == 1 {
			row.lost, row.repaired = 0, up.shape
		}
	}
	t.step("rebuild: install")
	if !m.on("a Rebuild's table is a candidate before its last read") && p.header == header {
		p.cand = next
	}
	p.install(next)
}

// begin returns where the log of a Rebuild begins, and when its scan may.
func (m *model) begin() (at mID, wait int) {
	r := &m.redis
	if len(r.log) == 0 {
		return mID{}, 0
	}
	first, back := r.log[0], mBack
	if !m.on("a Rebuild's log begins another call before that") {
		back = mTx
	}
	if !m.on("a Rebuild's log begins MaxTransaction before its scan") {
		return r.last, 0
	}
	for _, e := range slices.Backward(r.log) {
		if e.ms < m.clock()-back {
			return e, 0
		}
	}
	switch {
	case first.id < 0 && !m.on("a Rebuild of a new record waits"):
		return first, 0
	case first.id < 0:
		return first, first.ms + min(back, mSettle)
	case !m.on("a Rebuild of a trimmed log waits"):
		return first, 0
	}
	return first, first.ms + back
}

// renew prolongs the lease of a Rebuild and reads the log into its table.
func (p *mProc) renew(t *mThread, token int, next *mTable) bool {
	if !p.reached() || !p.m.mine("rebuild", token) && p.m.on("an upload looks at its lease") {
		return false
	}
	p.m.redis.lease["rebuild"] = mLeased{token, p.m.clock() + mLease}
	return p.readInto(t, "rebuild", next)
}
