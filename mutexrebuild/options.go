package mutexrebuild

import (
	"log/slog"
	"time"
)

// A Keyspace says which values a group is for, and how the group calls Redis for them. The zero
// value of every field but Name works.
type Keyspace struct {
	// Name is part of the keys' names, the same in all processes that work together. It must
	// differ from the names of caches, because a cache of the same name would use the same keys.
	// It may not be blank nor contain control characters or any of ":{}".
	Name string
	// Prefix is put in front of the names of the group's keys and channel, followed by a colon: groups of
	// different prefixes are independent. "": none. At most 100 bytes, no braces and no control characters.
	Prefix string
	// Schema is part of the names of the values too. Raise it by one when the stored form of the
	// values changes: old and new processes then do not read each other's values. When a process
	// invalidates or sets a value, it also drops the values of the schemas one below and one
	// above, so never skip one.
	Schema int
	// MaxBytes is the longest value, in bytes, that is stored and read. 0: 1 MiB. If somebody
	// else has stored a longer value under a key, no more than MaxBytes and one byte are read.
	MaxBytes int
	// RedisTimeout is how long one operation of Redis may take, whatever the client's own
	// options. An operation that has to wait for its turn may wait for as long again. 0: 250 ms.
	RedisTimeout time.Duration
	// ReplicaLag is how long after an invalidation a key stays closed to publication, because
	// loads read from replicas that may lag this much. 0: not at all; otherwise at least 1 ms. It
	// needs Redis: without it New logs that writes are not protected.
	ReplicaLag time.Duration
	// Logger gets events that the group survives and that its callers do not see, each kind at
	// most once a minute, with ids quoted and shortened and without values. Nil: slog.Default().
	Logger *slog.Logger
}

// Options configures leases and waiting. The zero value is ready to use; a negative duration is
// an error unless a field says otherwise.
type Options struct {
	// Lease is how long other processes wait for one that died while it rebuilt. While the load
	// runs, a lease is renewed every third of it. 0: 3 s; at least 100 ms.
	Lease time.Duration
	// LoadTimeout is how long a load may take, with the request for its lease. 0: 5 s; take the
	// time of your slowest query if that is longer. A cache refuses it: there the Timeout of its
	// breaker limits a load.
	LoadTimeout time.Duration
	// WaitBudget is how long callers wait for the leases of other processes before they load
	// without one. Leave it 0: as long as a load may take, after which a living lease holder has
	// published or given up. That is LoadTimeout, or in a cache the Timeout and QueueTimeout of
	// its breaker together, 10 s by default. A shorter one, such as 2 s, lets several processes
	// load one key at a time rather than have its callers wait for a slow one.
	WaitBudget time.Duration
	// ErrorHold is how long the error of a failed load is returned to further callers of its key,
	// give or take a fifth. A cache doubles it while the loads of the key keep failing, up to 4
	// s. 0: 250 ms; negative: not at all.
	ErrorHold time.Duration
	// Hold is how long a key stays closed to publication if the process that holds it for a write
	// has died. 0: 30 s; at least 1 ms.
	Hold time.Duration
	// WaitReplicas is how many replicas must acknowledge an invalidation, a Set and the end of a
	// Hold, so that a failover does not bring the old value back. They have RedisTimeout to do
	// so; if too few do, the error is ErrUnavailable, which is returned at once while replicas
	// are known to be missing. Readers go on, and the invalidation is repeated once when the
	// replicas are back. It needs a *redis.Client, alone or with Sentinel; without Redis New logs
	// that writes are not protected. 0: none.
	WaitReplicas int
}
