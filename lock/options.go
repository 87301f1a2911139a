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
	// MaxHold is how long a lease is renewed at the longest, so that a holder that
	// lives but is stuck does not keep others out for ever; its context ends then.
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
	// StrictFIFO has every waiter stand in the queue by itself, where it costs a
	// round trip for itself, instead of once for its whole process.
	StrictFIFO bool
	// Prefix stands before the names of all keys, followed by a colon: locks with
	// different prefixes have nothing to do with one another. "": none. At most
	// 128 bytes, without braces.
	Prefix string
	// Label is shown by Inspect while the lock is held, to tell who holds it. ""
	// for none; at most 256 bytes.
	Label string
	// Hooks are told what happens.
	Hooks Hooks
	// Logger gets what was survived and may interest an operator, each kind of event
	// once a minute at the most: a lease that was lost, renewals that fail,
	// messages that do not come; and once, after the first lock, that the server may
	// evict keys or has no replicas though Replicas asks for some. nil: slog.Default().
	Logger *slog.Logger
}

// Hooks are called as things happen, outside all locks of this package, by the
// goroutine they happen on, Lost by one of its own. They must not block. Each may
// be nil.
type Hooks struct {
	// Acquired: a lock was taken after waiting; contended tells whether somebody
	// had it at first.
	Acquired func(name string, wait time.Duration, contended bool)
	// Released: a lock was given back that had been held for so long.
	Released func(name string, held time.Duration)
	// Renewed: a renewal came back; remaining is until the lease ends, err why it
	// did not succeed.
	Renewed func(name string, remaining time.Duration, err error)
	// Lost: a lease ended that had not been released; cause matches ErrLost.
	Lost func(name string, cause error)
	// Push: wake-ups come by push from now on, or waiters have to poll.
	Push func(live bool)
	// Orphan: Redis did not say whether it granted a lock, so that it may be held
	// by nobody until it has been given back, which is being done.
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
