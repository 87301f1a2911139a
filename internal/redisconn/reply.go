package redisconn

import (
	"fmt"

	"github.com/redis/go-redis/v9"
)

// A Reply is the value or the error of a call.
type Reply struct {
	value any
	err   error
}

// replyOf returns the reply of a command that is over.
func replyOf(cmd *redis.Cmd) Reply {
	value, err := cmd.Result()
	return Reply{value, err}
}

// ReplyOr returns r, or a Reply with err if err is not nil.
func ReplyOr(r Reply, err error) Reply {
	if err != nil {
		return Reply{err: err}
	}
	return r
}

// Err returns the error of Redis, or why Redis gave no reply; nil if there is a value.
func (r Reply) Err() error { return r.err }

// Result returns the value as go-redis has it: an int64, a string, a []any, or nil with an error.
func (r Reply) Result() (any, error) { return r.value, r.err }

// Int returns a value that is a number, or an error.
func (r Reply) Int() (int64, error) { return as[int64](r) }

// Text returns a value that is a string, or an error.
func (r Reply) Text() (string, error) { return as[string](r) }

// List returns a value that is an array, or an error.
func (r Reply) List() ([]any, error) { return as[[]any](r) }

func as[T any](r Reply) (value T, err error) {
	value, ok := r.value.(T)
	if r.err == nil && !ok {
		return value, fmt.Errorf("levee: redis replied %.60q, which is not a %T", fmt.Sprint(r.value), value)
	}
	return value, r.err
}

// FirstError returns the first error among replies.
func FirstError(replies []Reply) error {
	for _, reply := range replies {
		if reply.err != nil {
			return reply.err
		}
	}
	return nil
}
