package keys

import (
	"strconv"
	"strings"
)

// Names of locks. All keys of one lock are in one cluster slot: each has the lock's
// name in braces, and the name's own braces are escaped. The kind of the lock is part
// of its keys, so a mutex "a" and a semaphore "a" share none.
//
//	levee:l1:m:{name}      the record of the mutex "name"
//	levee:l1:m:{name}:q    its queue of waiting callers
//	levee:l1:m:{name}:w    the waiting processes that are alive
//	levee:l1:m:{name}:s    its shares: readers, permits
//	levee:l1:c:process     the channel that tells a process whose turn has come
//
// The l1 is the version of the layout: a library with another one neither
// understands nor touches these keys.

// LockKind is a kind of lock, as its keys spell it.
type LockKind string

// The kinds of locks.
const (
	Mutex     LockKind = "m"
	ReadWrite LockKind = "rw"
	Semaphore LockKind = "p"
	Stripe    LockKind = "st"
	Once      LockKind = "o"
)

// LockLayout is the version of the layout, part of every name.
const LockLayout = "l1"

// Lock returns the keys of a lock, in the order in which the scripts take them:
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

// LockOf returns the keys of the lock with the given record.
func LockOf(record string) []string { return lockKeys([]byte(record)) }

// lockKeys cuts all keys from one string: each is the record and a suffix.
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

// slot returns the cluster slot of a key with a hash tag: the CRC-16 (XMODEM) of the text in
// braces, modulo 16384.
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

// LockChannels is the prefix of the processes' channels.
const LockChannels = "levee:" + LockLayout + ":c:"
