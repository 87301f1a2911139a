package flight

import "time"

// A Patience says when a caller stops to wait for a load and takes a fallback.
type Patience[R any] struct {
	// SoftTimeout is how long a caller waits who has a fallback. 0: until its context
	// ends.
	SoftTimeout time.Duration
	// Own is the caller's own fallback, where the flight has none. It may be nil.
	Own func() (R, bool)
}

// SetFallback keeps fallback for the callers up to the last Decide.
func (f *Flight[R]) SetFallback(fallback R) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.fallback, f.fallbackAt = &fallback, f.decidedAt
}

// RereadFallback calls read until the fallback is one for everybody who has joined:
// what was read before a caller joined may be older than an invalidation that the
// caller knows of. It ends with the flight, and when read reports that there is
// nothing to fall back to any more.
func (f *Flight[R]) RereadFallback(read func() (R, bool)) {
	for {
		at, ok := f.fallbackMissing()
		if !ok {
			return
		}
		fallback, ok := read()
		f.group.mu.Lock()
		if ok {
			f.fallback, f.fallbackAt = &fallback, at
		} else {
			f.rereading = false
		}
		f.group.mu.Unlock()
		if !ok {
			return
		}
	}
}

// fallbackMissing returns the number of the last caller if the fallback was read
// before that caller joined.
func (f *Flight[R]) fallbackMissing() (joined int, missing bool) {
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	if f.over.Load() {
		return 0, false
	}
	if f.fallbackAt >= f.joined {
		f.rereading = false
		return 0, false
	}
	return f.joined, true
}

func (f *Flight[R]) fallbackFor(number int, p Patience[R]) (fallback R, ok bool) {
	f.group.mu.Lock()
	if f.fallback != nil && number <= f.fallbackAt {
		defer f.group.mu.Unlock()
		return *f.fallback, true
	}
	f.group.mu.Unlock()
	if p.Own != nil {
		return p.Own()
	}
	return fallback, false
}
