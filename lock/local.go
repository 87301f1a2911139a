package lock

import (
	"container/list"
	"math"
	"strings"
	"sync"
	"time"
)

// Locks within this process
//
// A localStore keeps the locks of a Locker without Redis. Its operations do what the scripts of
// those names do, and answer the same: a test takes the model, the scripts and a localStore the
// same random ways. No command is lost, late or repeated here, no message is missed, no waiter
// dies alone, and the clock does not step back, so what the scripts have for that alone is left
// out: notes for late commands, the waiting processes that are alive. No operation blocks or
// fails, or looks at its context.
//
// There is no goroutine and no timer. The next operation on a lock finds that a lease has ended;
// a process that waits for the lock bids when that is due, as over Redis.

// A localStore keeps the locks of one Locker in a memory.
type localStore struct {
	*memory
	process string
}

// A memory is to the Lockers that share it what a Redis is to others.
type memory struct {
	mu      sync.Mutex         // guards the fields below
	spaces  map[string]*space  // by Options.Prefix; none is removed
	lockers map[string]*locker // those that are open, by process
}

// thisProcess is the memory of all Lockers without Redis.
var thisProcess = newMemory()

func newMemory() *memory {
	return &memory{spaces: map[string]*space{}, lockers: map[string]*locker{}}
}

// A space holds the locks with one Prefix. Spaces have nothing in common, not even the time, so
// that tests with a Prefix each may run at once in bubbles of testing/synctest.
type space struct {
	mu        sync.Mutex // guards the fields below, and the records; is taken before locker.mu
	records   map[string]*record
	round     list.List // of *record, in the order in which forget looks at them
	forgotten int64     // new records have larger fences than those that were forgotten
}

// remembered is how long after its last lease a lock is remembered. Fences do not need that. A
// second Release of a Token does: it has to be told that nobody has had the lock since.
const remembered = time.Minute

// forget drops records that are not needed any more. It looks at two for each bid, so it keeps
// about as many for nothing as are needed, at most.
func (s *space) forget(now int64) {
	for range min(2, s.round.Len()) {
		r := s.round.Front().Value.(*record)
		if r.until > now {
			s.round.MoveToBack(s.round.Front())
			continue
		}
		s.round.Remove(s.round.Front())
		delete(s.records, r.key)
		s.forgotten = max(s.forgotten, r.fence+fences)
	}
}

// A localLock is a lock during one operation, which takes place at one moment.
type localLock struct {
	*space
	*record
	memory      *memory
	sent        time.Time // before the operation
	now, micros int64     // the time, in ms and in µs
	mode        mode
	permits     int
	mine        string // the caller's entry, "" if it has none
}

// began is when the clock of the memories was read first. It goes on by the monotonic clock.
var began = time.Now()

// begin begins an operation on a lock, in the mode of t. end ends it.
func (s *localStore) begin(t *target) *localLock {
	l := &localLock{memory: s.memory, sent: time.Now(), mode: t.mode, permits: t.permits}
	prefix, _, _ := strings.Cut(t.record(), tokenRecord)
	s.mu.Lock()
	l.space = s.spaces[prefix]
	if l.space == nil {
		l.space = &space{records: map[string]*record{}}
		s.spaces[prefix] = l.space
	}
	s.mu.Unlock()
	l.space.mu.Lock()
	l.micros = began.UnixMicro() + time.Since(began).Microseconds()
	l.now = l.micros / 1000
	l.find(t)
	return l
}

func (l *localLock) end() { l.space.mu.Unlock() }

// unknown is the first fence of a record that does not exist: a grant that anybody has is older.
const unknown = math.MaxInt64

// find goes on with the lock of t, which is in the same space.
func (l *localLock) find(t *target) {
	if l.record = l.records[t.record()]; l.record == nil {
		l.record = &record{key: t.record(), born: unknown}
	}
}

// keep makes a record of the lock, if it has none.
func (l *localLock) keep() {
	if l.born == unknown {
		l.fence = max(l.micros-fences, l.forgotten)
		l.born = l.fence
		l.records[l.key] = l.record
		l.round.PushBack(l.record)
	}
}

// tell sends a message about the lock to a process, for locker.hear.
func (l *localLock) tell(process, what string) {
	l.memory.mu.Lock()
	to := l.memory.lockers[process]
	l.memory.mu.Unlock()
	if to != nil {
		to.hear(l.key + " " + what)
	}
}

func (s *localStore) open(l *locker) {
	s.mu.Lock()
	s.lockers[s.process] = l
	s.mu.Unlock()
	l.gap() // from here on it gets its messages
}

func (s *localStore) silence() {
	s.mu.Lock()
	delete(s.lockers, s.process)
	s.mu.Unlock()
}

func (*localStore) live() bool      { return true }
func (*localStore) clustered() bool { return false }
func (*localStore) close()          {}
