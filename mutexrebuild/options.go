package mutexrebuild

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Options adjusts a Group. The zero value is ready to use; negative durations are
// an error, except where a field says otherwise.
type Options struct {
	// Schema is part of the keys' names. Raise it when the stored form of the
	// values changes, and old and new processes do not read each other's.
	Schema int
	// Lease is how long a process that dies while it rebuilds keeps others
	// waiting. A lease is renewed every third of it while the load runs. 0: 3 s;
	// at least 100 ms.
	Lease time.Duration
	// LoadTimeout ends the context of a load; a load that ignores it is left
	// behind. 0: 5 s.
	LoadTimeout time.Duration
	// WaitBudget is how long a flight waits for the leases of others before it
	// loads by itself, degraded. 0: LoadTimeout, after which a holder that is
	// alive has published or given up.
	WaitBudget time.Duration
	// ErrorHold is how long the error of a load answers for the key, give or take
	// a fifth. 0: 250 ms; negative: not at all.
	ErrorHold time.Duration
	// Refreshes is how many Refresh may run at a time. 0: 16; negative: none.
	Refreshes int
	// Hold is how long a key stays closed to publication when the process that
	// holds it for a write has died. 0: 30 s; at least 1 ms.
	Hold time.Duration
	// ReplicaLag is how long after an invalidation a key stays closed to
	// publication, because the source is read from replicas that may lag this
	// much. 0: not at all; else at least 1 ms.
	ReplicaLag time.Duration
	// WaitReplicas is how many replicas have to acknowledge an invalidation, a Set
	// and the ends of a Hold, so that a failover does not bring the old value back.
	// They have RedisTimeout for it, after which fewer of them are ErrUnavailable.
	// It needs a *redis.Client, alone or with Sentinel. 0: none.
	WaitReplicas int
	// RedisTimeout is how long one operation of Redis may take, whatever the
	// client's own options are. 0: 100 ms.
	RedisTimeout time.Duration
	// MaxBytes is the longest value, as Encode gives it, that is stored and read. A
	// longer one goes to those who wait for it and is not stored; of what somebody else
	// has put under a key, no more than this and a byte is read. 0: 1 MiB.
	MaxBytes int
	// Logger gets what the group survives and its callers are not told of, each kind
	// of event once a minute at the most, with ids quoted and cut and without values.
	// Nil: slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults(name string) (Options, error) {
	if name == "" || strings.ContainsAny(name, ":{}") {
		return o, fmt.Errorf("mutexrebuild: name must not be empty nor hold any of \":{}\", got %q", name)
	}
	if o.Schema < 0 {
		return o, fmt.Errorf("mutexrebuild: Schema must not be negative, got %d", o.Schema)
	}
	if o.WaitReplicas < 0 {
		return o, fmt.Errorf("mutexrebuild: WaitReplicas must not be negative, got %d", o.WaitReplicas)
	}
	if o.MaxBytes < 0 {
		return o, fmt.Errorf("mutexrebuild: MaxBytes must not be negative, got %d", o.MaxBytes)
	}
	for _, field := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"Lease", &o.Lease, 3 * time.Second},
		{"LoadTimeout", &o.LoadTimeout, 5 * time.Second},
		{"WaitBudget", &o.WaitBudget, max(o.LoadTimeout, 0)},
		{"Hold", &o.Hold, 30 * time.Second},
		{"ReplicaLag", &o.ReplicaLag, 0},
		{"RedisTimeout", &o.RedisTimeout, 100 * time.Millisecond},
	} {
		if *field.value < 0 {
			return o, fmt.Errorf("mutexrebuild: %s must not be negative, got %v", field.name, *field.value)
		}
		if *field.value == 0 {
			*field.value = field.zero
		}
	}
	if o.WaitBudget == 0 {
		o.WaitBudget = o.LoadTimeout
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 20
	}
	if o.Refreshes == 0 {
		o.Refreshes = 16
	}
	if o.ErrorHold == 0 {
		o.ErrorHold = 250 * time.Millisecond
	}
	if o.Lease < 100*time.Millisecond {
		return o, fmt.Errorf("mutexrebuild: Lease must be at least 100ms, got %v", o.Lease)
	}
	// Redis counts milliseconds, and a hold of none would be a key without an end.
	if o.Hold < time.Millisecond {
		return o, fmt.Errorf("mutexrebuild: Hold must be at least 1ms, got %v", o.Hold)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.ReplicaLag > 0 && o.ReplicaLag < time.Millisecond {
		return o, fmt.Errorf("mutexrebuild: ReplicaLag must be at least 1ms, got %v", o.ReplicaLag)
	}
	return o, nil
}
