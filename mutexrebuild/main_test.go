package mutexrebuild_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m, redistest.Roles{"builder": builder, "crowd": crowd, "stampede": stampede})
}

// process makes what a child process works with: a group whose messages arrive.
func process(addr string, o opts) (g *group, end func(), err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})
	g, err = newGroup(rdb, o)
	if err != nil {
		return nil, nil, err
	}
	for !g.Live() {
		time.Sleep(time.Millisecond)
	}
	return g, func() { g.Close(); _ = rdb.Close() }, nil
}

// builder asks for one key: its arguments are the server, the lease, and the values
// that its loads bring, one after the other. Each load pauses at "loading" after it
// has read its value. At the end it says what it got.
func builder(p *redistest.Parent, args []string) error {
	lease, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	g, end, err := process(args[0], opts{Lease: lease, LoadTimeout: time.Minute, RedisTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer end()
	values, loads := args[2:], 0
	got, err := rebuild(context.Background(), g, "x", func(context.Context) (string, error) {
		loads++
		value := values[0]
		if len(values) > 1 {
			values = values[1:]
		}
		p.Pause("loading")
		return value, nil
	})
	p.Say("got %q %v, %d loads, %d refused", got, err, loads, g.Stats().Refused)
	return nil
}

// crowd has many callers ask for the keys it is told, all at once, and says each
// load and when all have their answers: its arguments are the server, how many
// callers, and what a load takes.
func crowd(p *redistest.Parent, args []string) error {
	takes, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	var callers int
	if _, err := fmt.Sscan(args[1], &callers); err != nil {
		return err
	}
	g, end, err := process(args[0], opts{Lease: 5 * time.Second, WaitBudget: 30 * time.Second, RedisTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer end()
	p.Say("ready")
	for line := p.Next(); line != "stop"; line = p.Next() {
		if line == "live" {
			for !g.Live() {
				time.Sleep(time.Millisecond)
			}
			p.Say("is live")
			continue
		}
		var all sync.WaitGroup
		for _, id := range strings.Fields(line) {
			for range callers {
				all.Go(func() {
					got, err := rebuild(context.Background(), g, id, func(context.Context) (string, error) {
						p.Say("load %s", id)
						time.Sleep(takes)
						return "the value of " + id, nil
					})
					if err != nil || got != "the value of "+id {
						p.Say("wrong: %q for %q, %v", got, id, err)
					}
				})
			}
		}
		all.Wait()
		p.Say("done")
	}
	s := g.Stats()
	p.Say("stats %d %d %d %d", s.Waits, s.Wakes, s.Polls, s.Unknown+s.GaveUp)
	return nil
}
