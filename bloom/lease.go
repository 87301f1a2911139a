package bloom

import (
	"context"
	"crypto/rand"
	"errors"
	"time"
)

// A lease is a key in Redis that holds the token of a Rebuild or of a compaction. While it
// exists, Rebuilds of other processes wait, and their compactions do nothing. It saves work, but
// alone it does not make a switch safe, since a process that was stopped may rely on a lease that
// has expired. So the script of each step checks the lease in Redis: see save.
type lease struct {
	store  *store
	record *record
	name   string
	token  string
	held   bool // the last acquire got it

	invalid string // when the filter was last invalidated, as of the time when acquire first got the lease
}

const (
	leaseLife  = 10 * time.Second       // how long others wait for a Rebuild whose process died
	leaseRenew = time.Second            // how often a Rebuild renews its lease and reads the log
	leasePoll  = 250 * time.Millisecond // how often a waiting Rebuild tries to get the lease
)

var errLeaseLost = errors.New("the lease was lost")

func (s *shared) newLease(rec *record, name string) *lease {
	return &lease{store: s.store, record: rec, name: name, token: rand.Text()}
}

// acquire takes or renews the lease, and returns the shape of the snapshot in use. If a Rebuild
// has put that snapshot in use less than age ago, fresh is true and the lease stays as it is.
func (l *lease) acquire(ctx context.Context, age time.Duration) (mine, fresh bool, shape string, err error) {
	reply, err := l.store.eval(ctx, leaseScript, []string{l.store.names.Record(), l.name},
		l.record.header, l.token, leaseLife.Milliseconds(), age.Milliseconds()).List()
	if err != nil {
		return false, false, "", err
	}
	kind, texts, err := parseReply(reply, 1, 2)
	if err != nil {
		return false, false, "", err
	}
	if l.held = kind == "mine"; l.held && l.invalid == "" && len(texts) == 2 {
		l.invalid = texts[1]
	}
	return l.held, kind == "fresh", texts[0], nil
}

// release ends the lease. After a switch the lease has ended already, unless it was renewed since.
// If release fails, or a delayed renewal comes after it, others wait until the lease expires.
func (l *lease) release() {
	if l.held {
		_ = l.store.eval(context.Background(), releaseScript, []string{l.name}, l.token)
	}
}
