package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/levee-go/levee/examples/internal/stage"
	"github.com/levee-go/levee/lock"
)

var recipes = []stage.Recipe[scale]{
	{Name: "no lock", Naive: true, Reset: fresh, Serve: noLock},
	{Name: "a sync.Mutex in each process", Naive: true, Reset: fresh, Serve: mutex},
	{Name: "SET NX, DEL; a process dies", Naive: true, Reset: fresh, Serve: setNX, Deadly: true},
	{Name: "SET NX PX, DEL", Naive: true, Reset: fresh, Serve: setNXPX},
	{Name: "lock.Do", Reset: fresh, Serve: levee},
	{Name: "lock.Do; a process dies", Reset: fresh, Serve: levee, Deadly: true},
}

func noLock(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	d := open(p, s)
	return rush(ctx, s, d.claim), nil
}

// A mutex keeps the customers of this process apart. Those of the other one do not know of it.
func mutex(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	d := open(p, s)
	var mu sync.Mutex
	return rush(ctx, s, func(ctx context.Context, user int) error {
		mu.Lock()
		defer mu.Unlock()
		return d.claim(ctx, user)
	}), nil
}

// Without a TTL the lock of a process that dies stays for ever.
func setNX(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	d := open(p, s)
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	return rush(ctx, s, func(ctx context.Context, user int) error {
		return stage.SetNX(ctx, p.Redis, p.Prefix+":lock", 0, func() error { return d.claim(ctx, user) })
	}), nil
}

// With a TTL it does not. But a claim that takes longer than that runs beside the next one, and then deletes that one's lock.
func setNXPX(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	d := open(p, s)
	return rush(ctx, s, func(ctx context.Context, user int) error {
		return stage.SetNX(ctx, p.Redis, p.Prefix+":lock", s.Lease, func() error { return d.claim(ctx, user) })
	}), nil
}

// The lease is renewed as long as its holder lives, and no longer.
func levee(ctx context.Context, p *stage.Process, s scale) (stage.Tally, error) {
	d := open(p, s)
	locker, err := lock.New(p.Redis, lock.Options{Prefix: p.Prefix, Lease: s.Lease})
	if err != nil {
		return stage.Tally{}, err
	}
	defer locker.Close()
	return rush(ctx, s, func(ctx context.Context, user int) error {
		return locker.Do(ctx, "coupon:66", func(ctx context.Context, _ *lock.Lease) error { return d.claim(ctx, user) })
	}), nil
}

func open(p *stage.Process, s scale) *desk {
	var begun atomic.Int64
	return &desk{db: p.DB, scale: s, begin: func() {
		if begun.Add(1) == 5 && p.Doomed {
			p.Die()
		}
	}}
}

// rush has every user ask for a coupon.
func rush(ctx context.Context, s scale, claim func(ctx context.Context, user int) error) stage.Tally {
	return stage.Crowd(ctx, s.Customers, s.Users, claim)
}
