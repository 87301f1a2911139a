package redlock_test

import (
	"context"
	"fmt"

	miniredis "github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/lock"
	"github.com/levee-go/levee/lock/redlock"
)

// A Quorum takes its locks on a majority of servers that do not replicate each other.
func Example() {
	var nodes []redis.UniversalClient
	for range 3 { // in a program: three servers in three places
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		if err := server.Start(); err != nil {
			return
		}
		defer server.Close()
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		if err := rdb.Ping(context.Background()).Err(); err != nil {
			return
		}
		nodes = append(nodes, rdb)
	}
	quorum, err := redlock.New(nodes, lock.Options{})
	if err != nil {
		return
	}
	defer quorum.Close()
	lease, err := quorum.Lock(context.Background(), "ledger")
	if err != nil {
		return
	}
	fmt.Println(lease.Fence() > 0)
	fmt.Println(lease.Unlock(context.Background()))
	// Output:
	// true
	// <nil>
}
