package mutexrebuild

import (
	"log/slog"
	"time"
)

// A Keyspace says which values a group is about, and how Redis is called for them.
// The zero value of every field but Name works.
type Keyspace struct {
	// Name is part of the keys' names, the same in all processes that work together. A
	// cache of the same name has the same keys and would be read as bytes: give it another.
	// Name may not be blank nor hold control characters or any of ":{}".
	Name string
	// Schema is part of the names of the values too. Raise it by one when the stored form
	// of the values changes: old and new processes then do not read each other's values,
	// and what one invalidates or sets, it drops for the other as well. That holds for
	// the schemas one below and one above, so never skip one.
	Schema int
	// MaxBytes is the longest value that is stored and read. 0: 1 MiB. Of a longer
	// value that somebody else has put under a key, no more than this and a byte
	// is read.
	MaxBytes int
	// RedisTimeout is how long one operation of Redis may take, whatever the
	// client's own options are. One that has to wait for its turn, behind others, does so
	// for at most as long again. 0: 250 ms.
	RedisTimeout time.Duration
	// ReplicaLag is how long after an invalidation a key stays closed to
	// publication, because the source is read from replicas that may lag this
	// much. 0: not at all; else at least 1 ms. It needs Redis: New logs that it
	// protects no write without.
	ReplicaLag time.Duration
	// Logger gets what the group survives and its callers do not learn, each kind
	// of event once a minute at the most, with ids quoted and cut and without values.
	// Nil: slog.Default().
	Logger *slog.Logger
}

// Options adjusts leases and waiting. The zero value is ready to use; a negative
// duration is an error, except where a field says otherwise.
type Options struct {
	// Lease is how long a process that dies while it rebuilds keeps others
	// waiting. A lease is renewed every third of it while the load runs. 0: 3 s;
	// at least 100 ms.
	Lease time.Duration
	// LoadTimeout is how long a load may take. 0: 5 s. In a cache see Options.Rebuild there.
	LoadTimeout time.Duration
	// WaitBudget is how long callers wait for the leases of other processes before
	// they load without one. 0: as long as a load may take, after which a holder that is
	// alive has published or given up. That is LoadTimeout, and in a cache the Timeout and
	// QueueTimeout of its breaker together, 10 s by default.
	WaitBudget time.Duration
	// ErrorHold is how long the error of a failed load is returned for its key, give or take
	// a fifth. A cache doubles it while the loads of the key go on to fail, up to 4 s.
	// 0: 250 ms; negative: not at all.
	ErrorHold time.Duration
	// Hold is how long a key stays closed to publication when the process that
	// holds it for a write has died. 0: 30 s; at least 1 ms.
	Hold time.Duration
	// WaitReplicas is how many replicas have to acknowledge an invalidation, a Set
	// and the ends of a Hold, so that a failover does not bring the old value back.
	// They have RedisTimeout for it, after which fewer of them are ErrUnavailable: at once while
	// they are known to be missing. Readers go on, and the invalidation is done once more when they
	// are back.
	// It needs a *redis.Client, alone or with Sentinel; without Redis New logs that it
	// protects no write. 0: none.
	WaitReplicas int
}
