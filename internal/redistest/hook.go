package redistest

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Once makes a function that calls do when it is called first, and returns at once from then on,
// also while do runs. A sync.Once would have the second call wait for a mutex, for which the time
// of a bubble stands still: a do that sleeps would never end.
func Once(do func()) func() {
	var called atomic.Bool
	return func() {
		if called.CompareAndSwap(false, true) {
			do()
		}
	}
}

// EachCommand is a hook of a client: it is called with each command, those of pipelines
// too, before the command is sent. It may change the command's arguments.
type EachCommand func(redis.Cmder)

// DialHook leaves dialing as it is.
func (EachCommand) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is called for a lone command.
func (each EachCommand) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		each(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook is called for a pipeline.
func (each EachCommand) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			each(cmd)
		}
		return next(ctx, cmds)
	}
}
