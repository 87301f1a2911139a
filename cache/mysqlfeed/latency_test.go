package mysqlfeed

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

func BenchmarkCommitToNext(b *testing.B) {
	r := newRig(b, product, "INSERT INTO product VALUES (1, '', '')")
	c := r.connect()
	feedtest.CommitToNext(b, r.open(r.feed(nil, Table{Name: "product"}), feed.Position{}), func() error {
		_, err := c.Execute("UPDATE product SET name = UUID()")
		return err
	})
}

// What the feed costs the server, for each update of a row of 200 bytes by one of two
// writers: bytes of log, which is there without the feed as well, and processor time.
func BenchmarkCost(b *testing.B) {
	for _, followed := range []bool{false, true} {
		b.Run(fmt.Sprintf("followed=%v", followed), func(b *testing.B) {
			r := newRig(b, product)
			r.fill(1000)
			ctx, cancel := context.WithCancel(context.Background())
			var follower sync.WaitGroup
			if followed {
				w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
				follower.Go(func() {
					for ctx.Err() == nil {
						_, _ = w.Next(ctx)
					}
				})
			}
			before, cpu := r.logBytes(), r.s.CPU()
			b.ResetTimer()
			var writers sync.WaitGroup
			for n := range 2 {
				writers.Go(func() {
					r.on(r.name, func(c *client.Conn) error {
						for i := range b.N / 2 {
							if _, err := c.Execute(fmt.Sprintf("UPDATE product SET name = REPEAT('%d', 160) WHERE id = %d", i/500%10, 2*(i%500)+n+1)); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
			writers.Wait()
			b.StopTimer()
			if followed {
				time.Sleep(200 * time.Millisecond) // until the last is read
			}
			b.ReportMetric(float64(r.logBytes()-before)/float64(b.N), "log-B/op")
			b.ReportMetric(float64((r.s.CPU()-cpu).Microseconds())/float64(b.N), "server-µs/op")
			cancel()
			follower.Wait()
		})
	}
}

func (r *rig) logBytes() (n int64) {
	r.on("", func(c *client.Conn) error {
		result, err := c.Execute("SHOW BINARY LOGS")
		for i := 0; err == nil && i < result.RowNumber(); i++ {
			size, _ := result.GetInt(i, 1)
			n += size
		}
		return err
	})
	return n
}

func BenchmarkCommitsBesideAFeed(b *testing.B) {
	r := newRig(b, product)
	r.fill(1000)
	feedtest.CommitRates(b, r.feed(nil, Table{Name: "product"}), func() func(int) error {
		c := r.connect()
		return func(i int) error {
			_, err := c.Execute(fmt.Sprintf("UPDATE product SET name = UUID() WHERE id = %d", i))
			return err
		}
	})
}
