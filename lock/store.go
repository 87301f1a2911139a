package lock

import (
	"context"
	"time"
)

// A store keeps locks: a redisStore in Redis, a localStore in this process. Its operations are
// those of the scripts (scripts/), which say what the answers mean. Each may be called
// concurrently, and takes effect at one moment.
type store interface {
	// acquire takes a lock for the owners of a bid; if it cannot, the reply says why.
	acquire(ctx context.Context, t *target, b bid) (bidReply, error)
	// acquireAll takes several mutexes for the owners of a bid, one for each, or none of them.
	acquireAll(ctx context.Context, targets []target, b bid) (bidReply, error)
	// release releases a lock; keep is how long its work counts as done (Once).
	release(ctx context.Context, g *grant, keep time.Duration) (answer, error)
	// refuse releases a lock that an owner may have got, and refuses it to a bid of that owner
	// that is still on its way.
	refuse(ctx context.Context, t *target, owner string) error
	// leave removes an entry from the queue, and passes on a lock that the entry has been granted.
	leave(ctx context.Context, t *target, entry string) error
	// renew makes several changes. Its results are in the order of renewals.
	renew(ctx context.Context, renewals []renewal) []renewed
	// change reads whether a lease is held, and changes it.
	change(ctx context.Context, r renewal) (renewReply, error)
	inspect(ctx context.Context, t *target) (Info, error)
	// force takes a lock from its holders if fence is the lock's last fence. If not, it returns
	// answerHeld and the last fence.
	force(ctx context.Context, t *target, fence int64) (answer, int64, error)

	// open begins to give l its messages, with locker.hear, and calls locker.gap when some may
	// have been missed before. It is called once, before any operation.
	open(l *locker)
	live() bool      // messages arrive
	clustered() bool // locks may be in several slots
	silence()        // ends the messages
	close()          // is called after silence, and after the last operation
}

// A renewal is a change of a lease. With all but grant zero it changes nothing, and only reads
// whether the lease is held.
type renewal struct {
	grant *grant
	lease time.Duration // sets the lease's end, to this long from now; 0: it stays
	raise int64         // raises the lock's fence to at least this; 0: it stays
	heir  string        // becomes the owner; "": the owner stays
}

// writes reports whether r changes something.
func (r *renewal) writes() bool { return r.lease > 0 || r.raise > 0 || r.heir != "" }

// A renewed is the result of a renewal.
type renewed struct {
	renewReply
	err error
}
