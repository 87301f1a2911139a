package lock

import (
	"log/slog"
	"strings"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
)

const (
	minLease    = 100 * time.Millisecond
	maxLease    = 24 * time.Hour
	maxName     = 1024 // bytes
	maxLabel    = 256
	maxReplicas = 100
)

// Options adjusts a Locker. The zero value is ready to use. A negative value is
// an error of New, except where a field says otherwise.
type Options struct {
	// Lease is how long a holder that dies keeps others out. It is renewed every
	// third of it while the holder lives. 0: 10 s; at least 100 ms, at most 24 h.
	Lease time.Duration
	// MaxHold is how long a lease is renewed at the longest. Then its context ends, so
	// that a holder that lives but is stuck does not keep others out without end.
	// 0: no limit; otherwise at least Lease.
	MaxHold time.Duration
	// NoRenewal lets every lease end after its time, whether or not its holder lives.
	NoRenewal bool
	// Replicas is how many replicas must have confirmed an acquisition, and each
	// renewal, for it to count. It lowers the chance that a failover forgets the
	// lock; it does not remove it. 0: none.
	Replicas int
	// Fsync has an acquisition, and each renewal, count only when the server has it in its
	// append-only file on its disk, and the Replicas in theirs (WAITAOF of Redis 7.2 and
	// Valkey): then no restart forgets the lock. With appendfsync everysec each takes up to
	// a second. On a server without WAITAOF or without such a file the error matches
	// ErrConfig; if its disk is too slow, ErrNotReplicated. Lease must be at least six times
	// ReplicaTimeout.
	Fsync bool
	// ReplicaTimeout is how long to wait for Replicas and Fsync. 0: 100 ms, with Fsync
	// 1.5 s; at most 3 s.
	ReplicaTimeout time.Duration
	// StrictFIFO puts every waiter in the queue by itself, instead of one entry for the whole
	// process, and has each Unlock go to Redis: waiters are served by when they came, wherever
	// they run, for two round trips each. Without it a process that has a mutex may first serve
	// 16 of its waiters, for 50 ms, without a round trip. NoRenewal, MaxHold, Replicas and Fsync
	// also have each Unlock go to Redis.
	StrictFIFO bool
	// Prefix is put in front of the names of all keys, followed by a colon. Locks with
	// different prefixes are independent. "": none. At most 128 bytes, no braces.
	Prefix string
	// Label is shown by Inspect while the lock is held, to name its holder. "": none.
	// At most 256 bytes.
	Label string
	// Hooks are told what happens.
	Hooks Hooks
	// Logger gets events that were survived, each kind at most once a minute: a lease
	// that was lost, renewals that fail, messages that do not arrive. After the first
	// lock it also gets a warning if the server may evict keys, or has no replicas
	// though Replicas wants some. nil: slog.Default().
	Logger *slog.Logger
}

// Hooks are called when something happens, on the goroutine it happens on (Lost: on one
// of its own), with no mutex of this package held. They must not block. A panic of theirs is
// logged. Each may be nil.
type Hooks struct {
	// Acquired: a lock was taken after so long a wait; contended reports whether
	// somebody had it at first.
	Acquired func(name string, wait time.Duration, contended bool)
	// Released: a lock was given back that had been held for so long.
	Released func(name string, held time.Duration)
	// Lost: a lease ended that had not been released; cause matches ErrLost.
	Lost func(name string, cause error)
}

func (o Options) withDefaults() (Options, error) {
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = 100 * time.Millisecond
		if o.Fsync {
			o.ReplicaTimeout = 1500 * time.Millisecond
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case o.Lease < minLease || o.Lease > maxLease:
		return o, badConfig("Lease must be from %v to %v, got %v", minLease, maxLease, o.Lease)
	case o.MaxHold < 0 || o.MaxHold > 0 && o.MaxHold < o.Lease:
		return o, badConfig("MaxHold must be 0 or at least Lease, got %v", o.MaxHold)
	case o.Replicas < 0 || o.Replicas > maxReplicas:
		return o, badConfig("Replicas must be from 0 to %d, got %d", maxReplicas, o.Replicas)
	case o.ReplicaTimeout < time.Millisecond || o.ReplicaTimeout > 3*time.Second:
		return o, badConfig("ReplicaTimeout must be from 1ms to 3s, got %v", o.ReplicaTimeout)
	case o.Fsync && o.Lease < 6*o.ReplicaTimeout:
		return o, badConfig("with Fsync Lease must be at least six times ReplicaTimeout (%v), got %v", o.ReplicaTimeout, o.Lease)
	case len(o.Prefix) > 128 || strings.ContainsAny(o.Prefix, "{}"):
		return o, badConfig("Prefix must have at most 128 bytes and no braces, got %.150q", o.Prefix)
	case len(o.Label) > maxLabel:
		return o, badConfig("Label must have at most %d bytes, got %d", maxLabel, len(o.Label))
	}
	o.Lease = ceilMillis(o.Lease)
	return o, nil
}

// confirm is what has to confirm an acquisition and each renewal.
func (o *Options) confirm() redisconn.Confirm {
	return redisconn.Confirm{Replicas: o.Replicas, Disk: o.Fsync, Within: o.ReplicaTimeout}
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return badConfig("a name must have 1 to %d bytes, got %d", maxName, len(name))
	}
	return nil
}

// ceilMillis rounds up: Redis counts milliseconds, and a lease must not be
// shorter than was asked for.
func ceilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
