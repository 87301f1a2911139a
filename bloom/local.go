package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

// progressEvery is how many ids lie between two calls of Progress.
const progressEvery = 1 << 16

// A turn is one Rebuild, which others may be waiting for.
type turn struct {
	over chan struct{} // closed at its end
	err  error         // of the Rebuild; to be read when it is over
}

// Rebuild fills the filter anew from ids, all that exist, and then switches to the
// result at once. Until then the filter answers as before, and a Rebuild that
// fails changes nothing: if ids yields an error, panics (*PanicError) or calls
// Goexit (ErrGoexit), if ctx ends, or on Close (ErrClosed). It needs the memory of
// a second filter while it runs.
//
// One Rebuild runs at a time. Another call waits for it and returns nil when it has
// succeeded, without reading its own ids, or takes its turn when it has failed.
//
// ids is read on another goroutine, which Rebuild waits for even when ctx has
// ended: it is looked at between two ids, and ids itself should mind it. If more
// ids were added within MaxTransaction than are kept (131,072 at least), Rebuild
// first waits until those are committed, at most MaxTransaction.
//
// Of a shared filter one Rebuild runs at a time in all processes, and calls wait for
// one another as above. A process that dies in its Rebuild holds the others up for
// ten seconds; then the next one starts from the beginning. Rebuild first waits until
// the log of adds in Redis is MaxTransaction old, so also when the filter is new: a
// Redis that lost what was added looks like that. It fails with ErrUnavailable if
// Redis does not answer when it is needed, or loses the filter meanwhile. When Rebuild
// has returned nil, this process answers from the result, unless Redis has failed
// since.
func (f *Filter) Rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	if f == nil {
		return nil
	}
	life := f.life
	if f.shared != nil {
		life = f.shared.life
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(life, func() { cancel(ErrClosed) })()
	if f.shared != nil {
		return f.shared.rebuild(ctx, ids)
	}

	for {
		mine, running := f.take()
		if mine != nil {
			mine.err = <-contain.Go(func() error { return f.rebuild(ctx, ids) })
			f.give(mine)
			return mine.err
		}
		select {
		case <-running.over:
			if running.err == nil {
				return nil
			}
		case <-ctx.Done():
			return over(ctx)
		}
	}
}

// take returns a turn, or the one that is running.
func (f *Filter) take() (mine, running *turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.turn != nil {
		return nil, f.turn
	}
	f.turn = &turn{over: make(chan struct{})}
	return f.turn, nil
}

// give ends a turn. What it has left of the next generation goes with it.
func (f *Filter) give(t *turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.turn = nil, nil
	close(t.over)
}

func (f *Filter) rebuild(ctx context.Context, ids iter.Seq2[string, error]) error {
	next, err := f.begin(ctx)
	if err != nil {
		return err
	}
	if err := scan(ctx, ids, f.o.Progress, func(id string) { next.add(f.key.sum(id)) }); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == nil {
		return ErrClosed
	}
	f.current, f.settled = next, time.Now().Add(f.o.MaxTransaction)
	f.answering.Store(next)
	f.rebuilds.Add(1)
	return nil
}

// begin installs the next generation. From then on Adds go to both; what may be
// committed behind the scan's back and was added before, it takes over.
func (f *Filter) begin(ctx context.Context) (*generation, error) {
	f.number++ // ours alone while it is our turn
	next := newGeneration(f.o, f.key, f.number)

	f.mu.Lock() // no Add is halfway: each is in recent, or will see next
	current := f.current
	if current == nil {
		f.mu.Unlock()
		return nil, ErrClosed
	}
	f.next = next
	kept, wait := f.recent.take()
	f.mu.Unlock()

	for _, h := range kept {
		if current.contains(h) { // else it was removed since
			next.add(h)
		}
	}
	return next, pause(ctx, wait)
}

// scan reads ids.
func scan(ctx context.Context, ids iter.Seq2[string, error], progress func(uint64), add func(id string)) error {
	if progress == nil {
		progress = func(uint64) {}
	}
	read := uint64(0)
	for id, err := range ids {
		if err != nil {
			return fmt.Errorf("bloom: Rebuild after %d ids: %w", read, err)
		}
		if ctx.Err() != nil {
			break
		}
		add(id)
		if read++; read%progressEvery == 0 {
			progress(read)
		}
	}
	if ctx.Err() != nil { // also if ids ended early because of it, without saying so
		return over(ctx)
	}
	progress(read)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return over(ctx)
	}
}

// over is the error of a context that has ended, with its cause.
func over(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrClosed):
		return ErrClosed
	case errors.Is(cause, err):
		return fmt.Errorf("bloom: Rebuild: %w", cause)
	}
	return fmt.Errorf("bloom: Rebuild: %w: %w", err, cause)
}
