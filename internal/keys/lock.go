package keys

import (
	"strconv"
	"strings"
)

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
	var space [256]byte
	b := append(space[:0], prefix...)
	if prefix != "" {
		b = append(b, ':')
	}
	b = append(append(b, "levee:"+LockLayout+":"...), kind...)
	b = append(append(append(b, ":{"...), escape(name)...), '}')
	return lockKeys(b)
}

// LockOf names the keys of the lock that has this record.
func LockOf(record string) []string { return lockKeys([]byte(record)) }

// lockKeys makes one string for all keys: the record stands before the suffix of each.
func lockKeys(b []byte) []string {
	n := len(b)
	b = append(append(b, ":q"...), b[:n]...)
	b = append(append(b, ":w"...), b[:n]...)
	all := string(append(b, ":s"...))
	return []string{all[:n], all[:n+2], all[n+2 : 2*n+4], all[2*n+4:]}
}

// LocksShareSlot reports whether all locks with these records are in one slot of a cluster.
func LocksShareSlot(records []string) bool {
	for _, record := range records[1:] {
		if slot(record) != slot(records[0]) {
			return false
		}
	}
	return true
}

// slot is the slot of a key with a hash tag: the CRC-16 (XMODEM) of what is in its braces.
func slot(key string) (crc uint16) {
	_, tag, _ := strings.Cut(key, "{")
	tag, _, _ = strings.Cut(tag, "}")
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

// StripeName names the i-th stripe of a striped lock.
func StripeName(name string, i int) string { return name + ":" + strconv.Itoa(i) }

// LockChannels is what the channels of processes begin with.
const LockChannels = "levee:" + LockLayout + ":c:"
