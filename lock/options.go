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

// Options configures a Locker. The zero value is ready to use. New refuses negative
// values.
type Options struct {
	// Lease is how long a lock stays taken after its holder has died. While the holder
	// lives, it is renewed every Lease/3. Leave it 0, which is 10 s, or take 30 s where a
	// process or Redis may pause for seconds. At least 100 ms, at most 24 h.
	Lease time.Duration
	// MaxHold is the longest time for which a lease is renewed. Then its context ends, so
	// that a holder that lives but is stuck does not keep the lock forever: take several
	// times your longest job. 0: no limit; otherwise at least Lease.
	MaxHold time.Duration
	// NoRenewal turns renewal off: a lease ends after Lease even if its holder lives.
	NoRenewal bool
	// Replicas is how many replicas must have confirmed an acquisition, and each
	// renewal, for it to count. It lowers the chance that a failover forgets the
	// lock; it does not remove it. 0: none, as it must be without Redis; 1 where a failover must
	// seldom forget one.
	Replicas int
	// Fsync makes an acquisition, and each renewal, count only after the server has synced
	// it to its append-only file, and the Replicas to theirs (WAITAOF of Redis 7.2 and
	// Valkey): then no restart forgets the lock. With appendfsync everysec each takes up to
	// 1 s. On a server without WAITAOF or without an append-only file the error matches
	// ErrConfig; if the disk is too slow, ErrNotReplicated. Lease must be at least six times
	// ReplicaTimeout. Without Redis New refuses it.
	Fsync bool
	// ReplicaTimeout is how long to wait for Replicas and Fsync. 0: 100 ms, with Fsync
	// 1.5 s; at most 3 s.
	ReplicaTimeout time.Duration
	// StrictFIFO gives every waiter its own entry in the queue, instead of one for the whole
	// process, and makes each Unlock call Redis: waiters are served in order of arrival,
	// wherever they run, for two round trips each. Without it a process that has a mutex may
	// first pass it on among 16 of its own waiters, for 50 ms, without a round trip. With
	// NoRenewal, MaxHold, Replicas or Fsync each Unlock calls Redis too.
	StrictFIFO bool
	// Prefix is put in front of the names of all keys, followed by a colon. Locks with
	// different prefixes are independent, also without Redis. "": none. At most 128 bytes, no
	// braces.
	Prefix string
	// Label is shown by Inspect while the lock is held, to name its holder. "": none.
	// At most 256 bytes.
	Label string
	// Hooks are called when a lock is acquired, released or lost.
	Hooks Hooks
	// Logger logs lost leases, failed renewals, messages that do not arrive and other
	// problems, each kind at most once a minute. After the first lock was taken it also
	// warns if the server may evict keys, or has no replicas though Replicas is set.
	// nil: slog.Default().
	Logger *slog.Logger
}

// Hooks are functions that a Locker calls on events, each on the goroutine of its event
// (Lost: on a new one), with no mutex of this package held. They must not block. A panic in a
// hook is recovered and logged. Each may be nil.
type Hooks struct {
	// Acquired is called when a lock was taken; wait is how long the call took, and contended
	// reports whether it had to wait for a holder.
	Acquired func(name string, wait time.Duration, contended bool)
	// Released is called when a lock was released; held is how long its caller had it.
	Released func(name string, held time.Duration)
	// Lost is called when a lease ended without being released; cause matches ErrLost.
	Lost func(name string, cause error)
}

// withDefaults returns o with the defaults filled in, or an error if New refuses o. local says
// that there is no Redis.
func (o Options) withDefaults(local bool) (Options, error) {
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
	case local && o.Replicas > 0:
		return o, badConfig("Replicas must be 0 without Redis, got %d", o.Replicas)
	case local && o.Fsync:
		return o, badConfig("Fsync must be false without Redis")
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

// confirm returns which replicas and disks must confirm an acquisition and each renewal.
func (o *Options) confirm() redisconn.Confirm {
	return redisconn.Confirm{Replicas: o.Replicas, Disk: o.Fsync, Within: o.ReplicaTimeout}
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return badConfig("a name must have 1 to %d bytes, got %d", maxName, len(name))
	}
	return nil
}

// ceilMillis rounds d up to milliseconds, the unit of Redis, so that a lease is not
// shorter than requested.
func ceilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
