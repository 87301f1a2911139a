package redistest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClusterServers is a Redis Cluster of three masters, each with a third of the
// slots, and of their replicas after a call of Replicate.
type ClusterServers struct {
	t        testing.TB
	Nodes    []*Server // the first masters
	Replicas []*Server // that begin as such
}

// slots is the number of hash slots of every Redis Cluster.
const slots = 16384

// Cluster starts three masters, joins them and returns when all of them say that
// the cluster works; they take two seconds for that.
func Cluster(t testing.TB) *ClusterServers {
	t.Helper()
	return startCluster(t, func() []string { return nil }, nil)
}

// startCluster starts a cluster of nodes with the arguments args, which is called for each. bus
// returns the address at which the other nodes find the first; nil: that of clients.
func startCluster(t testing.TB, args func() []string, bus func() string) *ClusterServers {
	t.Helper()
	c := &ClusterServers{t: t}
	for range 3 {
		c.Nodes = append(c.Nodes, Start(t, append(args(), "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")...))
	}
	first := c.Nodes[0].Addr()
	if bus != nil {
		first = bus()
	}
	if err := c.join(first); err != nil {
		t.Fatalf("redistest: cluster: %v", err)
	}
	Eventually(t, 30*time.Second, "the nodes form a cluster", c.ok)
	return c
}

// join gives each node its slots and introduces it to the first.
func (c *ClusterServers) join(first string) error {
	n := len(c.Nodes)
	for i, node := range c.Nodes {
		// With epochs of their own the nodes need not settle whose view is newer.
		err := node.control.Do(context.Background(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err()
		if err == nil {
			err = node.control.ClusterAddSlotsRange(context.Background(), i*slots/n, (i+1)*slots/n-1).Err()
		}
		if err == nil {
			host, port, _ := net.SplitHostPort(first)
			err = node.control.ClusterMeet(context.Background(), host, port).Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", node.Addr(), err)
		}
	}
	return nil
}

func (c *ClusterServers) ok() bool {
	for _, node := range c.Nodes {
		info := node.control.ClusterInfo(context.Background()).Val()
		if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:3") {
			return false
		}
	}
	return true
}

// Client returns a client that knows all nodes, otherwise like that of
// [Server.Client]. It is closed when t ends.
func (c *ClusterServers) Client(t testing.TB, changes ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	o := &redis.ClusterOptions{
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, node := range c.Nodes {
		o.Addrs = append(o.Addrs, node.Addr())
	}
	for _, change := range changes {
		change(o)
	}
	client := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Owner returns the node that serves a key's slot.
func (c *ClusterServers) Owner(key string) *Server {
	ctx := context.Background()
	one := c.alive()[0]
	slot := one.control.ClusterKeySlot(ctx, key).Val()
	view := one.control.ClusterNodes(ctx).Val()
	for _, node := range c.alive() {
		if serves(view, id(node), slot) {
			return node
		}
	}
	c.t.Errorf("redistest: cluster: nobody serves slot %d", slot)
	return one
}

// Move moves the slot of a key, with all it holds, to another node. Clients find
// out by being redirected.
//
// The new owner takes a config epoch above all that it knows. If it does not know that of
// the old owner yet, from a move just before, its own is no higher:
//
//  1. the old owner tells the others that it serves the slot, with epoch 146
//  2. all are told that the new owner does, which takes epoch 145
//  3. the message of 1 arrives: 146 is newer, so the new owner gives the slot back
//  4. the old owner knows of 2 and sends clients to the new one, which sends them back,
//     for ever
//
// So the nodes have to agree before.
func (c *ClusterServers) Move(key string, to *Server) {
	Eventually(c.t, time.Minute, "all nodes know each other's epoch", c.agreed)
	from := c.Owner(key)
	slot := from.control.ClusterKeySlot(context.Background(), key).Val()
	if from == to {
		return
	}
	if err := migrate(from, to, slot); err != nil {
		c.t.Errorf("redistest: cluster: moving slot %d: %v", slot, err)
	}
	told := []*Server{to, from} // first to, so that the slot is never without an owner
	for _, node := range c.Masters() {
		if node != to && node != from {
			told = append(told, node)
		}
	}
	for _, node := range told {
		c.do(node, "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	}
	Eventually(c.t, time.Minute, "all nodes know where the slot is", func() bool {
		for _, node := range c.alive() {
			if view := node.control.ClusterNodes(context.Background()).Val(); !serves(view, id(to), slot) {
				return false
			}
		}
		return true
	})
}

// agreed tells whether all nodes give the masters the same config epochs, each its own.
func (c *ClusterServers) agreed() bool {
	var first map[string]string
	for i, node := range c.alive() {
		view := epochs(node.control.ClusterNodes(context.Background()).Val())
		if i == 0 {
			first = view
		}
		if !maps.Equal(view, first) {
			return false
		}
	}
	distinct := make(map[string]bool)
	for _, epoch := range first {
		distinct[epoch] = true
	}
	return len(distinct) == len(first)
}

// epochs returns the config epochs in the lines of CLUSTER NODES for masters that have not
// failed, by the masters' ids.
func epochs(view string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(view) {
		fields := strings.Fields(line)
		if len(fields) >= 8 && strings.Contains(fields[2], "master") && !strings.Contains(fields[2], "fail") {
			all[fields[0]] = fields[6]
		}
	}
	return all
}

// HalfMove begins to move the slot of a key to another node, and moves no key: whoever asks for one that
// is not at the old node is told to ask the new one. moveKey moves one.
func (c *ClusterServers) HalfMove(key string) (moveKey func(key string)) {
	from := c.Owner(key)
	to := c.Nodes[(slices.Index(c.Nodes, from)+1)%len(c.Nodes)]
	if err := begin(from, to, from.control.ClusterKeySlot(context.Background(), key).Val()); err != nil {
		c.t.Errorf("redistest: cluster: beginning to move the slot of %q: %v", key, err)
	}
	host, port, _ := net.SplitHostPort(to.Addr())
	return func(key string) { c.do(from, "MIGRATE", host, port, key, 0, 5000) }
}

// begin tells two nodes that a slot moves from the one to the other.
func begin(from, to *Server, slot int64) error {
	ctx := context.Background()
	if err := to.control.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from)).Err(); err != nil {
		return err
	}
	return from.control.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to)).Err()
}

// migrate copies the keys of a slot. Until it is done both nodes redirect the
// clients to each other, with ASK.
func migrate(from, to *Server, slot int64) error {
	ctx := context.Background()
	if err := begin(from, to, slot); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(to.Addr())
	for {
		keys, err := from.control.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
		if err != nil || len(keys) == 0 {
			return err
		}
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		if err := from.control.Do(ctx, args...).Err(); err != nil {
			return err
		}
	}
}

// serves tells whether a line of CLUSTER NODES gives the slot to a node. After
// eight fields it lists slots and ranges, such as 0-5460.
func serves(view, id string, slot int64) bool {
	for line := range strings.Lines(view) {
		fields := strings.Fields(line)
		if len(fields) < 9 || fields[0] != id {
			continue
		}
		for _, part := range fields[8:] {
			first, last, ok := strings.Cut(part, "-")
			if !ok {
				last = first
			}
			a, errA := strconv.ParseInt(first, 10, 64)
			b, errB := strconv.ParseInt(last, 10, 64)
			if errA == nil && errB == nil && a <= slot && slot <= b {
				return true
			}
		}
	}
	return false
}

func id(node *Server) string { return node.control.ClusterMyID(context.Background()).Val() }

func (c *ClusterServers) do(node *Server, args ...any) {
	if err := node.control.Do(context.Background(), args...).Err(); err != nil {
		c.t.Errorf("redistest: %v on %s: %v", args, node.Addr(), err)
	}
}
