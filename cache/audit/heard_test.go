package audit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/cache/feed"
	"github.com/levee-go/levee/internal/redistest"
)

// A Ledger without a feed hears of all that its process changes, and of a Follow in it.
func TestALedgerHearsOfItsOwnWrites(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(9)
		p := open(t, m.Client(t), rows.load, rows, hearing)
		other := open(t, m.Client(t), rows.load, rows, hearing)
		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		defer following.Wait()
		defer cancel()
		for i, call := range []func() error{
			func() error { return p.Invalidate(ctx, 1) },
			func() error { return p.Write(ctx, []int64{2}, func(context.Context) error { return nil }) },
			func() error {
				return p.Write(ctx, nil, func(ctx context.Context) error { return cache.Also(ctx, p.Changes(3)) })
			},
			func() error { return p.Set(ctx, 4, "v1") },
			func() error { return p.Expire(ctx, 5) },
			func() error {
				return cache.Write(ctx, func(context.Context) error { return nil }, p.Changes(6), other.Changes(6))
			},
			func() error {
				time.AfterFunc(time.Second, func() { rows.tell(7) })
				following.Go(func() { _ = p.Follow(ctx, rows) })
				time.Sleep(2 * time.Second)
				return nil
			},
		} {
			if err := call(); err != nil {
				t.Error(err)
			}
			if n := p.Stats().Ledger.Changes; n != uint64(i+1) {
				t.Fatalf("call %d: it has heard of %d changes", i, n)
			}
		}
		if n := other.Stats().Ledger.Changes; n != 1 {
			t.Errorf("another process has heard of %d changes, want its own", n)
		}
		cancel()
		p.ledger.Close()
		if err := p.Invalidate(t.Context(), 1); err != nil || p.Stats().Ledger.Changes != 7 {
			t.Errorf("a closed Ledger hears: %v", err)
		}
	})
}

// The memory is bounded: what finds no place is counted, and looked at by nobody. A key that changes all the time takes
// one place, and is looked at nevertheless.
func TestKeysWithoutAPlaceAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3000)
		p := open(t, m.Client(t), rows.load, rows)
		for range 3 { // the same 600 keys
			for key := range int64(600) {
				rows.tell(key)
			}
		}
		synctest.Wait()
		if s := p.Stats().Ledger; s.Changes != 1800 || s.Skipped != 0 {
			t.Errorf("got %+v", s)
		}
		for key := range int64(3000) {
			rows.tell(key)
		}
		synctest.Wait()
		if s := p.Stats().Ledger; s.Skipped != 3000-1024 {
			t.Errorf("got %+v", s)
		}
		time.Sleep(2 * time.Minute)
		before := p.Stats().Ledger
		if before.Looked1s != 2*1024 { // in two tiers
			t.Errorf("got %+v", before)
		}
		for range 200 { // all keys have had their looks, so there is room again
			rows.tell(2999)
			time.Sleep(300 * time.Millisecond)
		}
		if s := p.Stats().Ledger; s.Skipped != before.Skipped || s.Looked1s < before.Looked1s+2*30 {
			t.Errorf("got %+v, before %+v", s, before)
		}
	})
}

// A key whose old value is replaced by another before it can count takes no place for ever.
func TestAWatchEndsThoughEachLookDiffers(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(1)
		p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Local.MaxBytes = -1; o.TTL = time.Hour })
		p.gives(0, "v1")
		rows.put(0, "v2")
		for range 15 {
			time.Sleep(870 * time.Millisecond) // not at the time of a look
			if err := p.Set(t.Context(), 0, "v1"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(2 * time.Minute) // the last one stays, and nobody looks
		if s := p.Stats().Ledger; s.Skipped != 1 || s.Looked1s+s.Failed > 0 {
			t.Errorf("got %+v", s)
		}
		rows.tell(0)
		time.Sleep(2 * time.Minute)
		p.counted(1, 1, 1, 1)
	})
}

// All processes follow the same keys.
func TestALedgerFollowsAShareOfTheKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(0)
		share := func(o *ledgerOptions) { o.Share = 0.25 }
		a, b := open(t, m.Client(t), rows.load, rows, share), open(t, m.Client(t), rows.load, rows, share)
		for key := range int64(2000) {
			rows.tell(key)
		}
		synctest.Wait()
		if n := a.Stats().Ledger.Changes; n < 400 || n > 600 || b.Stats().Ledger.Changes != n {
			t.Errorf("%d and %d of 2000 are followed", n, b.Stats().Ledger.Changes)
		}
	})
}

// An unsteady feed fails now and then, and so does a route.
type unsteady struct {
	*table
	opens atomic.Int64
}

func (u *unsteady) Open(ctx context.Context, from feed.Position) (feed.Stream, error) {
	if u.opens.Add(1) < 3 {
		return nil, errors.New("not granted")
	}
	return u.table.Open(ctx, from)
}

// A Ledger goes on after failures of its feed, of its user's functions and of the source.
func TestALedgerGoesOnAfterFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3)
		source := &unsteady{table: rows}
		var panics atomic.Int64
		p := open(t, m.Client(t), rows.load, rows, func(o *ledgerOptions) {
			o.Feed = source
			o.Keys = map[string]func(feed.Row) ([]int64, error){"product": func(row feed.Row) ([]int64, error) {
				if panics.Add(1) == 1 {
					panic("no such luck")
				}
				key, err := row.Int("id")
				return []int64{key, key + 1}, err
			}}
			o.Equal = func(a, b string) bool {
				if panics.Add(1) < 4 {
					panic("no such luck")
				}
				return a == b
			}
		})
		time.Sleep(time.Second)
		rows.tell(1) // the route panics
		time.Sleep(time.Second)
		p.gives(1, "v1")
		rows.put(1, "v2")
		time.Sleep(5 * time.Second)
		s := p.Stats().Ledger
		if s.Failed < 4 || s.Changes != 2 || s.Old2s == 0 || source.opens.Load() != 3 {
			t.Errorf("%d opens, %+v", source.opens.Load(), s)
		}
	})
}

// A consumed feed gives each change to one reader.
type consumed struct{ *table }

func (consumed) Consumes() bool { return true }

func TestALedgerRefusesWhatCannotWork(t *testing.T) {
	rows := newTable(3)
	source := cache.Source[int64, string]{Load: rows.load, Key: func(key int64) string { return fmt.Sprint("p", key) }}
	plain := redistest.Must(cache.New(nil, rows.load, options{Name: "plain", Logger: quiet}))
	named := redistest.Must(cache.NewFrom(nil, source, options{Name: "named", Logger: quiet}))
	defer plain.Close()
	defer named.Close()
	route := func(feed.Row) ([]int64, error) { return nil, nil }
	for i, test := range []struct {
		c    *cache.Cache[int64, string]
		load cache.Loader[int64, string]
		o    ledgerOptions
		says string
	}{
		{plain, nil, ledgerOptions{}, "load"},
		{plain, rows.load, ledgerOptions{Share: 2}, "Share"},
		{plain, rows.load, ledgerOptions{Share: -1}, "Share"},
		{plain, rows.load, ledgerOptions{Feed: consumed{rows}}, "Feed"},
		{plain, rows.load, ledgerOptions{Feed: rows, Keys: map[string]func(feed.Row) ([]int64, error){}}, "Keys names no table"},
		{named, rows.load, ledgerOptions{}, "Feed"},
		{named, rows.load, ledgerOptions{Feed: rows}, "Keys"},
		{named, rows.load, ledgerOptions{Feed: rows, Keys: map[string]func(feed.Row) ([]int64, error){"a": route, "b": nil}}, "Keys"},
	} {
		if _, err := audit.NewLedger(test.c, test.load, test.o); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%d: %v", i, err)
		}
	}
	redistest.Must(audit.NewLedger(named, rows.load, ledgerOptions{Feed: rows, Keys: map[string]func(feed.Row) ([]int64, error){"a": route}})).Close()
	first := redistest.Must(audit.NewLedger(plain, rows.load, ledgerOptions{}))
	if _, err := audit.NewLedger(plain, rows.load, ledgerOptions{}); err == nil {
		t.Error("two Ledgers hear of one cache")
	}
	first.Close()
	redistest.Must(audit.NewLedger(plain, rows.load, ledgerOptions{})).Close()
}

// An odd key is one whose text its type does not take back.
type odd string

func (o odd) MarshalText() ([]byte, error) { return []byte(o), nil }

func (o *odd) UnmarshalText(text []byte) error { panic("no such luck") }

// A writer does not fail because of the Ledger that learns of its change.
func TestAWriterIsSparedAPanicOfTheLedger(t *testing.T) {
	load := func(context.Context, odd) (string, error) { return "v1", nil }
	c := redistest.Must(cache.New(nil, load, options{Name: "odd", Logger: quiet}))
	defer c.Close()
	defer redistest.Must(audit.NewLedger(c, load, audit.LedgerOptions[odd, string]{Share: 1})).Close()
	if err := c.Invalidate(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if s := c.Stats().Ledger; s.Failed != 1 {
		t.Errorf("got %+v", s)
	}
}
