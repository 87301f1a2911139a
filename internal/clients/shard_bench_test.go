package clients

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/internal/redistest"
)

// BenchmarkMessagesOnACluster compares the messages of an invalidation by PUBLISH, which
// crosses the cluster bus, with SPUBLISH, for which each process listens to each master:
// what all servers together compute for it. Published messages are waited for.
func BenchmarkMessagesOnACluster(b *testing.B) {
	c := redistest.Cluster(b)
	c.Replicate()
	rdb := c.Client(b)
	channels := map[*redistest.Server]string{} // one on each master
	for i := 0; len(channels) < len(c.Nodes); i++ {
		name := fmt.Sprintf("{%d}", i)
		channels[c.Owner(name)] = name
	}
	keys := make([]string, 300)
	shard := map[string]string{}
	for i := range keys {
		keys[i] = fmt.Sprint("product:", i)
		shard[keys[i]] = channels[c.Owner(keys[i])]
	}
	for _, processes := range []int{1, 10, 50} {
		for _, command := range []string{"PUBLISH", "SPUBLISH"} {
			script := redis.NewScript("redis.call('DEL', KEYS[1]) redis.call('" + command + "', ARGV[1], KEYS[1]) return 1")
			b.Run(fmt.Sprint(processes, " processes/", command), func(b *testing.B) {
				var heard atomic.Int64
				var links []*redis.PubSub
				var reading sync.WaitGroup
				listen := func(link *redis.PubSub) {
					links = append(links, link)
					if _, err := link.Receive(b.Context()); err != nil {
						b.Fatal(err)
					}
					reading.Go(func() {
						for {
							if _, err := link.ReceiveMessage(b.Context()); err != nil {
								return
							}
							heard.Add(1)
						}
					})
				}
				for p := range processes {
					if command == "PUBLISH" {
						listen(c.Nodes[p%len(c.Nodes)].Client(b).Subscribe(b.Context(), "all"))
						continue
					}
					for node, channel := range channels {
						listen(node.Client(b).SSubscribe(b.Context(), channel))
					}
				}
				before := processorTime(b, c)
				for i := range b.N {
					key := keys[i%len(keys)]
					channel := "all"
					if command == "SPUBLISH" {
						channel = shard[key]
					}
					if err := script.Run(b.Context(), rdb, []string{key}, channel).Err(); err != nil {
						b.Fatal(err)
					}
				}
				redistest.Eventually(b, time.Minute, "all messages arrive", func() bool { return heard.Load() == int64(b.N*processes) })
				b.ReportMetric(float64((processorTime(b, c)-before).Microseconds())/float64(b.N), "server-µs/op")
				for _, link := range links {
					_ = link.Close()
				}
				reading.Wait()
			})
		}
	}
}

// processorTime is what all nodes have computed for.
func processorTime(b *testing.B, c *redistest.ClusterServers) (total time.Duration) {
	for _, node := range slices.Concat(c.Nodes, c.Replicas) {
		for line := range strings.Lines(node.Client(b).Info(b.Context(), "cpu").Val()) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name == "used_cpu_sys" || name == "used_cpu_user" {
				seconds, _ := strconv.ParseFloat(value, 64)
				total += time.Duration(seconds * float64(time.Second))
			}
		}
	}
	return total
}
