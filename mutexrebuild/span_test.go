package mutexrebuild

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A third of a cluster that hangs makes three reads in a row without an answer every
// few milliseconds. To give up the whole of it would treble what the source is asked.
func TestANodeThatHangsDoesNotShutTheGateOfItsCluster(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer single.Close()
	for what, c := range map[string]struct {
		rdb      redis.UniversalClient
		answered bool // now and then
		shut     bool
	}{
		"a node of a cluster": {cluster, true, false},
		"a cluster":           {cluster, false, true},
		"a server":            {single, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate(place{c.rdb, 100 * time.Millisecond}, nil)
				g.users, g.forget = 1, func() {}
				g.knock = func(context.Context, string) error { return errors.New("hangs") }
				for range 100 {
					for range 5 {
						g.unanswered("{p:x}:lock")
					}
					if c.answered {
						g.answered()
					}
					time.Sleep(10 * time.Millisecond)
				}
				if g.shut() != c.shut {
					t.Errorf("the gate is shut: %v", g.shut())
				}
				g.leave()
			})
		})
	}
}
