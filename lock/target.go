package lock

import (
	"time"

	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redisconn"
)

// A mode is a way to take a lock, by its name in the scripts.
type mode string

const (
	exclusive mode = "m"
	once      mode = "o"
	write     mode = "w"
	read      mode = "r"
	permit    mode = "p"
)

// modes holds the modes as arguments of scripts, boxed once.
var modes = map[mode]any{exclusive: "m", once: "o", write: "w", read: "r", permit: "p"}

// A target is a lock and the way to take it.
type target struct {
	name    string
	keys    []string
	boxed   [4]any // the keys, as arguments
	mode    mode
	permits int // of a semaphore, else 1
}

func newTarget(prefix string, kind keys.LockKind, name string, m mode) target {
	return targetOf(name, keys.Lock(prefix, kind, name), m, 1)
}

func targetOf(name string, names []string, m mode, permits int) target {
	t := target{name: name, keys: names, mode: m, permits: permits}
	for i, key := range names {
		t.boxed[i] = key
	}
	return t
}

// call returns the call of a script with all keys of the lock.
func (t *target) call(args ...any) redisconn.Call {
	return redisconn.Call{Keys: t.keys, Boxed: t.boxed[:], Args: args}
}

// held returns the call of renew.lua with only the keys that a lease is in: while a cluster
// moves a slot, it refuses a script if one of the keys is on another node.
func (t *target) held(args ...any) redisconn.Call {
	if t.mode != read && t.mode != permit {
		return recordOnly(redisconn.Call{Keys: t.keys, Boxed: t.boxed[:], Args: args})
	}
	return redisconn.Call{Keys: []string{t.keys[0], t.keys[3]}, Boxed: []any{t.boxed[0], t.boxed[3]}, Args: args}
}

// recordOnly returns a call with only its first key, the record.
func recordOnly(call redisconn.Call) redisconn.Call {
	call.Keys, call.Boxed = call.Keys[:1], call.Boxed[:1]
	return call
}

// record returns the key of the lock's record, which also identifies the lock.
func (t *target) record() string { return t.keys[0] }

// A bid is a request for a lock, for one owner or for several readers at once.
type bid struct {
	owners  []string
	entry   string // in the queue; "": do not wait
	ticket  int64  // the entry's place in the queue; 0: none yet
	more    bool   // others wait behind the entry in this process
	lease   time.Duration
	label   string
	confirm redisconn.Confirm
}
