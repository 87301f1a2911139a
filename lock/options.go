package lock

import (
	"log/slog"
	"strings"
	"time"
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
	// ReplicaTimeout is how long to wait for them. 0: 100 ms; at most 1 s.
	ReplicaTimeout time.Duration
	// StrictFIFO puts every waiter in the queue by itself, which costs a round trip for
	// each, instead of one entry for the whole process.
	StrictFIFO bool
	// Prefix stands before the names of all keys, followed by a colon. Locks with
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
	// though Replicas asks for some. nil: slog.Default().
	Logger *slog.Logger
}

// Hooks are called when something happens, on the goroutine it happens on (Lost: on one
// of its own), with no mutex of this package held. They must not block. Each may be nil.
type Hooks struct {
	// Acquired: a lock was taken after so long a wait; contended reports whether
	// somebody had it at first.
	Acquired func(name string, wait time.Duration, contended bool)
	// Released: a lock was given back that had been held for so long.
	Released func(name string, held time.Duration)
	// Renewed: a renewal succeeded, or failed with err. The lease ends after remaining
	// unless it is renewed.
	Renewed func(name string, remaining time.Duration, err error)
	// Lost: a lease ended that had not been released; cause matches ErrLost.
	Lost func(name string, cause error)
	// Push: from now on messages wake the waiters (live), or the waiters have to poll.
	Push func(live bool)
	// Orphan: Redis did not say whether it granted a lock. The lock may be held for
	// nobody for a moment: it is being given back in the background.
	Orphan func(name string)
}

func (o Options) withDefaults() (Options, error) {
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = 100 * time.Millisecond
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
	case o.ReplicaTimeout < time.Millisecond || o.ReplicaTimeout > time.Second:
		return o, badConfig("ReplicaTimeout must be from 1ms to 1s, got %v", o.ReplicaTimeout)
	case len(o.Prefix) > 128 || strings.ContainsAny(o.Prefix, "{}"):
		return o, badConfig("Prefix must have at most 128 bytes and no braces, got %.150q", o.Prefix)
	case len(o.Label) > maxLabel:
		return o, badConfig("Label must have at most %d bytes, got %d", maxLabel, len(o.Label))
	}
	o.Lease = ceilMillis(o.Lease)
	return o, nil
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
