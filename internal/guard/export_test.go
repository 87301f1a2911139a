package guard

import "context"

// DoDegraded is Do for a call of class Degraded.
func (b *Breaker) DoDegraded(ctx context.Context, fn func(context.Context) error) error {
	return b.doClass(ctx, Degraded, fn)
}

// DoBackground is Do for a call of class Background.
func (b *Breaker) DoBackground(ctx context.Context, fn func(context.Context) error) error {
	return b.doClass(ctx, Background, fn)
}

func (b *Breaker) doClass(ctx context.Context, class Class, fn func(context.Context) error) error {
	p, err := b.Acquire(ctx, class)
	if err != nil {
		return err
	}
	return p.Run(ctx, fn)
}

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
	return b.queue.fits(Normal)
}
