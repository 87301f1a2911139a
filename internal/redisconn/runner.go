package redisconn

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/levee-go/levee/internal/contain"
)

// ErrTimeout reports that the caller left an operation behind when its time was
// up. Whether the operation took effect is unknown.
var ErrTimeout = errors.New("levee: redis did not answer in time")

// ErrBusy reports that an operation was not started, because too many that were
// left behind still wait for Redis.
var ErrBusy = errors.New("levee: too many redis operations without an answer")

// A Runner bounds the time and the number of operations. It may be used
// concurrently.
//
// A go-redis client with its default options ignores a context's deadline while
// it reads, and repeats an operation that timed out: against a server that hangs,
// a call with 100 ms to live comes back after 5 s or more. No option of the client
// makes a cancelled context interrupt a read. So a Runner runs each operation on a
// goroutine that the caller can leave behind, and bounds how many there are.
type Runner struct {
	timeout time.Duration
	limit   int64
	running atomic.Int64
}

// NewRunner makes a Runner for operations of at most timeout, of which at most
// limit run at a time.
func NewRunner(timeout time.Duration, limit int) *Runner {
	return &Runner{timeout: timeout, limit: int64(limit)}
}

// Enter counts an operation that its caller runs itself and that comes back in
// time. It reports false at the limit; after true the caller owes a Leave.
func (r *Runner) Enter() bool {
	if r.running.Add(1) > r.limit {
		r.running.Add(-1)
		return false
	}
	return true
}

// Leave ends an operation that Enter counted.
func (r *Runner) Leave() { r.running.Add(-1) }

// Run runs op and returns its result, or an error as soon as ctx ends or the time
// is up, whatever op does; the context given to op ends at the same moment. If op
// panicked, the error is a *contain.PanicError. The result of an op that was left
// behind goes to late, unless late is nil. Run does not start op when ctx has ended.
func Run[T any](ctx context.Context, r *Runner, op func(context.Context) (T, error), late func(T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	if !r.Enter() {
		return none, ErrBusy
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, ErrTimeout)
	defer cancel()
	value, left, err := contain.Race(ctx, func() (T, error) {
		defer r.Leave()
		return op(ctx)
	})
	if left != nil && late != nil {
		go func() {
			result := <-left
			late(result.Value, result.Err)
		}()
	}
	return value, err
}
