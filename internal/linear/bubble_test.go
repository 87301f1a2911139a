package linear

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// simulate records a history of the clients in a bubble. Their processes are parts of this
// one, with a Redis that each command takes a while to reach and to come back from, and all
// of these times are the bubble's: how often two parties get between each other's steps does
// not depend on the machine, and a starved one only takes longer for the same history.
func simulate(t *testing.T, kind string) (history []op) {
	path := newBoard(t)
	db, err := openBoard(path)
	if err != nil {
		t.Fatal(err)
	}
	db.far = true
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * time.Millisecond) // for those who are on their way when their subject is closed
		dial := farAway(t)
		if kind == "feeds" {
			defer follow(t, dial(), db)()
		}
		var mu sync.Mutex // guards history
		var running sync.WaitGroup
		for process := range processes {
			work, end, err := workers(task{db: db, process: process, length: 4 * bubblePace.epoch, pace: bubblePace}, kind, calm, dial)
			defer end()
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range work {
				running.Go(func() {
					did, err := one(time.Now())
					if err != nil {
						t.Errorf("a client: %v", err)
					}
					mu.Lock()
					defer mu.Unlock()
					history = append(history, did...)
				})
			}
		}
		running.Wait()
	})
	return history
}

// follow follows the feed until its end is called.
func follow(t *testing.T, rdb *redis.Client, db *board) (end func()) {
	s, err := newCached(0, 0, rdb, db, calm)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.(cached).Follow(ctx, logFeed{db}) })
	return func() { cancel(); running.Wait(); s.close() }
}

// farAway starts a Redis at a distance, and makes clients of it.
func farAway(t *testing.T) (dial func() *redis.Client) {
	server := redistest.Mini(t)
	return func() *redis.Client {
		rdb := server.Client(t)
		rdb.AddHook(distance{})
		return rdb
	}
}

// distance is a hook that puts Redis so far away that others get in between the steps of
// anybody.
type distance struct{ pauses }

func (distance) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer travel(cmd)()
		return next(ctx, cmd)
	}
}

func (distance) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer travel(cmds[0])()
		return next(ctx, cmds)
	}
}

// travel is the way to Redis and, when it is called, the way back. It leaves out what go-redis
// sends on a new connection, for which others wait at a mutex: there a bubble's time stands
// still.
func travel(first redis.Cmder) (back func()) {
	if name := first.Name(); name == "hello" || name == "client" {
		return func() {}
	}
	time.Sleep(rand.N(time.Millisecond))
	return func() { time.Sleep(rand.N(time.Millisecond)) }
}
