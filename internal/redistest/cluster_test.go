package redistest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestAClusterServesAllSlotsAndRefusesToMixThem(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	client, ctx := c.Client(t), t.Context()
	owners := make(map[*Server]bool)
	for i := range 50 {
		key := "k" + strconv.Itoa(i)
		mustSet(t, client, key, "v")
		owners[c.Owner(key)] = true
	}
	if len(owners) != 3 {
		t.Errorf("%d nodes own keys", len(owners))
	}
	err := redis.NewScript("return redis.call('GET', KEYS[2])").Run(ctx, client, []string{"k1", "k2"}).Err()
	if err == nil || !strings.Contains(err.Error(), "same slot") {
		t.Errorf("a script over two slots: %v", err)
	}

	// A key that moves is found by a client that does not know, and so is its
	// node when it starts anew.
	from := c.Owner("k7")
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	c.Move("k7", to)
	if c.Owner("k7") != to || client.Get(ctx, "k7").Val() != "v" || client.Get(ctx, "k8").Val() != "v" {
		t.Errorf("k7 is %q at %s", client.Get(ctx, "k7").Val(), c.Owner("k7").Addr())
	}
	to.Restart()
	Eventually(t, 20*time.Second, "the cluster works again", c.ok)
	if n, err := client.Exists(ctx, "k7").Result(); n != 0 || err != nil {
		t.Errorf("got %d, %v from a node started anew", n, err)
	}
}

// One move follows another at once, so that the nodes have hardly heard of the last one.
// Without the wait of Move one slot in some hundred is served by nobody in the end: its old
// and its new owner send clients to each other.
func TestEverySlotThatMovedHasOneOwner(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	client, ctx := c.Client(t), t.Context()
	moved := make(map[string]*Server)
	for i := range 100 {
		key, to := "k"+strconv.Itoa(i), c.Nodes[i%3]
		if to == c.Owner(key) {
			to = c.Nodes[(i+1)%3]
		}
		mustSet(t, client, key, "v")
		c.Move(key, to)
		moved[key] = to
	}
	Eventually(t, time.Minute, "all nodes know each other's epoch", c.agreed) // no message is on its way
	for key, to := range moved {
		slot := client.ClusterKeySlot(ctx, key).Val()
		for _, node := range c.Nodes {
			if !serves(node.control.ClusterNodes(ctx).Val(), id(to), slot) {
				t.Errorf("%s does not know that %s serves slot %d", node.Addr(), to.Addr(), slot)
			}
		}
		if value, err := client.Get(ctx, key).Result(); value != "v" || err != nil {
			t.Errorf("%s: %q, %v", key, value, err)
		}
	}
}

func TestAReplicaTakesOverInACluster(t *testing.T) {
	Long(t) // ten seconds, of which it waits most
	t.Parallel()
	c := Cluster(t)
	c.Replicate()
	rdb := c.Client(t)
	if err := rdb.Set(t.Context(), "a", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := c.Owner("a")
	if n := old.Client(t).Wait(t.Context(), 1, 10*time.Second).Val(); n != 1 {
		t.Errorf("%d replicas", n)
	}
	c.FailOver("a")
	if c.Owner("a") == old || len(c.Masters()) != 3 {
		t.Error("the dead master serves the slot")
	}
	Eventually(t, 20*time.Second, "the value is there", func() bool { return rdb.Get(t.Context(), "a").Val() == "x" })
	other := c.Masters()[0]
	if other == c.Owner("a") {
		other = c.Masters()[1]
	}
	c.Move("a", other)
	if c.Owner("a") != other || rdb.Get(t.Context(), "a").Val() != "x" {
		t.Error("the slot has not moved with its value")
	}
}
