package lock

import (
	"cmp"
	"slices"
	"strings"
)

// A record is the state of a lock in this process: that of begin.lua, with its keys in one. All
// times are in ms.
type record struct {
	key      string
	owner    string // "": free; the name of an owner, or unclaimed and an entry
	ends     int64  // of the owner's lease
	fence    int64  // the first of the last grant
	born     int64  // the first of this record, or since the lock was forced
	forced   bool
	released string           // the last owner that has released
	label    string           // of the owner
	done     int64            // until when the work counts as done (Once)
	queue    []entry          // by ticket
	shares   map[string]int64 // of readers and permits: an owner, or unclaimed and an entry, and the end of its lease
	until    int64            // when the record is not needed any more
}

// An entry is in a queue. The one with the lowest ticket is next.
type entry struct {
	name   string // mode:process:number
	ticket int64
}

func (e entry) mode() mode      { return mode(e.name[:1]) }
func (e entry) process() string { return strings.Split(e.name, ":")[1] }

const (
	unclaimed = "g:"          // in front of an entry that has been granted the lock, and has not claimed it yet
	fences    = maxPassed + 1 // fences of a grant
	claim     = 2000          // a grant that is not claimed for so long goes to the next entry (ms)
)

func isUnclaimed(holder string) bool { return strings.HasPrefix(holder, unclaimed) }

// shared reports whether several may hold a lock in this mode.
func (m mode) shared() bool { return m == read || m == permit }

// lease returns the end of an owner's lease. It reports false if the owner does not have the lock.
func (l *localLock) lease(owner string) (ends int64, held bool) {
	if l.mode.shared() {
		ends, held = l.shares[owner]
		return ends, held
	}
	return l.ends, l.owner == owner
}

// own makes owner the only holder, for a lease of this length.
func (l *localLock) own(owner string, length int64, label string) {
	l.owner, l.ends, l.label = owner, l.now+length, label
}

// share makes holder one of the holders.
func (l *localLock) share(holder string, length int64) {
	if l.shares == nil {
		l.shares = map[string]int64{}
	}
	l.shares[holder] = l.now + length
}

// drop takes the lock from a holder. It reports false if the holder does not have it.
func (l *localLock) drop(holder string) bool {
	if _, held := l.lease(holder); !held {
		return false
	}
	if l.mode.shared() {
		delete(l.shares, holder)
	} else {
		l.own("", 0, "")
	}
	return true
}

// why returns why a grant with a fence below born is not held.
func (l *localLock) why() answer {
	if l.forced {
		return answerTaken
	}
	return answerLost
}

// owned reports whether an owner has the lock. The name of one whose lease has ended stays until
// another takes its place.
func (l *localLock) owned() bool { return l.owner != "" && l.ends > l.now }

// holders returns the owners who have the lock, and when the first of their leases ends, or of
// the grants that are not claimed: now if there are none.
func (l *localLock) holders() (owners []string, first int64) {
	all := l.shares
	if l.owned() {
		all = map[string]int64{l.owner: l.ends}
	}
	for holder, ends := range all {
		if ends <= l.now {
			continue
		}
		if first == 0 || ends < first {
			first = ends
		}
		if !isUnclaimed(holder) {
			owners = append(owners, holder)
		}
	}
	return owners, max(first, l.now)
}

// expire drops the shares, and the grant, that have ended by now.
func (l *localLock) expire() {
	if isUnclaimed(l.owner) && !l.owned() {
		l.owner = ""
	}
	for holder, ends := range l.shares {
		if ends <= l.now {
			delete(l.shares, holder)
		}
	}
}

// fits reports whether the lock can be taken in this mode, whatever is in the queue.
func (l *localLock) fits(m mode) bool {
	switch {
	case l.owned():
		return false
	case m == permit:
		return len(l.shares) < l.permits
	}
	return m == read || len(l.shares) == 0
}

// advance grants the lock to entries from the head of the queue, as long as it fits. It returns
// the entry at which it stopped, "" if there is none: the caller's own, which takes the lock
// itself, or one that the lock does not fit. While an owner has the lock it looks at no entry.
func (l *localLock) advance() string {
	for !l.owned() && len(l.queue) > 0 {
		first := l.queue[0]
		if first.name == l.mine || !l.fits(first.mode()) {
			return first.name
		}
		l.dequeue(first.name)
		if first.mode().shared() {
			l.share(unclaimed+first.name, claim)
		} else {
			l.own(unclaimed+first.name, claim, "")
		}
		l.tell(first.process(), first.name)
	}
	return ""
}

// mayTake reports whether the caller may take the lock now: the lock was granted to its entry,
// which it hereby claims, or the lock fits and the caller is first in the queue. A permit that was
// granted by a caller with a larger n may not fit.
func (l *localLock) mayTake(ticket int64) bool {
	if ends, granted := l.lease(unclaimed + l.mine); granted && ends > l.now {
		l.drop(unclaimed + l.mine)
		if l.fits(l.mode) {
			return true
		}
	}
	if ticket > 0 && l.ticket(l.mine) == 0 {
		l.enqueue(l.mine, ticket) // its grant has lapsed, but its ticket stands
	}
	first := l.advance()
	return (first == "" || first == l.mine) && l.fits(l.mode)
}

// take gives the lock to the owners of a bid.
func (l *localLock) take(b *bid) {
	if l.mode != read { // readers get the fence of the last writer
		l.fence = max(l.fence+fences, l.micros)
	}
	length := b.lease.Milliseconds()
	if !l.mode.shared() {
		l.own(b.owners[0], length, b.label)
		return
	}
	for _, owner := range b.owners {
		l.share(owner, length)
	}
}

// settle passes the lock on after a change.
func (l *localLock) settle() {
	l.expire()
	l.advance()
	l.retain()
}

// retain notes until when the record is needed: a while after the last lease, and the work of Once.
func (l *localLock) retain() {
	last := max(l.now, l.ends, l.done)
	for _, ends := range l.shares {
		last = max(last, ends)
	}
	l.until = last + remembered.Milliseconds()
}

// enqueue puts an entry in the queue, with its ticket or, for ticket 0, a new one at the end. It
// returns the ticket.
func (l *localLock) enqueue(name string, ticket int64) int64 {
	l.dequeue(name)
	if ticket == 0 {
		ticket = l.micros
		if n := len(l.queue); n > 0 {
			ticket = max(ticket, l.queue[n-1].ticket+1)
		}
	}
	at, _ := slices.BinarySearchFunc(l.queue, ticket, func(e entry, ticket int64) int { return cmp.Compare(e.ticket, ticket) })
	l.queue = slices.Insert(l.queue, at, entry{name, ticket})
	return ticket
}

// ticket returns the ticket of an entry, 0 if it is not in the queue.
func (r *record) ticket(name string) int64 {
	for _, e := range r.queue {
		if e.name == name {
			return e.ticket
		}
	}
	return 0
}

func (r *record) dequeue(name string) {
	r.queue = slices.DeleteFunc(r.queue, func(e entry) bool { return e.name == name })
}
