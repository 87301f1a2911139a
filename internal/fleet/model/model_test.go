package model

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/race"
	"github.com/levee-go/levee/internal/redistest"
)

// A model says who takes part, what may go wrong, and which safeguards are left out.
type model struct {
	readers []reads
	writers []writes
	faults
	uncached bool  // Redis has nothing at the beginning; else it has version 1 of each key
	kept     bool  // the local tiers have version 1
	noLocal  bool  // there are no local tiers
	lags     bool  // readers load from replicas, which are behind for a while; the cache has a ReplicaLag
	refuses  bool  // transactions may fail
	lies     bool  // they may commit, and report failure all the same
	inTurn   bool  // each writer begins when the one before has returned
	ordered  bool  // no reader gets an older version than somebody got before it began
	stays    bool  // while no writer has succeeded, a reader whose load fails has the old value
	calm     bool  // only the commands of writers have timeouts
	room     uint8 // for invalidations that are pending in a process; 0: enough
	off      off
}

// reads is a Get.
type reads struct {
	proc, key uint8
	page      bool // of a page, key 1, which its loader makes of the row, key 0
	skipLocal bool // it does not look into the local tier
}

// writes is a call of a writer. Its keys have a bit each.
type writes struct {
	call       call
	proc, keys uint8
}

type call uint8

const (
	writeCall call = iota
	invalidateCall
	expireCall
	setCall
	clearCall
	refreshCall
)

func (c call) String() string {
	return [...]string{"Write", "Invalidate", "Expire", "Set", "Clear", "Refresh"}[c]
}

// off are the safeguards that are left out. Each says what happens then.
type off struct {
	tokenCompared       bool // a commit stores though its lease has ended
	tokenPerLoad        bool // all leases of a process have one token
	invalidateEndsLease bool // an invalidation drops the value alone
	holdEndsLease       bool // a load that began before a hold may store
	holdRefuses         bool // and so may one that begins beside it
	leaseEnds           bool // the lease of a process that was killed stays
	abortCompares       bool // an abort ends whatever lease there is
	liftsOwn            bool // the end of a Write lifts the holds of others too
	liftLeavesNote      bool // a hold that comes after its lift closes the key
	abortKeepsNotes     bool // an abort deletes notes with the lease
	foundLeavesNote     bool // a hold that comes once more, after its lift has found it, closes the key
	expiresFirst        bool // a hold drops the value
	dropsLast           bool // a Write that succeeds leaves the old value as a fallback
	failureExpires      bool // the end of a Write that failed lifts its hold and does no more
	setHasTwoSteps      bool // Set is one command that stores
	refreshTakes        bool // Refresh loads and stores without the lease
	answerWaits         bool // those who had joined before a load have it before it is stored
	joinNumber          bool // whoever has joined a flight takes its result
	takeBack            bool // also one that was not stored
	asksAgain           bool // what was loaded beside a writer is an answer without a second question
	besideEnds          bool // the local tier keeps that though the hold has ended
	lagHolds            bool // an invalidation leaves no hold for the time that replicas may lag
	mark                bool // a fill of the local tier pays no heed to what was forgotten since the read
	redisFirst          bool // the writer's process forgets before Redis does
	heartbeat           bool // a link over which nothing comes counts as live
	gapForgets          bool // with a new connection for messages the local tier stays
	gapReadsEpoch       bool // and so does what is known of Clears
	epochAwaited        bool // after the message of a Clear values are judged by the epoch that is known
	epochFirst          bool // a value has the epoch of its commit, not of its load
	clearedLoads        bool // a load that a Clear has overtaken counts as stored
	blocks              bool // a process goes on to read a key whose invalidation is not confirmed
	asksSince           bool // an attempt confirms also what was asked for after it was sent
	becomesClear        bool // what there is no room for is dropped
	partsPastLocal      bool // the loader of a page takes a row from the local tier
	partsReadEpoch      bool // or one from Redis that was cleared, as long as its process does not know
	staleParts          bool // what it makes of an expired row counts as new
	dropsAll            bool // a Write of several keys opens one before all are dropped
	opensLast           bool // or before that is confirmed
}

// start is the state at the beginning.
func (m model) start() (s state) {
	s.rows, s.replica = [nKeys]uint8{1, 1}, [nKeys]uint8{1, 1}
	s.left = m.faults
	if !m.uncached {
		s.keys[0].ver, s.keys[1].ver = 1, 1
	}
	for p := range s.procs {
		s.procs[p].heard = [nKeys]bool{true, true}
		if m.kept {
			s.procs[p].local = [nKeys]entry{{ver: 1}, {ver: 1}}
		}
	}
	for i := len(m.readers); i < nReaders; i++ {
		s.readers[i].pc = rDone
	}
	for i := len(m.writers); i < nWriters; i++ {
		s.writers[i].pc = wDone
	}
	return s
}

// over reports whether all calls have returned.
func (s *state) over() bool {
	for i := range s.readers {
		if s.readers[i].pc != rDone {
			return false
		}
	}
	for i := range s.writers {
		if !s.writers[i].over() {
			return false
		}
	}
	return true
}

func (m model) key(k uint8) string {
	for _, r := range m.readers {
		if r.page {
			return [...]string{"the row", "the page"}[k]
		}
	}
	return sprintf("key %d", k+1)
}

const a, b = 0, 1 // processes

const all = 1<<nKeys - 1 // keys

// scenarios are gone through in all orders. A Get that begins now, in each process, is looked at in every
// state besides; readers are those that take longer.
var scenarios = map[string]model{
	"an Invalidate of what is stored": {
		readers: []reads{{proc: a}, {proc: a}, {proc: b}}, writers: []writes{{invalidateCall, a, 1}},
	},
	"an Invalidate of what a local tier has": {
		readers: []reads{{proc: a}, {proc: a}, {proc: b}}, writers: []writes{{invalidateCall, b, 1}}, kept: true, faults: faults{twice: 1},
	},
	"an Invalidate of what is being loaded": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{invalidateCall, a, 1}}, uncached: true, faults: faults{lapses: 1, fails: 1},
	},
	"two Invalidates": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{invalidateCall, a, 1}, {invalidateCall, b, 1}}, uncached: true,
	},
	"a load that is given up": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{invalidateCall, b, 1}}, uncached: true, faults: faults{timeouts: 1},
	},
	"leases that end": {
		readers: []reads{{proc: a}, {proc: b}}, writers: []writes{{invalidateCall, b, 1}}, uncached: true, faults: faults{lapses: 1, fails: 1, timeouts: 1},
	},
	"a reader that is killed": {
		readers: []reads{{proc: a}, {proc: a}, {proc: b}}, writers: []writes{{invalidateCall, b, 1}}, uncached: true, faults: faults{kills: 1},
	},
	"reads past the local tier": {
		readers: []reads{{proc: a}, {proc: a, skipLocal: true}, {proc: a, skipLocal: true}}, writers: []writes{{invalidateCall, b, 1}}, kept: true, uncached: true,
	},
	"an Expire": {
		readers: []reads{{proc: a}, {proc: a}, {proc: b}}, writers: []writes{{expireCall, b, 1}}, kept: true, faults: faults{fails: 1},
	},
	"a Write": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{writeCall, b, 1}}, kept: true, lies: true, refuses: true, stays: true, faults: faults{fails: 1},
	},
	"a Write of what is being loaded": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{writeCall, b, 1}}, uncached: true, refuses: true,
	},
	"a Write with a timeout": {
		readers: []reads{{proc: a}}, writers: []writes{{writeCall, a, 1}}, lies: true, faults: faults{timeouts: 1, fails: 1},
	},
	"a Write whose process is killed": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{writeCall, b, 1}}, faults: faults{kills: 1, lapses: 1},
	},
	"a Write whose hold ends": {
		readers: []reads{{proc: a}, {proc: b}}, writers: []writes{{writeCall, b, 1}}, noLocal: true, ordered: true, uncached: true, faults: faults{lapses: 1},
	},
	"two Writes": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{writeCall, b, 1}, {writeCall, b, 1}},
	},
	"a Write, and replicas that lag": {
		readers: []reads{{proc: a}, {proc: b}}, writers: []writes{{writeCall, b, 1}}, lags: true,
	},
	"a Set": {
		readers: []reads{{proc: a}}, writers: []writes{{setCall, a, 1}, {invalidateCall, b, 1}}, inTurn: true, faults: faults{timeouts: 1},
	},
	"a Refresh": {
		readers: []reads{{proc: a}, {proc: b}}, writers: []writes{{refreshCall, a, 1}}, uncached: true, faults: faults{timeouts: 1},
	},
	"a Refresh of what memory has": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{refreshCall, b, 1}}, kept: true, faults: faults{fails: 1},
	},
	"a Refresh and a Write": {
		readers: []reads{{proc: a}}, writers: []writes{{refreshCall, a, 1}, {writeCall, b, 1}}, uncached: true,
	},
	"a Refresh and an Invalidate": {
		readers: []reads{{proc: a}}, writers: []writes{{refreshCall, a, 1}, {invalidateCall, b, 1}}, uncached: true,
	},
	"a Clear that is not confirmed": {
		readers: []reads{{proc: a}, {proc: b}}, writers: []writes{{clearCall, a, 1}}, faults: faults{timeouts: 1},
	},
	"a Clear": {
		readers: []reads{{proc: a}, {proc: a}, {proc: b}}, writers: []writes{{clearCall, a, 1}}, uncached: true,
	},
	"a Clear, and a dead link": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{clearCall, b, 1}}, kept: true, faults: faults{breaks: 1},
	},
	"an Invalidate, and a dead link": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{invalidateCall, b, 1}}, kept: true, faults: faults{breaks: 1, twice: 1},
	},
	"an Invalidate that is not confirmed": {
		readers: []reads{{proc: a}, {proc: a}}, writers: []writes{{invalidateCall, a, 1}}, faults: faults{timeouts: 1, lapses: 1},
	},
	"two Invalidates that are not confirmed": {
		readers: []reads{{proc: b}}, writers: []writes{{invalidateCall, a, 1}, {invalidateCall, a, 1}}, faults: faults{timeouts: 2},
	},
	"more Invalidates than there is room for": {
		readers: []reads{{proc: a}, {proc: a, key: 1}}, writers: []writes{{invalidateCall, a, 1}, {invalidateCall, a, 2}}, room: 1, calm: true, faults: faults{timeouts: 2},
	},
	"an Invalidate of a row, and then of its page": {
		readers: []reads{{proc: a, key: 1, page: true}}, writers: []writes{{invalidateCall, b, 1}, {invalidateCall, b, 2}}, inTurn: true, kept: true,
	},
	"a Clear of rows, and then an Invalidate of a page": {
		readers: []reads{{proc: a, key: 1, page: true}}, writers: []writes{{clearCall, b, 1}, {invalidateCall, b, 2}}, inTurn: true,
	},
	"a Write of a row and its page": {
		readers: []reads{{proc: a, key: 1, page: true}, {proc: a, key: 1, page: true}}, writers: []writes{{writeCall, b, all}}, kept: true, lies: true, faults: faults{fails: 1},
	},
	"a Write of a row and its page, not confirmed": {
		readers: []reads{{proc: a, key: 1, page: true}}, writers: []writes{{writeCall, b, all}}, calm: true, faults: faults{timeouts: 2},
	},
}

// enough is more states than any scenario has.
const enough = 20_000_000

func TestTheProtocolKeepsItsPromises(t *testing.T) {
	if race.Detector {
		t.Skip("there is one goroutine")
	}
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			states, all, story := scenarios[name].explore(enough)
			t.Logf("%d states, %v", states, time.Since(began))
			if story != nil || !all {
				t.Errorf("all states: %v\n%s", all, strings.Join(story, "\n"))
			}
		})
	}
}

// Each safeguard, left out, breaks a promise. A model that finds nothing wrong without one would prove
// nothing above.
func TestTheProtocolNeedsItsSafeguards(t *testing.T) {
	if race.Detector {
		t.Skip("it computes")
	}
	for _, s := range safeguards {
		t.Run(s.name, func(t *testing.T) {
			m, ok := scenarios[s.in]
			if !ok {
				t.Fatalf("there is no scenario %q", s.in)
			}
			m.off = s.off
			_, _, story := m.explore(enough)
			if wrong := strings.Join(story, "\n"); !strings.Contains(wrong, s.breaks) {
				t.Errorf("got\n%s\nwant a story that ends with %q", wrong, s.breaks)
			}
			t.Logf("without it:\n%s", strings.Join(story, "\n"))
		})
	}
}

// Any two calls, beside two readers and a fault, as far as there is time for.
func TestAnyTwoCallsKeepThePromises(t *testing.T) {
	redistest.Long(t)
	calls := []call{writeCall, invalidateCall, expireCall, setCall, clearCall, refreshCall}
	for i, one := range calls {
		for _, other := range calls[i:] {
			for _, fault := range []faults{{}, {timeouts: 1}, {lapses: 1}, {fails: 1}, {kills: 1}, {breaks: 1}} {
				m := model{
					readers: []reads{{proc: a}, {proc: b}}, writers: []writes{{one, a, 1}, {other, a, 1}},
					uncached: true, kept: true, lies: true, refuses: true, faults: fault,
					inTurn: one == setCall || other == setCall, // of two who compete the later one stays
				}
				apart := m
				apart.readers, apart.writers[1].proc = []reads{{proc: a}, {proc: a}}, b
				apart.uncached, apart.kept = false, false
				for _, m := range []model{m, apart} {
					states, all, story := m.explore(most)
					t.Logf("%v and %v, %+v: %d states, all: %v", one, other, fault, states, all)
					if story != nil {
						t.Errorf("%+v:\n%s", m, strings.Join(story, "\n"))
					}
				}
			}
		}
	}
}

const most = 200_000
