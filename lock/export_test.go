package lock

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/keys"
)

// What the tests of package lock_test need beyond the exported names.

const (
	MinLease   = minLease
	MaxPermits = maxPermits
	MaxStripes = maxStripes
)

// A Memory is to the Lockers of a test what this process is to those of New without a Redis.
type Memory = memory

// NewMemory makes a Memory.
func NewMemory() *Memory { return newMemory() }

// NewIn is New without a Redis, in m.
func NewIn(m *Memory, o Options) (*Locker, error) {
	o, err := o.withDefaults(true)
	if err != nil {
		return nil, err
	}
	process := rand.Text()
	return &Locker{shared: openLocker(process, nil, &localStore{m, process}, o), o: &o}, nil
}

// Dump is the state of all locks, but for how long it is kept.
func (m *memory) Dump() (all string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.spaces {
		s.mu.Lock()
		for _, key := range slices.Sorted(maps.Keys(s.records)) {
			r := *s.records[key]
			r.until = 0
			all += fmt.Sprintf("%+v\n", r)
		}
		s.mu.Unlock()
	}
	return all
}

// Records is how many locks m remembers.
func (m *memory) Records() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.spaces {
		s.mu.Lock()
		n += len(s.records)
		s.mu.Unlock()
	}
	return n
}

// The scripts, for faults that strike one of them.
var (
	AcquireScript    = acquireScript
	AcquireAllScript = acquireAllScript
	ReleaseScript    = releaseScript
	RenewScript      = renewScript
	LeaveScript      = leaveScript
	ForceScript      = forceScript
)

// Jumped is how a jump of the wall clock is found.
var Jumped = jumped

// RememberFencesFor makes the scripts remember fences for so many milliseconds, until
// the test ends.
func RememberFencesFor(t *testing.T, ms string) {
	cutOut(t, &beginLua, "local RETAIN = 600000", "local RETAIN = "+ms)
}

// Hears reports whether messages of grants arrive.
func (l *Locker) Hears() bool { return l.shared.hears() }

// AskOnce has each script sent once. Elsewhere one that is not answered within promptTime is sent
// again, and on a busy machine a test that counts scripts counts both. Call it before the first.
func (l *Locker) AskOnce() {
	if s, ok := l.shared.store.(*redisStore); ok {
		s.prompt = s.patient
	}
}

// RenewAll makes every lease due, as after a gap in the messages.
func (l *Locker) RenewAll() { l.shared.watchdog.renewAll() }

// Look has the watchdog look at its leases as after a jump of the wall clock to now.
func (l *Locker) Look(now time.Time) { l.shared.watchdog.look(now, true) }

// Process begins the names of owners.
func (l *Locker) Process() string { return l.shared.process }

// Waiting is the length of the queue of a lock of any kind.
func (l *Locker) Waiting(ctx context.Context, kind keys.LockKind, name string) (int, error) {
	t := newTarget("", kind, name, exclusive)
	info, err := l.shared.store.inspect(ctx, &t)
	return info.Waiting, err
}

// Kept is how much a Locker remembers: it should be nothing when nothing is held.
func (l *Locker) Kept() (n int) {
	s := l.shared
	s.mu.Lock()
	n = len(s.rooms) + len(s.entries) + len(s.attaching)
	s.mu.Unlock()
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	return n + len(s.watchdog.grants)
}

// InQueue reports whether somebody of this process stands in a queue in Redis.
func (l *Locker) InQueue() bool {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	for _, room := range l.shared.rooms {
		if room.ticket > 0 {
			return true
		}
	}
	return false
}

// InRooms is how many callers of this process wait.
func (l *Locker) InRooms() (n int) {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	for _, room := range l.shared.rooms {
		n += room.line.Len()
	}
	return n
}

// Taken is when the command was sent that took the lock.
func (s *Lease) Taken() time.Time { return s.acq.grants[0].taken }

// Deadline is until when this process believes in the lease.
func (s *Lease) Deadline() time.Time {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	return s.acq.grants[0].deadline
}

// Shift changes the times at which the lease ends and is renewed.
func (s *Lease) Shift(shift func(time.Time) time.Time) {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	g := s.acq.grants[0]
	g.deadline, g.next = shift(g.deadline), shift(g.next)
}

// Age makes it so long since Redis has granted all that is held.
func (l *Locker) Age(d time.Duration) {
	w := l.shared.watchdog
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.grants {
		g.granted = time.Now().Add(-d)
	}
}

// Age makes it so long since Redis has granted the lock.
func (s *Lease) Age(d time.Duration) {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	for _, g := range s.acq.grants {
		g.granted = time.Now().Add(-d)
	}
}

// Parked reports whether the leaders of those who wait for a mutex stand in its queue, and
// have no bid on its way.
func (l *Locker) Parked(name string) bool {
	t := newTarget("", keys.Mutex, name, exclusive)
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	rooms := 0
	for key, room := range l.shared.rooms {
		if key.record == t.record() {
			if rooms++; room.bids || room.ticket == 0 {
				return false
			}
		}
	}
	return rooms > 0
}

// CallLeaders has those who wait bid again, as a message does.
func (l *Locker) CallLeaders() {
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	for _, room := range l.shared.rooms {
		room.call()
	}
}

// PassesOnWhileItCloses tries to pass on all that is held, in the moment in which Close has
// begun.
func (l *Locker) PassesOnWhileItCloses() (passed bool) {
	s := l.shared
	closing := func(begins bool) { s.mu.Lock(); s.closing = begins; s.mu.Unlock() }
	closing(true)
	defer closing(false)
	for _, g := range s.watchdog.all() {
		passed = s.passOn(g) || passed
	}
	return passed
}

// FencesOfAGrant has the scripts keep so many fences free for each grant, until the test ends.
func FencesOfAGrant(t *testing.T, n string) {
	cutOut(t, &beginLua, "local FENCES = 16", "local FENCES = "+n)
}

// IsRenewing reports whether a renewal of the lease is on its way.
func (s *Lease) IsRenewing() bool {
	s.watchdog.mu.Lock()
	defer s.watchdog.mu.Unlock()
	return s.acq.grants[0].renewing
}

// SendRelease sends the command of Unlock, and reports whether that gave the lock
// back, or had done so before.
func (s *Lease) SendRelease(ctx context.Context) (bool, error) {
	what, err := s.locker.store.release(ctx, s.acq.grants[0], 0)
	return what == answerOK, err
}

// EveryKeyEnds sees that each key in the server has a TTL.
func EveryKeyEnds(t *testing.T, rdb *redis.Client) {
	t.Helper()
	all := rdb.Keys(t.Context(), "*").Val()
	cmds, _ := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range all {
			p.PTTL(t.Context(), key)
		}
		return nil
	})
	for i, cmd := range cmds {
		if ttl := cmd.(*redis.DurationCmd).Val(); ttl == -1 { // -2: it has ended since
			t.Errorf("%s has no TTL", all[i])
		}
	}
}

// cutOut replaces a part of a script's text, until the test ends.
func cutOut(t *testing.T, text *string, from, to string) {
	t.Helper()
	if n := strings.Count(*text, from); n != 1 {
		t.Fatalf("%q stands %d times in the script", from, n)
	}
	whole := *text
	load := func() {
		acquireScript, releaseScript, leaveScript = compose(acquireLua), compose(releaseLua), compose(leaveLua)
		renewScript, acquireAllScript = compose(renewLua), compose(acquireAllLua)
		forceScript = compose(forceLua)
	}
	t.Cleanup(func() { *text = whole; load() })
	*text = strings.Replace(whole, from, to, 1)
	load()
}

// StripeOf is the number of the stripe that a key belongs to.
func (s *Striped) StripeOf(key string) int { return s.stripe(key) }
