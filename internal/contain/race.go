package contain

import "context"

// A Result is what a function came to.
type Result[T any] struct {
	Value T
	Err   error // a *PanicError if the function did not return
}

// Race runs fn in a goroutine of its own and waits until fn is over or ctx ends.
//
// If fn is over first, Race returns its result and a nil late. Its error is a
// *PanicError, and its value zero, if it did not return. If both are over by the time Race looks, fn counts as first.
//
// If ctx ends first, Race returns the zero T, the cause of ctx, and the channel
// late, on which fn's result is sent once fn is over. So a result is either
// returned or sent, never both. late is buffered: nobody has to listen. A caller
// who needs the result listens in a goroutine, and whatever it does before it
// starts that goroutine comes before the late result.
//
// fn does not get ctx from Race: a fn that is to end with ctx has to look at it.
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
