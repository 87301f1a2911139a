package linear

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/cachedebug"
	names "github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A cluster is the history of caches of one name on a Redis Cluster of three nodes. Each
// has a client of its own, as in a process of its own; every other one has a local tier.
// All of them read and write the same keys, of which key n is on node n%3.
type cluster struct {
	*testing.T
	servers *redistest.ClusterServers
	caches  []*cache.Cache[int, int64]
	ids     [clusterKeys + 3]string // by key; the last three are for besideTheDead
	rows    [clusterKeys + 3]atomic.Int64
	clock   atomic.Int64

	mu               sync.Mutex // guards what follows
	ops              []op
	refused          []op   // writes in the view of everybody that Redis did not confirm at once
	ended, confirmed [3]int // calls of writers for a key of each node
}

const (
	clusterCaches = 4
	clusterKeys   = 180 // so many that not all are asked for in the moment in which a node dies
)

// A key has several views, and in none of them may a read be stale. In that of everybody a
// write ends when Redis has confirmed it, and only caches without a local tier read: others
// follow when a message arrives. In that of a cache its own writes end when they return,
// confirmed or not.
func view(of, key int) int64 { return int64(of*1000 + key) }

const everybody = 0 // the view of the nth cache is n+1

func newCluster(t *testing.T) *cluster {
	h := &cluster{T: t, servers: redistest.Cluster(t)}
	for _, node := range h.servers.Nodes {
		h.goOnWithout(node)
	}
	h.nameKeys()
	for n := range clusterCaches {
		h.caches = append(h.caches, h.open(n))
	}
	return h
}

// goOnWithout has a node serve its keys while others are dead, of which it takes no notice:
// it might take those for dead that are slow on a busy machine.
func (h *cluster) goOnWithout(others *redistest.Server) {
	client := others.Client(h)
	redistest.Eventually(h, time.Minute, "a node is configured", func() bool {
		return client.ConfigSet(h.Context(), "cluster-require-full-coverage", "no").Err() == nil &&
			client.ConfigSet(h.Context(), "cluster-node-timeout", "60000").Err() == nil
	})
}

// nameKeys gives each key an id that its node has.
func (h *cluster) nameKeys() {
	client := h.servers.Client(h)
	n := 0
	for key := range h.ids {
		for h.ids[key] == "" {
			n++
			node, err := client.MasterForKey(h.Context(), names.OfCache("cluster").Value(0, strconv.Itoa(n)))
			if err != nil {
				h.Fatal(err)
			}
			if node.Options().Addr == h.servers.Nodes[key%3].Addr() {
				h.ids[key] = strconv.Itoa(n)
			}
		}
	}
}

func isLocal(n int) bool { return n%2 == 0 }

func (h *cluster) open(n int) *cache.Cache[int, int64] {
	rdb := h.servers.Client(h, func(o *redis.ClusterOptions) { o.ContextTimeoutEnabled = n < clusterCaches/2 })
	rdb.AddHook(pauses{})
	o := cache.Options{Name: "cluster", TTL: time.Minute, Logger: quiet, Local: small}
	if !isLocal(n) {
		o.Local.MaxBytes = -1
	}
	c, err := cache.NewFrom(rdb, cache.Source[int, int64]{
		Key: func(key int) string { return h.ids[key] },
		Load: func(_ context.Context, key int) (int64, error) {
			pause()
			defer pause()
			return h.rows[key].Load(), nil
		},
	}, o)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = c.Close() })
	return c
}

// work has callers of all caches read and write until stop is called.
func (h *cluster) work() (stop func()) {
	ctx, cancel := context.WithCancel(h.Context())
	var running sync.WaitGroup
	for n := range h.caches {
		for range 3 {
			running.Go(func() {
				for ctx.Err() == nil {
					if rand.IntN(4) > 0 {
						h.read(n, some(1+rand.IntN(4)))
					} else {
						h.write(n, some(2+rand.IntN(3)))
					}
					time.Sleep(rand.N(2 * time.Millisecond))
				}
			})
		}
	}
	return sync.OnceFunc(func() { cancel(); running.Wait() })
}

// some returns n keys. Two of them are always of different nodes: a call for the dead node
// alone is refused, and the invalidation that is then tried again would hide what the same
// key's others have left undone.
func some(n int) (keys []int) {
	first := rand.IntN(clusterKeys)
	keys = []int{first}
	for len(keys) < n {
		key := rand.IntN(clusterKeys)
		if len(keys) == 1 && key%3 == first%3 || slices.Contains(keys, key) {
			continue
		}
		keys = append(keys, key)
	}
	return keys
}

func (h *cluster) read(n int, keys []int) {
	call := h.clock.Add(1)
	versions, err := cached{h.caches[n]}.read(keys)
	end := h.clock.Add(1)
	if err != nil {
		h.Errorf("a read of %v: %v", keys, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, key := range keys {
		o := op{Client: int64(n), Key: view(n+1, key), Value: versions[i], Call: call, Return: end}
		h.ops = append(h.ops, o)
		if o.Key = view(everybody, key); !isLocal(n) {
			h.ops = append(h.ops, o)
		}
	}
}

// write changes keys, which Redis confirms or not.
func (h *cluster) write(n int, keys []int) {
	var done []op
	call := h.clock.Add(1)
	commit := func(context.Context) error {
		for _, key := range keys {
			done = append(done, op{Client: int64(n), Key: view(n+1, key), Value: h.rows[key].Add(1), Call: call, Write: true})
		}
		pause()
		return nil
	}
	var err error
	if c := h.caches[n]; rand.IntN(2) == 0 {
		err = c.Write(h.Context(), keys, commit)
	} else {
		_ = commit(h.Context())
		err = c.Invalidate(h.Context(), keys...)
	}
	end := h.clock.Add(1)
	if err != nil && !errors.Is(err, cache.ErrNotInvalidated) {
		h.Errorf("a write of %v: %v", keys, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, key := range keys {
		o := done[i]
		o.Return = end
		h.ops = append(h.ops, o)
		h.ended[key%3]++
		if o.Key = view(everybody, key); err != nil {
			h.refused = append(h.refused, o)
			continue
		}
		h.ops = append(h.ops, o)
		h.confirmed[key%3]++
	}
}

// await waits for n more of calls, for a key of each of some nodes.
func (h *cluster) await(what string, n int, calls *[3]int, nodes ...int) {
	h.mu.Lock()
	before := *calls
	h.mu.Unlock()
	redistest.Eventually(h, time.Minute, what, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !slices.ContainsFunc(nodes, func(node int) bool { return calls[node] < before[node]+n })
	})
}

// without has the callers go on for a while without a node, and then with it again.
func (h *cluster) without(dead int, kill bool) {
	h.await("all nodes confirm", 10, &h.confirmed, 0, 1, 2)
	h.read(1, everyKey()) // a node that comes back has what is old by then
	node := h.servers.Nodes[dead]
	if kill {
		node.Kill()
	} else {
		node.Stop()
	}
	h.await("calls for the dead node end", 50, &h.ended, dead)
	h.await("the living confirm", 10, &h.confirmed, (dead+1)%3, (dead+2)%3)
	h.besideTheDead(dead)
	if kill {
		node.Restart()
		h.goOnWithout(node)
	} else {
		node.Cont()
	}
	h.await("all nodes confirm again", 50, &h.confirmed, 0, 1, 2)
}

func everyKey() (keys []int) {
	for key := range clusterKeys {
		keys = append(keys, key)
	}
	return keys
}

// besideTheDead invalidates a key of each node. Only that of the dead one is pending then.
func (h *cluster) besideTheDead(dead int) {
	for n, c := range h.caches {
		var pending []int
		var err error
		end := time.Now().Add(time.Minute)
		for try := 0; try < 5 && !slices.Equal(pending, []int{dead}) && time.Now().Before(end); {
			var out int
			if pending, out, err = h.invalidateSpare(c); out == 1 { // else the machine is busy, and one that lives looks dead
				try++
			}
		}
		if !slices.Equal(pending, []int{dead}) || !errors.Is(err, cache.ErrNotInvalidated) {
			h.Errorf("node %d is dead, and what cache %d has invalidated is pending on %v: %v", dead, n, pending, err)
			return
		}
	}
}

// invalidateSpare invalidates the spare keys, and returns the nodes on which they are
// pending, and how many nodes are out.
func (h *cluster) invalidateSpare(c *cache.Cache[int, int64]) (pending []int, out int, err error) {
	err = c.Invalidate(h.Context(), clusterKeys, clusterKeys+1, clusterKeys+2)
	for node := range 3 {
		found, _ := cachedebug.Inspect(h.Context(), c, h.ids[clusterKeys+node])
		if found.Unconfirmed {
			pending = append(pending, node)
		}
		if found.Outage {
			out++
		}
	}
	return pending, out, err
}

// confirmAll waits until Redis has confirmed what it refused, without being asked again.
// From then on it is promised to everybody.
func (h *cluster) confirmAll() {
	for _, c := range h.caches {
		redistest.Eventually(h, time.Minute, "all invalidations are confirmed", func() bool { return c.Stats().Rebuild.Unconfirmed == 0 })
	}
	now := h.clock.Add(1)
	for _, o := range h.refused {
		o.Return = now
		h.ops = append(h.ops, o)
	}
	for n, c := range h.caches {
		h.read(n, everyKey())
		for key := range clusterKeys {
			redistest.Eventually(h, time.Minute, "local tiers follow", func() bool {
				version, err := c.Get(h.Context(), key)
				return err == nil && version == h.rows[key].Load()
			})
		}
	}
}

func (h *cluster) mustNotBeStale() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if bad := stale(h.ops); len(bad) > 0 {
		h.Fatalf("%d of %d operations read what was before a write, as cache %d, in the view and of the key %d", len(bad), len(h.ops), bad[0].Client, bad[0].Key)
	}
}

// On a cluster one node is paused, or killed, while writers change keys of several nodes
// at once. What the living have confirmed stays so, though the dead one makes the call
// fail. Once a write is confirmed, nobody reads what was before it. One that is not binds
// the process that made it, and everybody when it has been tried again.
//
// Catches calls that count as confirmed because one of the nodes has confirmed, and calls
// of which nothing counts as confirmed because one of them has not.
func TestNoReadIsStaleThoughANodeOfAClusterIsDead(t *testing.T) {
	t.Parallel() // it waits most of the time
	h := newCluster(t)
	stop := h.work()
	defer stop()
	began, insists := time.Now(), os.Getenv(insistent) != ""
	for n := 0; n < redistest.Pick(2, 40) || insists && time.Since(began) < 4*time.Minute; n++ {
		h.without(n%3, n%2 == 1 && !insists) // one that is killed forgets what is old
		h.mustNotBeStale()
	}
	stop()
	h.confirmAll()
	h.mustNotBeStale()
	h.Logf("%d operations, %d writes were not confirmed at once", len(h.ops), len(h.refused))
}
