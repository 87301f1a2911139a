package feedtest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// A Ledgers is a Database that Ledgers follow.
type Ledgers struct {
	Database
	// Ledger makes the feed of the n-th Ledger, which nothing else reads.
	Ledger func(n int) feed.Feed
	// Replica returns the loader of a replica that stands still, and a function by which it catches up.
	Replica func() (load cache.Loader[int64, string], follow func())
}

// A watched is a process with a Ledger, which has the cache's loader.
type watched struct {
	*cache.Cache[int64, string]
	mu  sync.Mutex
	old map[int64]audit.StaleValue[int64, string] // by key, with the highest After
}

func (d Ledgers) watch(t *testing.T, n int, name string, rdb redis.UniversalClient, load cache.Loader[int64, string]) *watched {
	t.Helper()
	w := &watched{old: map[int64]audit.StaleValue[int64, string]{}}
	var err error
	w.Cache, err = cache.New(rdb, load, cache.Options{Name: name, RedisTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	opened := make(chan struct{})
	ledger, err := audit.NewLedger(w.Cache, load, audit.LedgerOptions[int64, string]{
		Share: 1, Feed: openedFeed{d.Ledger(n), sync.OnceFunc(func() { close(opened) })},
		Keys: map[string]func(feed.Row) ([]int64, error){d.Table: nil},
		Old: func(v audit.StaleValue[int64, string]) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.old[v.Key].After < v.After {
				w.old[v.Key] = v
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ledger.Close)
	<-opened
	redistest.Eventually(t, 20*time.Second, "messages arrive", func() bool { return w.Stats().Live })
	return w
}

// An openedFeed says when it was opened.
type openedFeed struct {
	feed.Feed
	opened func()
}

func (f openedFeed) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	s, err := f.Feed.Open(ctx, from)
	if err == nil {
		f.opened()
	}
	return s, err
}

func (w *watched) found(key int64) audit.StaleValue[int64, string] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.old[key]
}

func gives(t *testing.T, c *watched, key int64, want string) {
	t.Helper()
	redistest.Eventually(t, 20*time.Second, fmt.Sprintf("key %d is %q", key, want), func() bool {
		got, err := c.Get(t.Context(), key)
		return err == nil && got == want
	})
}

// ALedgerFindsFaults plays five faults on the rows 1 to 5 of a table, whose names are empty. No process follows a feed
// but the Ledgers, which find each fault within a minute, and nothing else: row 6 changes too, by a Write.
func ALedgerFindsFaults(t *testing.T, d Ledgers) {
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	rdb := server.Client(t)
	replica, follow := d.Replica()
	a, b := d.watch(t, 0, "product", server.Client(t), d.Reader()), d.watch(t, 1, "product", proxy.Client(t), d.Reader())
	c := d.watch(t, 2, "replicated", server.Client(t), replica)
	for key := range int64(6) {
		for _, p := range []*watched{a, b, c} {
			if (p == c) == (key+1 == 2) {
				gives(t, p, key+1, "")
			}
		}
	}
	writes := func(p *watched, key int64, name string) {
		t.Helper()
		if err := p.Write(t.Context(), []int64{key}, func(context.Context) error { return d.Write(key, name) }); err != nil {
			t.Fatal(err)
		}
	}
	sql := func(key int64) {
		t.Helper()
		if err := d.Write(key, "new"); err != nil {
			t.Fatal(err)
		}
	}
	sql(1) // a writer that forgets
	writes(c, 2, "new")
	gives(t, c, 2, "") // the replica does not have it yet, and ReplicaLag is not set
	follow()
	sql(3)
	if err := rdb.Del(t.Context(), keys.OfCache("product").Value(0, "3")).Err(); err != nil { // by hand
		t.Fatal(err)
	}
	writes(a, 4, "new")
	if err := a.Set(t.Context(), 4, ""); err != nil { // an older value
		t.Fatal(err)
	}
	writes(a, 6, "new")
	for _, fault := range []struct {
		in   *watched
		key  int64
		tier cache.Tier // 0: any
	}{{a, 1, 0}, {b, 1, 0}, {c, 2, 0}, {a, 3, cache.TierLocal}, {b, 3, cache.TierLocal}, {a, 4, 0}} {
		redistest.Eventually(t, time.Minute, fmt.Sprintf("key %d is found", fault.key), func() bool { return fault.in.found(fault.key).After >= 2*time.Second })
		v := fault.in.found(fault.key)
		if v.Cached != "" || v.Source != "new" || v.Table != d.Table || fault.tier != 0 && v.Tier != fault.tier || time.Since(v.Since) < v.After {
			t.Errorf("key %d: %+v", fault.key, v)
		}
	}

	// A process that messages do not reach notices it within three seconds, so the change has to come before.
	name := ""
	redistest.Eventually(t, time.Minute, "a process that is cut off is found", func() bool {
		redistest.Eventually(t, 20*time.Second, "messages arrive", func() bool { return b.Stats().Live })
		gives(t, b, 5, name)
		proxy.DropMessages(true)
		defer proxy.DropMessages(false)
		name += "x"
		writes(a, 5, name)
		time.Sleep(1500 * time.Millisecond)
		return b.found(5).After > 0
	})
	if v := b.found(5); v.Tier != cache.TierLocal {
		t.Errorf("key 5: %+v", v)
	}
	for _, p := range []*watched{a, b} {
		if v := p.found(6); v.After > 0 {
			t.Errorf("of a key that nobody forgot: %+v", v)
		}
		t.Logf("%+v", p.Stats().Ledger)
	}
}

// SilentRows is how many rows ALedgerIsSilent needs, from 1 on.
const SilentRows = 600

// anyRow returns a row: one of five in half of the cases.
func anyRow() int64 { return rand.Int64N([]int64{5, SilentRows}[rand.N(2)]) + 1 }

// ALedgerIsSilent lets two processes write 600 rows, by Write and by SQL, which they follow, and read them. Their
// Ledgers find nothing. If this machine stood still meanwhile, a value may truly have been old for a second or two.
func ALedgerIsSilent(t *testing.T, d Ledgers) {
	length := redistest.Length(6*time.Second, time.Hour)
	meter := redistest.MeasureLag(t)
	server := redistest.Start(t)
	ps := []*watched{d.watch(t, 0, "product", server.Client(t), d.Reader()), d.watch(t, 1, "product", server.Client(t), d.Reader())}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for _, p := range ps {
		f := d.Feed()
		work.Go(func() { _ = cache.Follow(ctx, f, p.Route(d.Table, nil)) })
		work.Go(func() {
			for ctx.Err() == nil {
				_, _ = p.Get(ctx, anyRow())
				time.Sleep(rand.N(4 * time.Millisecond))
			}
		})
	}
	redistest.Eventually(t, 30*time.Second, "one follows", func() bool { return ps[0].Stats().Follow.Following || ps[1].Stats().Follow.Following })
	for n, end := 0, time.Now().Add(length); time.Now().Before(end); n++ {
		key, name := anyRow(), fmt.Sprint(n)
		change := func(context.Context) error { return d.Write(key, name) }
		err := change(ctx)
		if err == nil && n%2 == 0 {
			err = ps[n/2%2].Write(ctx, []int64{key}, change)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(200 * time.Millisecond))
	}
	var looked []uint64
	for _, p := range ps {
		looked = append(looked, p.Stats().Ledger.Looked1s)
	}
	for i, p := range ps {
		redistest.Eventually(t, 30*time.Second, "the last change is looked at", func() bool { return p.Stats().Ledger.Looked1s > looked[i] })
		s := p.Stats().Ledger
		t.Logf("the machine stood still for %v at the most: %+v", meter.Worst(), s)
		pause := meter.Allow(0)
		if length >= time.Hour && s.Looked60s < 1000 {
			t.Errorf("hardly looked: %+v", s)
		}
		if s.Old1s > 0 && pause < time.Second || s.Old2s > 0 && pause < 2*time.Second || s.Old10s+s.Old60s > 0 || s.Failed > 0 {
			t.Errorf("nothing was at fault: %+v, %+v", s, p.old)
		}
	}
}
