package bloom_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// This is a model of the protocol of the shared filter. It imports nothing of it. This file
// has the checks and the schedules, modelredis_test.go what Redis does, and
// modelprocess_test.go what a process does.
//
// Redis, the processes and the database are plain values, copies are exact sets of ids,
// and a seeded random schedule decides which thread of which process takes the next step
// and when Redis or a process fails. A thread is straight code: all that stands between
// two calls of step happens at once, like a script or a critical section.
//
// After every step the model checks what the package promises, see deny, noticed and settle.
// The table mSafeguards switches one safeguard off at a time.

// Times are in milliseconds of the model's clock; a step takes one.
const (
	mLag       = 2000 // MaxLag
	mTx        = 4000 // MaxTransaction, from the reply to an Add
	mCall      = 1000 // how long that may take
	mBack      = mTx + mCall
	mRetention = mBack              // of the ids that a process remembers
	mKeep      = mRetention + mCall // of the log
	mSettle    = 2*mLag + 1000
	mLease     = 5000
	mBehind    = 2500 // how much a failover can lose
	mThreshold = 4
	mLimit     = 4 * mThreshold
	mChunk     = 4 // entries that one read returns
	mPieces    = 2
	mIDs       = 64 // ids are bits of a uint64
	mOld       = 4  // rows that are older than the filter
)

type model struct {
	rnd     *rand.Rand
	off     []string // the safeguards that are switched off
	now     int
	redis   mRedis
	past    []mRedis // after each of its changes
	changed bool
	rows    [mIDs]mRow
	ids     int
	procs   []*mProc
	names   int // of headers, shapes, snapshots, tokens
	calm    bool
	lastAdd int
	traced  bool
	trace   []string
	failed  string
}

func (m *model) on(safeguard string) bool { return !slices.Contains(m.off, safeguard) }

func (m *model) name() int { m.names++; return m.names }

func (m *model) fail(format string, args ...any) {
	if m.failed == "" {
		m.failed = fmt.Sprintf(format, args...)
	}
}

// What the model checks.

// deny fails if a process would say no to an id that it owes a yes: of a row that is
// committed, or still may be. Excused are
//   - MaxLag after Add, in other processes than the adder,
//   - an entry that Redis has lost and nobody has added again. See noticed: that lasts until
//     the adder has read the log, or, if it is gone or the Add was long ago, until a Rebuild.
//     If Redis has lost everything, it begins mSettle later: until then everybody abstains,
//   - the same after the Rebuild, in a process that has not loaded its result.
func (m *model) deny() {
	for _, p := range m.procs {
		if p.dead || !p.answers() {
			continue
		}
		for id := range m.ids {
			row := &m.rows[id]
			if p.copy.bits>>id&1 == 1 || row.acked == 0 || row.gone || !row.committed && m.now > row.until {
				continue
			}
			old := m.now >= row.start+mRetention
			switch lost := row.lost != 0 && (!row.flushed || m.now > row.lost+mSettle) || row.repaired > p.copy.shape; {
			case row.adder == p && !(lost && old):
				m.fail("process %d denies its own %d", p.name, id)
			case row.adder != p && !lost && m.now > max(row.acked, row.added)+mLag:
				m.fail("process %d denies %d", p.name, id)
			}
		}
	}
}

// noticed fails if p has read the log to its end and does not know that Redis has lost,
// before it began, what p has added not long ago.
func (p *mProc) noticed(begin int) {
	for id := range p.m.ids {
		if row := p.m.rows[id]; row.adder == p && row.acked != 0 && row.acked < begin && row.lost != 0 && row.lost < begin && p.m.now < row.start+mRetention && !slices.Contains(p.owed, id) {
			p.m.fail("process %d has not noticed that %d is lost", p.name, id)
		}
	}
}

// settled tells whether all processes answer, and the log is as short as it should be.
func (m *model) settled() bool {
	r, young := &m.redis, 0
	for _, e := range r.log {
		if e.ms > m.clock()-mKeep {
			young++
		}
	}
	for _, p := range m.procs {
		if !p.dead && (!p.answers() || p.copy.shape != r.shape || len(p.owed) > 0) {
			return false
		}
	}
	return r.shape != 0 && len(r.log) <= mThreshold+young+2
}

func (m *model) committed() (bits uint64) {
	for id := range m.ids {
		if m.rows[id].committed && !m.rows[id].gone {
			bits |= 1 << id
		}
	}
	return bits
}

// The schedule.

func (m *model) note(format string, args ...any) {
	if m.traced {
		m.trace = append(m.trace, fmt.Sprintf("%6d ", m.now)+fmt.Sprintf(format, args...))
	}
}

func (m *model) run(p *mProc, t *mThread) {
	m.note("process %d: %s", p.name, t.label)
	m.now++
	if t.next(); m.changed {
		m.push()
	}
	m.deny()
}

func (m *model) sleep(ms int) {
	for _, p := range m.procs {
		p.slept += max(0, min(p.paused-m.now, ms))
	}
	m.now += ms
}

func mOne[T any](m *model, of ...T) T { return of[m.rnd.IntN(len(of))] }

// choose takes one step of the schedule.
func (m *model) choose(faults, sleeps int) {
	switch n := m.rnd.IntN(1000); {
	case n < faults:
		m.fault()
	case n < faults+sleeps:
		m.sleep(mOne(m, 5, 20, 100, 400))
	case n < faults+sleeps+10:
		t := mOne(m, mOne(m, m.procs...).threads...)
		t.stalled = max(t.stalled, m.now+mOne(m, 200, 1000, 4000, 9000))
	case n < faults+sleeps+70:
		row := &m.rows[m.rnd.IntN(m.ids)]
		switch {
		case row.acked != 0 && !row.committed && m.now <= row.until:
			row.committed = true
			m.note("the row of an id commits")
		case row.committed && m.rnd.IntN(8) == 0:
			row.gone = true
		}
	default:
		p := mOne(m, m.procs...)
		t := mOne(m, p.threads...)
		if !p.dead && max(p.paused, t.stalled) <= m.now && t.ready() {
			m.run(p, t)
		}
	}
	m.deny()
}

func (m *model) fault() {
	p := mOne(m, m.procs...)
	switch m.rnd.IntN(10) {
	case 0, 1, 2:
		m.failover()
	case 3:
		m.note("Redis loses everything")
		m.replace(mRedis{snapshots: map[int]mSnapshot{}, lease: map[string]mLeased{}})
	case 4, 5:
		p.paused = max(p.paused, m.now+mOne(m, 100, 500, 2000, 10000))
		m.note("process %d is stopped until %d", p.name, p.paused)
	case 6:
		p.cut = max(p.cut, m.now+mOne(m, 300, 1500, 5000))
		m.note("process %d does not reach Redis until %d", p.name, p.cut)
	case 7:
		m.note("process %d is killed", p.name)
		p.kill()
		m.procs = slices.DeleteFunc(m.procs, func(q *mProc) bool { return q == p })
		m.open()
	case 8, 9:
		m.evict()
	}
}

func (m *model) evict() {
	r := m.redis.clone()
	switch s, ok := r.snapshots[r.pieces]; m.rnd.IntN(3) {
	case 0:
		m.note("Redis evicts the log")
		r.log = nil
	case 1:
		m.note("Redis evicts the record")
		r.mRecord = mRecord{}
	default:
		if s.has[0] = false; ok {
			m.note("Redis evicts a piece")
			r.snapshots[r.pieces] = s
		}
	}
	m.replace(r)
}

// failover goes back to an older state of Redis.
func (m *model) failover() {
	to := max(0, len(m.past)-1-m.rnd.IntN(8))
	for m.past[to].when < m.now-mBehind && to < len(m.past)-1 {
		to++
	}
	m.note("Redis fails over, back by %d changes", len(m.past)-1-to)
	m.past = m.past[:to+1]
	m.replace(m.past[to].clone())
	if !m.on("the clocks of Redis' servers agree") {
		m.redis.skew = mOne(m, -3000, -500, 500, 3000)
	}
}

func (m *model) push() {
	r := m.redis.clone()
	r.when = m.now
	m.past, m.changed = append(m.past, r), false
}

func (m *model) replace(r mRedis) {
	m.redis = r
	after := r.set()
	for id := range m.ids {
		switch row := &m.rows[id]; {
		case after>>id&1 == 1 && row.lost != 0: // back from before a flush
			row.lost, row.added = 0, m.now
		case after>>id&1 == 0 && row.lost == 0 && row.added != 0:
			row.lost, row.flushed = m.now, r.header == 0
		case r.header != 0: // back from before a flush, but not far enough
			row.flushed = false
		}
	}
	m.push()
}

// settle ends all faults, and fails if that does not bring everybody back.
func (m *model) settle() {
	m.calm = true
	m.note("all faults end")
	for _, p := range m.procs {
		p.paused, p.cut = 0, 0
		for _, t := range p.threads {
			t.stalled = 0
		}
	}
	for tick := range 1200 {
		m.sleep(100)
		for _, p := range m.procs {
			for i, t := range p.threads {
				for range []int{1, 4, 1, 1, 1}[i] {
					if (i < 4 || tick%8 == 0) && t.ready() {
						m.run(p, t)
					}
				}
			}
		}
		if m.failed != "" || tick > 100 && m.settled() {
			return
		}
	}
	m.fail("no faults for two minutes, and not everybody answers, or the log is long")
}

// mRun runs one schedule.
func mRun(seed uint64, off string, traced bool) *model {
	m := &model{rnd: rand.New(rand.NewPCG(seed, 1)), off: strings.Split(off, " + "), now: 100_000, traced: traced}
	m.redis = mRedis{snapshots: map[int]mSnapshot{}, lease: map[string]mLeased{}}
	for range mOld {
		m.rows[m.ids] = mRow{added: 1, acked: 1, committed: true}
		m.ids++
	}
	if m.rnd.IntN(2) == 0 { // a filter that has been rebuilt
		name := m.name()
		m.ensure()
		m.redis.shape, m.redis.pieces, m.redis.at, m.redis.rebuilt = name, name, m.redis.last, m.now
		m.redis.snapshots[name] = mSnapshot{name, [mPieces]uint64{5, 10}, [mPieces]bool{true, true}}
	}
	m.push()
	for range 2 + m.rnd.IntN(2) {
		m.open()
	}
	faults, sleeps := mOne(m, 0, 5, 10, 20), mOne(m, 20, 60, 120)
	for range 200 + m.rnd.IntN(800) {
		if m.failed == "" {
			m.choose(faults, sleeps)
		}
	}
	if m.failed == "" {
		m.settle()
	}
	for _, p := range m.procs {
		p.kill()
	}
	return m
}

// mSearch runs schedules until one fails, and returns that one with its steps.
func mSearch(off string, from, schedules uint64) (found *model, seed uint64) {
	for seed := from; seed < from+schedules; seed++ {
		if m := mRun(seed, off, false); m.failed != "" {
			return mRun(seed, off, true), seed
		}
	}
	return nil, 0
}

func TestModelKeepsItsPromises(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	if m, seed := mSearch("", 0, redistest.Pick[uint64](600, 100_000)); m != nil {
		t.Fatalf("schedule %d: %s\n%s", seed, m.failed, strings.Join(m.trace, "\n"))
	}
}

func TestModelNeedsItsSafeguards(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, s := range mSafeguards {
		schedules := redistest.Pick[uint64](100, 20_000)
		if s.unneeded != "" {
			schedules = redistest.Pick[uint64](20, 20_000)
		}
		m, seed := mSearch(s.off, s.fails, schedules)
		switch {
		case m == nil && s.unneeded == "":
			t.Errorf("%s: not missed; LEVEE_LONG=1 may find another schedule", s.off)
		case m == nil:
			t.Logf("%s: not needed, %s", s.off, s.unneeded)
		case s.unneeded != "":
			t.Errorf("%s is needed: %s (schedule %d)", s.off, m.failed, seed)
		default:
			t.Logf("%s: %s (schedule %d)", s.off, m.failed, seed)
		}
	}
}

// mSafeguards are what the protocol does to keep its promises, and for each one a schedule
// that fails without it, or why none does: then it is there to save work, or to be plain,
// or against faults that the model does not have.
var mSafeguards = []struct {
	off      string
	fails    uint64 // number of the schedule; search again with LEVEE_LONG=1 when the model changes
	unneeded string
}{
	{off: "the switch of a compaction compares the shape + the switch of a compaction compares the pieces", fails: 44},
	{off: "a switch looks for its entry in the log", fails: 90565},
	{off: "an id is remembered before it is sent + an Add that the reader has passed is sent again", fails: 29},
	{off: "an id is remembered before it is sent", fails: 29},
	{off: "an Add that the reader has passed is sent again", fails: 9854},
	{off: "a Rebuild of a trimmed log waits + a switch leaves the last retention", fails: 370},
	{off: "a switch leaves the last retention", fails: 50},
	{off: "a trim leaves the newest entry before the retention", fails: 0},
	{off: "Add compares the header", fails: 1271},
	{off: "Add trims a log without a snapshot", fails: 0},
	{off: "Add sets the candidate first", fails: 8},
	{off: "a process that joins adds its recent ids again", fails: 0},
	{off: "a process follows the log without a copy", fails: 4},
	{off: "a reader must find its own entry", fails: 5},
	{off: "a reader must meet all own entries", fails: 16},
	{off: "the end is not before an own entry", fails: 4},
	{off: "the reader reads into the candidate too", fails: 116},
	{off: "a no counts for MaxLag", fails: 9},
	{off: "a no counts from the sending of the read", fails: 35},
	{off: "the clock goes on in a process that is stopped", fails: 322},
	{off: "a candidate is one before the log is read", fails: 455},
	{off: "a candidate gets the recent ids", fails: 54},
	{off: "a compaction takes its position before the bits", fails: 1997},
	{off: "a Rebuild's table is a candidate before its last read", fails: 116},
	{off: "a Rebuild's log begins MaxTransaction before its scan", fails: 21},
	{off: "what looks held is owed", fails: 49},
	{off: "a candidate gets what is owed", fails: 63641},
	{off: "a Rebuild of a new record waits", fails: 293},
	{off: "the clocks of Redis' servers agree", fails: 11115},
	{off: "an upload looks at its lease + a switch looks at its lease", unneeded: "leases save work"},
	{off: "an upload looks at its lease + a switch looks at its lease + the switch of a compaction compares the pieces", unneeded: "an older snapshot is right as long as its entry is in the log"},
	{off: "numbers must be contiguous + the log must end with the last entry", unneeded: "nothing takes entries out of the middle or, without the record, off the end"},
	{off: "a switch compares the header", unneeded: "its entry is not in the log of another record"},
	{off: "a reader compares the header", unneeded: "nor is a reader's"},
	{off: "the switch of a compaction compares the shape", unneeded: "see the pair"},
	{off: "the switch of a compaction compares the pieces", unneeded: "see the pair"},
	{off: "a switch trims no further than its position", unneeded: "no schedule found; a load would see the gap"},
	{off: "Add gives up a log that nobody compacts", unneeded: "no process of the model stays without a copy and a Rebuild"},
	{off: "a Rebuild's log begins another call before that", unneeded: "no schedule found: the reply and the commit must both be late, and a scan between them"},
	{off: "a reader sees that there is no snapshot", unneeded: "a copy that follows the log is right without one"},
	{off: "a Rebuild of a trimmed log waits", unneeded: "see the pair"},
	{off: "a record without its log is made new", unneeded: "no schedule found; it seems that Add then gives up the log"},
	{off: "a new record begins a new log", unneeded: "no schedule found"},
}
