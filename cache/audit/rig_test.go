package audit_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

func TestMain(m *testing.M) { redistest.Main(m, nil) }

var quiet = slog.New(slog.DiscardHandler)

// A table is a table of the database, with a primary and a replica, and a feed that tells each of its readers of
// every change.
type table struct {
	loads   atomic.Int64
	mu      sync.Mutex // guards what follows
	primary map[int64]string
	replica map[int64]string
	readers []chan feed.Change
}

func newTable(keys int64) *table {
	t := &table{primary: map[int64]string{}, replica: map[int64]string{}}
	for key := range keys {
		t.primary[key], t.replica[key] = "v1", "v1"
	}
	return t
}

// put commits a row, and tells the feeds of it.
func (t *table) put(key int64, value string) { t.commit(key, value, 0); t.tell(key) }

// commit commits a row of which no feed tells yet. The replica has it after lag.
func (t *table) commit(key int64, value string, lag time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	set := func(rows map[int64]string) {
		if rows[key] = value; value == "" {
			delete(rows, key)
		}
	}
	if set(t.primary); lag == 0 {
		set(t.replica)
		return
	}
	time.AfterFunc(lag, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		set(t.replica)
	})
}

func (t *table) tell(keys ...int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.readers {
		for _, key := range keys {
			r <- feed.Change{Table: "product", Kind: feed.Updated, New: feed.Row{"id": key}, Key: []string{"id"}}
		}
	}
}

func (t *table) read(rows map[int64]string, key int64) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loads.Add(1)
	if value, ok := rows[key]; ok {
		return value, nil
	}
	return "", cache.ErrNotFound
}

func (t *table) load(_ context.Context, key int64) (string, error) { return t.read(t.primary, key) }

func (t *table) loadReplica(_ context.Context, key int64) (string, error) {
	return t.read(t.replica, key)
}

// A reader is one reading of the table's feed.
type reader struct {
	changes chan feed.Change
	n       uint64
}

func (t *table) Name() string { return "table" }

func (t *table) Open(context.Context, feed.Position) (feed.Stream, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &reader{changes: make(chan feed.Change, 10_000)}
	t.readers = append(t.readers, r.changes)
	return r, nil
}

func (r *reader) Next(ctx context.Context) (feed.Batch, error) {
	select {
	case change := <-r.changes:
		r.n++
		return feed.Batch{Changes: []feed.Change{change}, Position: feed.Position{Text: "at", Order: r.n}}, nil
	case <-ctx.Done():
		return feed.Batch{}, ctx.Err()
	}
}

func (r *reader) Confirm(context.Context, feed.Position) error { return nil }

func (r *reader) Close() error { return nil }

// A process has a cache, and a Ledger with the same loader.
type process struct {
	*cache.Cache[int64, string]
	t      testing.TB
	ledger *audit.Ledger[int64, string]

	mu  sync.Mutex
	old []audit.StaleValue[int64, string]
}

type (
	options       = cache.Options
	ledgerOptions = audit.LedgerOptions[int64, string]
)

// open makes a process. Its Ledger follows the feed of the table, unless change says otherwise.
func open(t testing.TB, rdb redis.UniversalClient, load cache.Loader[int64, string], of *table, changes ...any) *process {
	t.Helper()
	p := &process{t: t}
	o := options{Name: "product", Logger: quiet, Jitter: -1, Local: localcache.Options{MaxBytes: 1 << 20}, RedisTimeout: 5 * time.Second}
	lo := ledgerOptions{Share: 1, Feed: of, Old: func(v audit.StaleValue[int64, string]) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.old = append(p.old, v)
	}}
	for _, change := range changes {
		switch change := change.(type) {
		case func(*options):
			change(&o)
		case func(*ledgerOptions):
			change(&lo)
		}
	}
	before := of.reading()
	p.Cache = redistest.Must(cache.New(rdb, load, o))
	t.Cleanup(func() { _ = p.Close() })
	p.ledger = redistest.Must(audit.NewLedger(p.Cache, load, lo))
	t.Cleanup(p.ledger.Close)
	redistest.Eventually(t, 20*time.Second, "messages arrive, and the feed is read", func() bool {
		return p.Stats().Live && (lo.Feed != feed.Feed(of) || of.reading() > before)
	})
	return p
}

func (t *table) reading() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.readers)
}

// hearing makes a Ledger without a feed.
func hearing(o *ledgerOptions) { o.Feed = nil }

func (p *process) gives(key int64, want string) {
	p.t.Helper()
	if got, err := p.Get(p.t.Context(), key); got != want || err != nil {
		p.t.Errorf("Get(%d): %q, %v, want %q", key, got, err, want)
	}
}

// counted fails unless there were so many old values after 1, 2, 10 and 60 s.
func (p *process) counted(want ...uint64) {
	p.t.Helper()
	s := p.Stats().Ledger
	for i, old := range []uint64{s.Old1s, s.Old2s, s.Old10s, s.Old60s} {
		if looked := []uint64{s.Looked1s, s.Looked2s, s.Looked10s, s.Looked60s}[i]; old != want[i] || looked < old {
			p.t.Errorf("%d old of %d looks after %v, want %d: %+v", old, looked, []string{"1s", "2s", "10s", "60s"}[i], want[i], s)
		}
	}
	if s.Failed > 0 {
		p.t.Errorf("looks have failed: %+v", s)
	}
}

// inBubble runs test with a Redis in a bubble, in which minutes pass at once.
func inBubble(t *testing.T, test func(t *testing.T, m *redistest.MiniServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Mini(t)
		t.Cleanup(synctest.Wait)
		test(t, m)
	})
}
