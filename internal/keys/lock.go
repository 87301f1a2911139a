package keys

import "strconv"

// Names of locks. Everything of one lock is in one cluster slot, that of its
// name: the braces are always there and the name has none of its own. Each kind
// of lock has names of its own, so a mutex "a" and a semaphore "a" do not meet.
//
//	levee:l1:m:{name}      the record of the mutex "name"
//	levee:l1:m:{name}:q    who waits for it, in order
//	levee:l1:m:{name}:w    which of the waiting processes are alive
//	levee:l1:m:{name}:s    who shares it: readers, permits
//	levee:l1:c:process     the channel on which a process hears of its turns
//
// The l1 is the version of the layout: a library with another one neither
// understands nor touches these keys.

// LockKind is a kind of lock, as it stands in the names.
type LockKind string

// The kinds of locks.
const (
	Mutex     LockKind = "m"
	ReadWrite LockKind = "rw"
	Semaphore LockKind = "p"
	Stripe    LockKind = "st"
	Once      LockKind = "o"
)

// LockLayout is the version that stands in the names.
const LockLayout = "l1"

// Lock names the keys of a lock, in the order in which the scripts take them:
// record, queue, alive, shares. prefix must hold no braces; "" for none.
func Lock(prefix string, kind LockKind, name string) []string {
	if prefix != "" {
		prefix += ":"
	}
	return LockOf(prefix + "levee:" + LockLayout + ":" + string(kind) + ":{" + escape(name) + "}")
}

// LockOf names the keys of the lock that has this record.
func LockOf(record string) []string {
	all, n := record+":q"+record+":w"+record+":s", len(record) // one string for all
	return []string{all[:n], all[:n+2], all[n+2 : 2*n+4], all[2*n+4:]}
}

// StripeName names the i-th stripe of a striped lock.
func StripeName(name string, i int) string { return name + ":" + strconv.Itoa(i) }

// LockChannels is what the channels of processes begin with.
const LockChannels = "levee:" + LockLayout + ":c:"
