package breaker

import (
	"fmt"
	"strings"
	"time"
)

// A refusal is the ErrLimited of a call that nobody has left. Its text is made when it
// is read: under overload there are many that nobody reads.
type refusal struct {
	name           string // of the Breaker
	class          Class
	limit, waiting int

	full     bool          // MaxQueue calls wait
	waited   bool          // for all of QueueTimeout
	expected time.Duration // wait for the turn
	service  time.Duration // and for the function's end after that
	has      time.Duration // the time for both, or for the first alone if that is less
}

// refusal completes r for w. The caller holds q.mu.
func (q *queue) refusal(w *waiter, r refusal) error {
	r.name, r.class = q.name, w.call.Class
	if of := r.class; q.taken[of] < q.limits[of] {
		r.class = Normal
	}
	r.limit, r.waiting = q.limits[r.class], q.waiting[Normal].len+q.waiting[Degraded].len
	if r.expected > 0 {
		q.counts.shed++
	}
	if r.waited {
		r.has = q.longest
	}
	return &r
}

// Unwrap makes a refusal an ErrLimited.
func (r *refusal) Unwrap() error { return ErrLimited }

func (r *refusal) Error() string {
	var text strings.Builder
	text.WriteString(ErrLimited.Error())
	if r.name != "" {
		fmt.Fprintf(&text, ": %s", r.name)
	}
	fmt.Fprintf(&text, ": the %d places of %s are taken and %d calls wait", r.limit, limitNames[r.class], r.waiting)
	switch {
	case r.full:
		text.WriteString(", as many as MaxQueue allows")
	case r.waited:
		fmt.Fprintf(&text, "; this one has waited for %v", rounded(r.has))
	case r.expected > 0:
		fmt.Fprintf(&text, "; this one would wait for about %v and take %v, and has %v",
			rounded(r.expected), rounded(r.service), rounded(max(0, r.has)))
	}
	return text.String()
}

var limitNames = [...]string{Normal: "MaxConcurrent", Degraded: "MaxDegraded", Background: "MaxBackground"}

// rounded gives a duration three digits or so.
func rounded(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
