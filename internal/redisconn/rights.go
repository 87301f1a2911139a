package redisconn

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Rights checks which commands of a package the server refuses to the client's user. script is the check.lua of
// the package: it runs each of them on the only key of call, and returns the name and error of each that failed.
// Rights runs it by its hash and by its text, and subscribes each of channels on a connection of its own.
//
// A refused PUBLISH or channel is Weak and not Broken: a process that misses a message finds out later.
func Rights(ctx context.Context, rdb redis.UniversalClient, script *Script, call Call, channels ...string) (c Checkup) {
	var refused []any
	for _, by := range []struct {
		name string
		run  func(context.Context, redis.UniversalClient, Call) Reply
	}{{"EVALSHA", script.Run}, {"EVAL", script.RunWhole}} {
		found, err := Step(ctx, func(ctx context.Context) ([]any, error) { return by.run(ctx, rdb, call).List() })
		if err != nil {
			c.Broken = errors.Join(c.Broken, fmt.Errorf("%s: the key %q: %w", by.name, call.Keys[0], err))
			continue
		}
		refused = found
	}
	for i := 0; i+1 < len(refused); i += 2 {
		name, text := fmt.Sprint(refused[i]), fmt.Sprint(refused[i+1])
		text, _, _ = strings.Cut(text, " script: ") // where in the script it was
		if err := fmt.Errorf("%s: %s", name, text); name == "PUBLISH" {
			c.Weak = errors.Join(c.Weak, err)
		} else {
			c.Broken = errors.Join(c.Broken, err)
		}
	}
	for _, channel := range channels {
		c.Weak = errors.Join(c.Weak, hear(ctx, rdb, channel))
	}
	return c
}

// hear subscribes and unsubscribes a channel, and returns the error of the step that failed.
func hear(ctx context.Context, rdb redis.UniversalClient, channel string) error {
	_, err := Step(ctx, func(ctx context.Context) (struct{}, error) {
		conn := rdb.Subscribe(ctx)
		defer conn.Close()
		for _, step := range []struct {
			name string
			run  func(context.Context, ...string) error
		}{{"SUBSCRIBE", conn.Subscribe}, {"UNSUBSCRIBE", conn.Unsubscribe}} {
			err := step.run(ctx, channel)
			if err == nil {
				_, err = conn.ReceiveTimeout(ctx, checkTime)
			}
			if err != nil {
				return struct{}{}, fmt.Errorf("%s: the channel %q: %w", step.name, channel, err)
			}
		}
		return struct{}{}, nil
	})
	return err
}
