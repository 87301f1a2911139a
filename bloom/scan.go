package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/levee-go/levee/internal/wait"
)

// progressEvery is how many ids lie between two calls of Progress.
const progressEvery = 1 << 16

// scan passes the ids of a Rebuild to add, and their number to progress.
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
	if ctx.Err() != nil { // also if ids ended early without an error, as the lease was lost or the filter closed; see entire
		return ended(ctx)
	}
	progress(read)
	return nil
}

// entire yields ids and then, if ctx has ended meanwhile, the error of ctx: ids that end early
// because of ctx need not report it. scan cannot see that by itself, since its context is derived
// from ctx and ends a moment later. In that moment the ids that were read would count as all that
// exist, and the filter would deny the others.
func entire(ctx context.Context, ids iter.Seq2[string, error]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		more := true
		ids(func(id string, err error) bool {
			more = yield(id, err)
			return more
		})
		if more && ctx.Err() != nil {
			yield("", wait.Ended(ctx))
		}
	}
}

// untilClosed returns a context that ends with ctx, and with ErrClosed as its cause when life ends.
func untilClosed(ctx, life context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { end(ErrClosed) })
	return ctx, func() {
		stop()
		end(nil)
	}
}

// pause waits for d, or fails when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if wait.Sleep(ctx, d); ctx.Err() != nil {
		return ended(ctx)
	}
	return nil
}

// ended returns the error of a Rebuild whose context has ended: the context's error and its
// cause, or ErrClosed.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("bloom: Rebuild: %w", wait.Ended(ctx))
}
