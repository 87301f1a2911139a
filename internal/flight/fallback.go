package flight

import "time"

// Fallbacks
//
// A fallback is an old value that the runner found before its load. A caller may take
// it only if the caller had joined before it was read: whoever joins later may know of
// an invalidation that came after the read. So a fallback has a number, as a result
// does: callers up to fallbackAt may take it.
//
//	reader A                         writer             reader B
//	1 opens the flight
//	2 reads v1, past its TTL,
//	  and starts a slow load
//	                                 3 Invalidate
//	                                                    4 joins A's flight
//	                                                    5 SoftTimeout: v1 would be wrong
//
// B starts RereadFallback in step 4. Redis has no v1 any more, so B waits for the load.
// Had nobody invalidated, the second read would find v1 again, and B would take it.

// A Patience says when a caller stops waiting for a load and takes a fallback.
type Patience[R any] struct {
	// SoftTimeout is how long a caller with a fallback waits. 0: until its context
	// ends.
	SoftTimeout time.Duration
	// Since is when the wait began, for a caller who waits for several ids one after
	// another. Zero: with the call of Wait.
	Since time.Time
	// Own returns the caller's own fallback. It is asked if the flight has none for the
	// caller. nil: the caller has none.
	Own func() (R, bool)
}

// timer makes the timer of the first SoftTimeout.
func (p Patience[R]) timer() *time.Timer {
	if p.Since.IsZero() {
		return time.NewTimer(p.SoftTimeout)
	}
	return time.NewTimer(max(p.SoftTimeout-time.Since(p.Since), 0))
}

// SetFallback keeps a fallback for the callers up to the last Decide. It is called
// after the read that found the fallback, and that Decide was called before it.
func (f *Flight[R]) SetFallback(fallback R) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.setFallback(fallback, f.decidedAt)
}

// setFallback keeps a fallback for the callers up to number, unless there is one for
// more of them. The caller holds Group.mu.
func (f *Flight[R]) setFallback(fallback R, number int) {
	if f.fallback == nil || number >= f.fallbackAt {
		f.fallback, f.fallbackAt = &fallback, number
	}
}

// RereadFallback calls read until the fallback is good for everybody who has joined.
// It also returns when the flight ends, and when read reports that there is nothing to
// fall back to any more; the next caller who joins then has to start it again.
func (f *Flight[R]) RereadFallback(read func() (R, bool)) {
	returned := false
	defer func() {
		if !returned { // read panicked
			var none R
			f.reread(none, false, 0)
		}
	}()
	for {
		joined, missing := f.fallbackMissing()
		if !missing {
			break
		}
		fallback, ok := read()
		if !f.reread(fallback, ok, joined) {
			break
		}
	}
	returned = true
}

// fallbackMissing returns the number of the last caller, if the fallback is not good
// for that caller. If it is, or the flight is over, the rereading ends.
func (f *Flight[R]) fallbackMissing() (joined int, missing bool) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	missing = f.fallbackAt < f.joined && !f.over.Load()
	f.rereading = missing
	return f.joined, missing
}

// reread keeps what was read for the callers up to joined. If nothing was found, the
// rereading ends.
func (f *Flight[R]) reread(fallback R, found bool, joined int) (goOn bool) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if found {
		f.setFallback(fallback, joined)
	}
	f.rereading = found
	return found
}

// fallbackFor returns the fallback that the caller with number may take.
func (f *Flight[R]) fallbackFor(number int, p Patience[R]) (fallback R, ok bool) {
	f.group.mu.Lock()
	shared, sharedAt := f.fallback, f.fallbackAt
	f.group.mu.Unlock()
	switch {
	case shared != nil && number <= sharedAt:
		return *shared, true
	case p.Own != nil:
		return p.Own()
	}
	return fallback, false
}
