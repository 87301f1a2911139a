package breaker

// AtOpening makes f run in the middle of the verdict that opens b: gobreaker's mutex
// is held, and b is about to be open for everybody.
func (b *Breaker) AtOpening(f func()) {
	changed := b.circuit.changed
	b.circuit.changed = func(from, to State) {
		if to == Open {
			f()
		}
		changed(from, to)
	}
}

// HasPlace reports whether a place of MaxConcurrent is free.
func (b *Breaker) HasPlace() bool {
	b.queue.mu.Lock()
	defer b.queue.mu.Unlock()
	return b.queue.fits(Normal, false)
}
