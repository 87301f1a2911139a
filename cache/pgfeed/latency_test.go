package pgfeed

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache"
)

// From the moment a commit has returned until the follower has the change, with one writer
// that waits for it each time. It may be negative: the change may be there first.
func BenchmarkCommitToNext(b *testing.B) {
	r := newRig(b, product, "INSERT INTO product VALUES (1, '', '')")
	w := r.open(r.feed(nil, Table{Name: "product"}), cache.Position{})
	w.next(0)
	db, err := pgx.Connect(context.Background(), r.url("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(context.Background())
	var took []time.Duration
	for b.Loop() {
		told := make(chan time.Time, 1)
		go func() {
			w.next(1)
			told <- time.Now()
		}()
		if _, err := db.Exec(context.Background(), "UPDATE product SET name = clock_timestamp()::text"); err != nil {
			b.Fatal(err)
		}
		committed := time.Now()
		took = append(took, max(0, (<-told).Sub(committed)))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
