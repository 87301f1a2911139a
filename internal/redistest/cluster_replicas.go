package redistest

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"
)

// Replicate gives each master a replica, which takes its place two to four seconds
// after it has died. It returns when they follow and all know of each other.
func (c *ClusterServers) Replicate() {
	c.t.Helper()
	host, port, _ := net.SplitHostPort(c.Nodes[0].Addr())
	for range c.Nodes {
		replica := Start(c.t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
		c.do(replica, "CLUSTER", "MEET", host, port)
		c.Replicas = append(c.Replicas, replica)
	}
	for i, replica := range c.Replicas {
		master := id(c.Nodes[i])
		Eventually(c.t, time.Minute, "a replica knows its master", func() bool {
			return replica.control.Do(context.Background(), "CLUSTER", "REPLICATE", master).Err() == nil
		})
	}
	Eventually(c.t, time.Minute, "all replicas follow", c.whole)
}

// alive returns the nodes that run.
func (c *ClusterServers) alive() []*Server {
	return slices.DeleteFunc(slices.Concat(c.Nodes, c.Replicas), func(s *Server) bool { return !s.current().running() })
}

// Masters returns the nodes that are masters now, in the eyes of one of them.
func (c *ClusterServers) Masters() (all []*Server) {
	view := c.alive()[0].control.ClusterNodes(context.Background()).Val()
	for _, node := range c.alive() {
		for line := range strings.Lines(view) {
			if fields := strings.Fields(line); len(fields) > 7 && fields[0] == id(node) && strings.Contains(fields[2], "master") {
				all = append(all, node)
			}
		}
	}
	return all
}

// whole tells whether all nodes run and every node sees three masters, each with a
// replica that follows.
func (c *ClusterServers) whole() bool {
	nodes := c.alive()
	if len(nodes) < len(c.Nodes)+len(c.Replicas) {
		return false
	}
	following := 0
	for _, node := range nodes {
		view := node.control.ClusterNodes(context.Background()).Val()
		if strings.Count(view, "master") != len(c.Nodes) || strings.Contains(view, "fail") || strings.Contains(view, "disconnected") {
			return false
		}
		if node.info("replication")["master_link_status"] == "up" {
			following++
		}
	}
	return following == len(c.Replicas)
}

// FailOver is Lose, and brings the dead one back as the replica of the new master.
func (c *ClusterServers) FailOver(key string) {
	c.t.Helper()
	old := c.Lose(key)
	old.Restart()
	Eventually(c.t, time.Minute, "the old master follows", c.whole)
}

// Lose kills the master of a key's slot, and waits until another has taken its place.
func (c *ClusterServers) Lose(key string) (old *Server) {
	c.t.Helper()
	old = c.Owner(key)
	before := id(old)
	old.Kill()
	slot := c.alive()[0].control.ClusterKeySlot(context.Background(), key).Val()
	Eventually(c.t, time.Minute, "a replica is promoted", func() bool {
		for _, node := range c.alive() { // all of them have to know
			if serves(node.control.ClusterNodes(context.Background()).Val(), before, slot) {
				return false
			}
		}
		return true
	})
	return old
}
