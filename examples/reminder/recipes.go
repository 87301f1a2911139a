package main

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/lock"
)

var recipes = []stage.Recipe[scale]{
	{Name: "send, then set a flag", Naive: true, Reset: fill, Serve: sendThenFlag},
	{Name: "SET NX, then send; a process dies", Naive: true, Reset: fill, Serve: flagThenSend, Deadly: true},
	{Name: "lock.Once", Reset: fill, Serve: once},
	{Name: "lock.Once; a process dies", Reset: fill, Serve: once, Deadly: true},
}

// Both processes find a reminder before either has set its flag.
func sendThenFlag(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	sender := &sender{Process: p, scale: s}
	return sender.poll(ctx, func(ctx context.Context, id int) error {
		if err := sender.send(ctx, id); err != nil {
			return err
		}
		return sender.done(ctx, id)
	})
}

// A process that dies between the flag and the mail has said that it is sent.
func flagThenSend(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	sender := &sender{Process: p, scale: s}
	return sender.poll(ctx, func(ctx context.Context, id int) error {
		err := p.Redis.SetArgs(ctx, p.Prefix+":sent:"+strconv.Itoa(id), 1, redis.SetArgs{Mode: "NX", TTL: forAsLong}).Err()
		if err == redis.Nil { //nolint:errorlint // it is never wrapped
			return nil
		}
		if err != nil {
			return err
		}
		if err := sender.send(ctx, id); err != nil {
			return err
		}
		return sender.done(ctx, id)
	})
}

// The others wait for the one who sends, and go on when it is done. If it dies, the next sends. Had it died after the mail and before
// Once knew, the mail would go out twice: what must not be repeated at all, the receiver has to know by an id.
func once(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	locker, err := lock.New(p.Redis, lock.Options{Prefix: p.Prefix, Lease: s.Lease})
	if err != nil {
		return stage.Tally{}, err
	}
	defer locker.Close()
	sender := &sender{Process: p, scale: s}
	return sender.poll(ctx, func(ctx context.Context, id int) error {
		_, err := locker.Once(ctx, "reminder:"+strconv.Itoa(id), forAsLong, func(ctx context.Context) error {
			if err := sender.send(ctx, id); err != nil {
				return err
			}
			return sender.done(ctx, id)
		})
		return err
	})
}
