package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// A Keyspace has the fields of mutexrebuild.Keyspace, which documents them.
type Keyspace struct {
	Name         string
	Prefix       string
	Schema       int
	MaxBytes     int
	RedisTimeout time.Duration
	ReplicaLag   time.Duration
	Logger       *slog.Logger
}

// Options has the fields of mutexrebuild.Options, which documents them.
type Options struct {
	Lease        time.Duration
	LoadTimeout  time.Duration
	WaitBudget   time.Duration
	ErrorHold    time.Duration
	Hold         time.Duration
	WaitReplicas int
}

// WithDefaults returns o with its zero fields set to their defaults, or an error that
// names a field that is wrong.
func (o Options) WithDefaults() (Options, error) {
	if o.WaitReplicas < 0 {
		return o, fmt.Errorf("WaitReplicas must not be negative, got %d", o.WaitReplicas)
	}
	o.ErrorHold = cmp.Or(o.ErrorHold, 250*time.Millisecond)
	err := errors.Join(
		OrDefault("Lease", &o.Lease, 3*time.Second, 100*time.Millisecond),
		OrDefault("LoadTimeout", &o.LoadTimeout, 5*time.Second, 1),
		OrDefault("Hold", &o.Hold, 30*time.Second, time.Millisecond), // Redis counts milliseconds, and a hold of 0 ms would be a key without a TTL
	)
	if err != nil {
		return o, err
	}
	return o, OrDefault("WaitBudget", &o.WaitBudget, o.LoadTimeout, 1)
}

func (s Keyspace) withDefaults() (Keyspace, error) {
	if err := errors.Join(keys.CheckCache(s.Name), keys.CheckPrefix(s.Prefix)); err != nil {
		return s, err
	}
	switch {
	case s.Schema < 0 || int64(s.Schema) > 1<<31-1:
		return s, fmt.Errorf("%s must be from 0 to 2147483647, got %d", "Schema", s.Schema)
	case s.MaxBytes < 0:
		return s, fmt.Errorf("MaxBytes must not be negative, got %d", s.MaxBytes)
	}
	s.MaxBytes = cmp.Or(s.MaxBytes, 1<<20)
	s.Logger = cmp.Or(s.Logger, slog.Default())
	return s, errors.Join(
		OrDefault("RedisTimeout", &s.RedisTimeout, 250*time.Millisecond, 1),
		OrDefault("ReplicaLag", &s.ReplicaLag, 0, time.Millisecond),
	)
}

// OrDefault sets a field that is 0 to its default zero. It returns an error if the field is below least.
func OrDefault[T int | time.Duration](name string, field *T, zero, least T) error {
	switch {
	case *field == 0:
		*field = zero
		return nil
	case *field < 0:
		return fmt.Errorf("%s must not be negative, got %v", name, *field)
	case *field < least:
		return fmt.Errorf("%s must be at least %v, got %v", name, least, *field)
	}
	return nil
}
