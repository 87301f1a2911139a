package mysqlfeed

import (
	"slices"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/levee-go/levee/cache"
)

// From the moment a commit has returned until the follower has the change, with one writer
// that waits for it each time. It may be negative: the change may be there first.
func BenchmarkCommitToNext(b *testing.B) {
	r := newRig(b, product, "INSERT INTO product VALUES (1, '', '')")
	w := r.open(r.feed(nil, Table{Name: "product"}), cache.Position{})
	w.next(0)
	var took []time.Duration
	r.on(r.name, func(c *client.Conn) error {
		for b.Loop() {
			told := make(chan time.Time, 1)
			go func() {
				w.next(1)
				told <- time.Now()
			}()
			if _, err := c.Execute("UPDATE product SET name = UUID()"); err != nil {
				return err
			}
			committed := time.Now()
			took = append(took, max(0, (<-told).Sub(committed)))
		}
		return nil
	})
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
