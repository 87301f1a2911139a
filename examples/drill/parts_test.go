package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/examples/internal/servers"
)

func newStore(t *testing.T, rows int, load databaseLoad) *Catalogue {
	t.Helper()
	db, err := servers.OpenDatabase(t.Context(), "", "levee_drill_test")
	if err != nil {
		t.Fatal(err)
	}
	store, err := newCatalogue(t.Context(), db, rows, load)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func newRedis(t *testing.T) *redis.Client {
	t.Helper()
	server, err := servers.EmbeddedRedis("test")
	if err != nil {
		t.Fatal(err)
	}
	rdb := server.Client()
	t.Cleanup(func() {
		if err := errors.Join(rdb.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

func TestTheCatalogueHoldsWhatItPromises(t *testing.T) {
	store := newStore(t, 1000, databaseLoad{connections: 2})
	for _, id := range []int64{1, 500, 1000} {
		if p, err := store.Product(t.Context(), id); err != nil || p != originally(id) {
			t.Errorf("product %d: %+v, %v", id, p, err)
		}
	}
	if _, err := store.Product(t.Context(), 1001); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("an absent product: %v", err)
	}
	if version, err := store.Reprice(t.Context(), 500, 7); err != nil || version != 2 {
		t.Errorf("version %d, %v", version, err)
	}
	if p, err := store.Product(t.Context(), 500); err != nil || p.Price != 7 || p.Version != 2 {
		t.Errorf("after the update: %+v, %v", p, err)
	}
	ids := 0
	for _, err := range store.IDs(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids++
	}
	if ids != 1000 {
		t.Errorf("%d ids", ids)
	}
}

func TestTheCatalogueBehavesLikeALoadedDatabase(t *testing.T) {
	store := newStore(t, 10, databaseLoad{queryTime: 20 * time.Millisecond, connections: 2})
	began := time.Now()
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			if _, err := store.Product(t.Context(), int64(1+i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("ten queries of 20 ms over two connections took %v", took)
	}
	if n, peak := store.queries.Load(), store.peak.Load(); n != 10 || peak < 3 {
		t.Errorf("%d queries, %d at once", n, peak)
	}
}

func TestThePlainCacheKeepsWhatItLoaded(t *testing.T) {
	store, rdb := newStore(t, 10, databaseLoad{connections: 2}), newRedis(t)
	c := &plain{rdb: rdb, load: store.Product, prefix: "plain", ttl: func() time.Duration { return 300 * time.Millisecond }}
	get := func(version, queries int64) {
		t.Helper()
		if p, err := c.Get(t.Context(), 3); err != nil || p.ID != 3 || p.Version != version {
			t.Errorf("%+v, %v; want version %d", p, err, version)
		}
		if n := store.queries.Load(); n != queries {
			t.Errorf("%d queries, want %d", n, queries)
		}
	}
	get(1, 1)
	get(1, 1)
	err := c.Write(t.Context(), []int64{3}, func(ctx context.Context) error {
		_, err := store.Reprice(ctx, 3, 1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	get(2, 3)
	get(2, 3)
	// The embedded Redis lets the key expire by itself.
	for deadline := time.Now().Add(5 * time.Second); rdb.Exists(t.Context(), "plain:3").Val() == 1; {
		if time.Now().After(deadline) {
			t.Fatal("the key does not expire")
		}
	}
	get(2, 4)
}

func TestThePlainCacheSurvivesItsRedis(t *testing.T) {
	store := newStore(t, 10, databaseLoad{connections: 2})
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	c := &plain{rdb: rdb, load: store.Product, prefix: "plain", ttl: func() time.Duration { return time.Minute }}
	if p, err := c.Get(t.Context(), 3); err != nil || p.ID != 3 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestTheLedgerKnowsWhatAReaderHadToSee(t *testing.T) {
	writes := newLedger()
	begun := time.Now()
	writes.acknowledge(7, 2)
	if d := writes.overdue(7, 1, begun); d != 0 {
		t.Errorf("a read begun before the write is overdue by %v", d)
	}
	if d := writes.overdue(7, 1, time.Now().Add(time.Second)); d < time.Second {
		t.Errorf("a read begun a second later is overdue by %v", d)
	}
	later := time.Now().Add(time.Hour)
	writes.acknowledge(7, 4) // 3 is written, but its writer has not been told
	for version, stale := range map[int64]bool{1: true, 2: true, 3: true, 4: false, 5: false} {
		if d := writes.overdue(7, version, later); (d > 0) != stale {
			t.Errorf("version %d: overdue by %v", version, d)
		}
	}
	if d := writes.overdue(8, 1, later); d != 0 {
		t.Errorf("a product never written is overdue by %v", d)
	}
}

func TestBurstsAreTheQueriesOfOneExpiry(t *testing.T) {
	var times []time.Time
	for _, ms := range []int{0, 2, 4, 300, 600, 601} {
		times = append(times, time.Time{}.Add(time.Duration(ms)*time.Millisecond))
	}
	if got := bursts(times, 100*time.Millisecond); !slices.Equal(got, []int{3, 1, 2}) {
		t.Errorf("%v", got)
	}
}

func TestPercentilesAreNearestRanks(t *testing.T) {
	var seen tally
	if d := seen.percentile(99); d != 0 {
		t.Errorf("of nothing: %v", d)
	}
	for _, i := range rand.Perm(200) {
		seen.took = append(seen.took, time.Duration(i+1))
	}
	if p50, p99 := seen.percentile(50), seen.percentile(99); p50 != 100 || p99 != 198 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}

// An open load goes on while its requests hang: their users have been waiting since they were due.
func TestAnOpenLoadDoesNotWaitForAnswers(t *testing.T) {
	release := make(chan struct{})
	var all sync.WaitGroup
	all.Add(50)
	go func() {
		all.Wait()
		close(release)
	}()
	openLoad(t.Context(), 50, 50*time.Millisecond, func(int, time.Time) {
		all.Done()
		<-release
	})
}

func TestTheTableIsPlainTextOrMarkdown(t *testing.T) {
	m := row{step: "a step", queries: 12345, busiest: 89, peak: 67, p50: 250 * time.Microsecond, p99: 31 * time.Millisecond, wrong: 1, stale: 2, errors: 3, firstError: "why", note: "a note"}
	var text, markdown bytes.Buffer
	for _, r := range []*report{{out: &text, progress: io.Discard}, {out: &markdown, progress: io.Discard, markdown: true}} {
		r.scene("A scene")
		r.row(m)
	}
	if got := strings.Join(strings.Fields(text.String()), " "); !strings.HasSuffix(got, "a step 12,345 89 67 0.2 ms 31 ms 1 2 3 a note the first error: why") {
		t.Errorf("%q", got)
	}
	if got := markdown.String(); !strings.HasSuffix(got, "| a step | 12,345 | 89 | 67 | 0.2 ms | 31 ms | 1 | 2 | 3 |\n") {
		t.Errorf("%q", got)
	}
}
