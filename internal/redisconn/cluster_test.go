package redisconn_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levee-go/levee/internal/redisconn"
	"github.com/levee-go/levee/internal/redistest"
)

// One node of three hangs. Without a lane and a circuit for each node, either all its
// readers lose a timeout each, or those of the other nodes are refused with them.
func TestANodeThatHangsCostsItsReadersALittleAndOthersNothing(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	rdb := cluster.Client(t)
	c := openConn(t, rdb, 300*time.Millisecond)
	byNode := map[string][]string{}
	for i := range 300 {
		key := fmt.Sprint("k", i)
		redistest.Eventually(t, 20*time.Second, "reads are answered", func() bool { return read(t.Context(), c, key) == nil })
		node, err := rdb.MasterForKey(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		byNode[node.Options().Addr] = append(byNode[node.Options().Addr], key)
	}
	for _, node := range cluster.Nodes { // or the others refuse all keys once one has been missing for two seconds
		if err := node.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
			t.Fatal(err)
		}
	}
	hung := cluster.Nodes[0]
	hung.Stop()
	defer hung.Cont()
	lost, hungKey := 0, byNode[hung.Addr()][0]
	for _, key := range byNode[hung.Addr()] {
		switch err := read(t.Context(), c, key); {
		case err == nil:
			t.Errorf("key %s: a node that hangs has answered", key)
		case !errors.Is(err, redisconn.ErrOutage):
			lost++
		}
	}
	delete(byNode, hung.Addr())
	for _, keys := range byNode {
		for _, key := range keys {
			if err := read(t.Context(), c, key); errors.Is(err, redisconn.ErrOutage) {
				t.Fatalf("a key of a node that is well: %v", err)
			}
		}
	}
	if n, now := c.Outages(); lost > 10 || n != 1 || !now {
		t.Errorf("%d reads lost a timeout, %d outages, one now: %v; want 10 at most, 1, true", lost, n, now)
	}
	hung.Cont()
	redistest.Eventually(t, 30*time.Second, "the node is asked again", func() bool { return read(t.Context(), c, hungKey) == nil })
}

// A master is killed, and its replica takes over. go-redis learns of that from a node that
// says MOVED, which the dead one does not, or after its ClusterStateReloadInterval, a
// minute. Catches a Conn that waits for that: with the outages of a cache, and without, as
// a Locker has it.
func TestADeadMastersKeysAreBackAsSoonAsItsReplicaServesThem(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	cluster.Replicate()
	rdb := cluster.Client(t)
	ofCache, ofLock := openConn(t, rdb, 250*time.Millisecond), redisconn.New(rdb, 250*time.Millisecond, 100)
	echoed := func() error {
		return ofLock.EvalOne(t.Context(), echo, redisconn.Call{Keys: []string{"k"}, Args: []any{"a", "b"}}, nil).Err()
	}
	redistest.Eventually(t, 20*time.Second, "reads are answered", func() bool { return read(t.Context(), ofCache, "k") == nil })
	redistest.Eventually(t, 20*time.Second, "scripts run", func() bool { return echoed() == nil })
	cluster.Lose("k")
	began := time.Now()
	redistest.Eventually(t, 10*time.Second, "scripts run again", func() bool { return echoed() == nil })
	redistest.Eventually(t, 10*time.Second, "reads are answered again", func() bool { return read(t.Context(), ofCache, "k") == nil })
	t.Logf("%v after the failover", time.Since(began))
}
