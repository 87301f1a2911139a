package contain

import "context"

// A Result holds a function's value and error.
type Result[T any] struct {
	Value T
	Err   error // a *PanicError if the function did not return
}

// Race runs fn in a new goroutine and waits until fn is over or ctx ends.
//
// If fn is over first, Race returns its result and a nil late. If fn did not return, its value is zero and
// its error a *PanicError. If both are over by the time Race looks, fn counts as first.
//
// If ctx ends first, Race returns the zero T, the cause of ctx, and the channel
// late, on which fn's result is sent once fn is over. So a result is either
// returned or sent, never both. late is buffered: nobody has to receive from it. A
// caller who needs the result receives it in a goroutine; everything the caller does
// before it starts that goroutine happens before it gets the late result.
//
// Race does not pass ctx to fn: a fn that is to end with ctx has to watch it itself.
func Race[T any](ctx context.Context, fn func() (T, error)) (value T, late <-chan Result[T], err error) {
	done := make(chan Result[T], 1)
	go func() {
		var r Result[T]
		Call(func() error {
			r.Value, r.Err = fn()
			return r.Err
		}, func(err error) {
			r.Err = err
			done <- r
		})
	}()

	select {
	case r := <-done:
		return r.Value, nil, r.Err
	case <-ctx.Done():
	}
	// select chooses at random if both are over, so look again.
	select {
	case r := <-done:
		return r.Value, nil, r.Err
	default:
		return value, done, context.Cause(ctx)
	}
}
