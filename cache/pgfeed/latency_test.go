package pgfeed

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/cache/internal/feedtest"
)

func BenchmarkCommitToNext(b *testing.B) {
	r := newRig(b, product, "INSERT INTO product VALUES (1, '', '')")
	db := r.connect()
	feedtest.CommitToNext(b, r.open(r.feed(nil, Table{Name: "product"}), feed.Position{}), func() error {
		_, err := db.Exec(context.Background(), "UPDATE product SET name = clock_timestamp()::text")
		return err
	})
}

// What the feed costs the database, for each update of a row of 200 bytes by one of two
// writers: bytes of log, and processor time of the server.
func BenchmarkCost(b *testing.B) {
	for _, c := range []struct {
		name, level, identity string
		followed              bool
	}{
		{"wal_level=replica", "replica", "DEFAULT", false},
		{"wal_level=logical", "logical", "DEFAULT", false},
		{"followed", "logical", "DEFAULT", true},
		{"FULL", "logical", "FULL", false},
		{"FULL,followed", "logical", "FULL", true},
	} {
		b.Run(c.name, func(b *testing.B) {
			server.Get(b).Restart(b, "-c", "wal_level="+c.level, "-c", "full_page_writes=off")
			defer server.Get(b).Restart(b)
			r := newRig(b, product, "INSERT INTO product SELECT i, i::text, repeat('x', 160) FROM generate_series(1, 1000) i",
				"ALTER TABLE product REPLICA IDENTITY "+c.identity)
			ctx, cancel := context.WithCancel(context.Background())
			var follower sync.WaitGroup
			if c.followed {
				w := r.open(r.feed(nil, Table{Name: "product"}), feed.Position{})
				follower.Go(func() {
					for ctx.Err() == nil {
						if batch, err := w.Next(ctx); err == nil && batch.Position != (feed.Position{}) {
							_ = w.Confirm(ctx, batch.Position)
						}
					}
				})
			}
			lsn := "SELECT pg_current_wal_insert_lsn() - '0/0'"
			before, cpu := r.bytes(lsn), r.s.CPU()
			b.ResetTimer()
			var writers sync.WaitGroup
			for n := range 2 {
				writers.Go(func() {
					r.on(r.url("postgres"), func(db *pgx.Conn) error {
						for i := range b.N / 2 {
							if _, err := db.Exec(ctx, "UPDATE product SET name = repeat('y', 160) WHERE id = $1", 2*(i%500)+n+1); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
			writers.Wait()
			b.StopTimer()
			if c.followed {
				time.Sleep(200 * time.Millisecond) // until the last is read
			}
			b.ReportMetric((r.bytes(lsn)-before)/float64(b.N), "log-B/op")
			b.ReportMetric(float64((r.s.CPU()-cpu).Microseconds())/float64(b.N), "server-µs/op")
			cancel()
			follower.Wait()
		})
	}
}

func (r *rig) bytes(sql string) (n float64) {
	r.read(sql, &n)
	return n
}

func BenchmarkCommitsBesideAFeed(b *testing.B) {
	r := newRig(b, product, "INSERT INTO product SELECT i, i::text, repeat('x', 160) FROM generate_series(1, 1000) i")
	feedtest.CommitRates(b, r.feed(nil, Table{Name: "product"}), func() func(int) error {
		db := r.connect()
		return func(i int) error {
			_, err := db.Exec(context.Background(), "UPDATE product SET name = repeat('y', 160) WHERE id = $1", i)
			return err
		}
	})
}
