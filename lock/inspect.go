package lock

import (
	"context"
	"time"

	"github.com/levee-go/levee/internal/keys"
)

// Info is the state of a lock at a moment that has passed.
type Info struct {
	Held      bool          // somebody has it
	Fence     int64         // the last one given; 0 if Redis remembers none
	Remaining time.Duration // until the lease ends, unless it is renewed
	Label     string        // Options.Label of the holder
	Waiting   int           // the length of the queue: one for each waiting process
}

// Inspect describes the lock that Lock(name) takes, for people to look at. It changes
// nothing and is one round trip. Its answer may be out of date when it arrives.
func (l *Locker) Inspect(ctx context.Context, name string) (Info, error) {
	if err := checkName(name); err != nil {
		return Info{}, err
	}
	o, err := l.options()
	if err != nil {
		return Info{}, err
	}
	t := newTarget(o.Prefix, keys.Mutex, name, exclusive)
	return l.shared.redis.inspect(ctx, &t)
}
