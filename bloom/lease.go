package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// The lease of a Rebuild is a key in Redis that holds the token of the Rebuild. While
// it stands, Rebuilds in other processes wait. It saves work, but alone it does not make a
// switch safe, since a process that was stopped may believe in a lease that has expired.
// The scripts of each step check the lease in Redis: see sharedRebuild.

const (
	leaseLife  = 10 * time.Second       // how long others wait for a Rebuild whose process died
	leaseRenew = time.Second            // how often a Rebuild renews its lease and reads the log
	leasePoll  = 250 * time.Millisecond // how often those who wait for the lease look
)

var errLeaseLost = errors.New("the lease to rebuild was lost")

func newSharedRebuild(s *shared, rec *record) *sharedRebuild {
	return &sharedRebuild{filter: s, store: s.store, record: rec, token: rand.Text(), name: rand.Text()}
}

// waitForLease waits until this Rebuild has the lease, or until another Rebuild has
// succeeded, meanwhile or less than age before: done. Then name is the generation of the
// other one.
func (r *sharedRebuild) waitForLease(ctx context.Context, age time.Duration) (done bool, err error) {
	before := ""
	for first := true; ; first = false {
		mine, fresh, current, err := r.acquire(ctx, age)
		if err != nil {
			return false, err
		}
		if first {
			before = current
		}
		r.held = mine
		switch {
		case fresh, current != before && current != "":
			r.name = current
			return true, nil
		case mine:
			return false, nil
		}
		if err := pause(ctx, leasePoll); err != nil {
			return false, err
		}
	}
}

// acquire takes or renews the lease, and returns the generation in use. If that is younger
// than age it is fresh, and the lease stays where it is. A command that
// was left behind may reach Redis after finish has released the lease, and take it
// for nobody; then acquire releases it again.
func (r *sharedRebuild) acquire(ctx context.Context, age time.Duration) (mine, fresh bool, current string, err error) {
	late := func() {
		if r.finished.Load() {
			r.release()
		}
	}
	reply, err := evalOn(ctx, r.store.conn, late, leaseScript, []string{r.store.names.Record(), r.store.names.Rebuild()},
		r.record.header, r.token, leaseLife.Milliseconds(), age.Milliseconds()).List()
	if err != nil {
		return false, false, "", err
	}
	kind, rest, err := parseReply(reply, 1, 1)
	if err != nil {
		return false, false, "", err
	}
	return kind == "mine", kind == "fresh", rest[0], nil
}

// keepLease renews the lease and reads the log into the next generation until ctx ends. If
// the lease or the log is lost, it ends ctx. Any other error may pass: the scripts that
// matter check the lease themselves.
func (r *sharedRebuild) keepLease(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(leaseRenew)
	defer ticker.Stop()
	for {
		mine, _, _, err := r.acquire(ctx, 0)
		if err == nil && !mine || errors.Is(err, errLost) {
			cancel(fmt.Errorf("%w: %w", errLeaseLost, errLost))
			return
		}
		if err := r.followLog(ctx); errors.Is(err, errGap) || errors.Is(err, errLost) {
			cancel(fmt.Errorf("%w: %w", errLeaseLost, err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// finish releases the lease if this Rebuild has it. After a success it is released
// already, but keepLease may have taken it once more since.
func (r *sharedRebuild) finish() {
	r.finished.Store(true)
	if r.held {
		r.release()
	}
}

// release releases the lease. If that fails, others wait until it expires.
func (r *sharedRebuild) release() {
	_ = r.store.eval(context.Background(), releaseScript, []string{r.store.names.Rebuild()}, r.token, r.store.names.Channel(), r.token)
}
