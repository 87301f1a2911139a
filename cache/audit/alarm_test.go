package audit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
	"github.com/levee-go/levee/localcache"
)

// Schedules in which nothing is at fault. Each catches a Ledger without one of its rules: that the value is the
// very same one (second change), that the source is read again (back again), that the times begin with the
// doubt (second change told late), that no clock of another host counts (skew), and that a source which lags is
// given its time.
func TestALedgerMakesNoFalseAlarm(t *testing.T) {
	const lag = 3 * time.Second
	type world struct {
		*testing.T
		m    *redistest.MiniServer
		rows *table
		p    *process
	}
	invalidate := func(w world) {
		if err := w.p.Invalidate(w.Context(), 1); err != nil {
			w.Error(err)
		}
	}
	slowly := func(w world, value string) { // a writer whose invalidation comes 0.9 s after its commit
		w.rows.commit(1, value, 0)
		time.Sleep(900 * time.Millisecond)
		invalidate(w)
		w.p.gives(1, value)
	}
	for name, test := range map[string]struct {
		lag  time.Duration
		play func(w world)
	}{
		"a second change at each look": {play: func(w world) {
			w.rows.put(1, "v2")
			time.Sleep(500 * time.Millisecond)
			invalidate(w)
			w.p.gives(1, "v2")
			for i := range 80 { // changes that no feed has told of yet, one of them under way at each look
				slowly(w, fmt.Sprint("w", i))
			}
		}},
		"a second change that is told late": {play: func(w world) {
			w.rows.put(1, "v2")
			invalidate(w)
			w.p.gives(1, "v2")
			time.Sleep(1500 * time.Millisecond)
			slowly(w, "v3")
			time.Sleep(time.Minute)
			w.rows.tell(1)
		}},
		"a change and back again": {play: func(w world) {
			w.rows.put(1, "v2")
			time.Sleep(500 * time.Millisecond)
			w.rows.put(1, "v1")
		}},
		"a rollback": {play: func(w world) {
			err := w.p.Write(w.Context(), []int64{1}, func(context.Context) error { return errors.New("sold out") })
			if err == nil {
				w.Error("the write has succeeded")
			}
			w.rows.tell(1)
			w.p.gives(1, "v1")
		}},
		"a Clear": {play: func(w world) {
			w.rows.put(1, "v2")
			time.Sleep(500 * time.Millisecond)
			if err := w.p.Clear(w.Context()); err != nil {
				w.Error(err)
			}
		}},
		"the end of its TTL": {play: func(w world) {
			time.Sleep(10*time.Minute - 500*time.Millisecond)
			w.rows.put(1, "v2")
		}},
		"values of a host whose clock is five minutes behind": {play: func(w world) {
			stored := storedNow(w.T, 80)
			time.Sleep(5 * time.Minute)
			w.rows.put(1, "w0")
			invalidate(w)
			time.Sleep(500 * time.Millisecond)
			for i, data := range stored { // each was loaded just now, and at each look another change is under way
				if err := w.m.Set(keys.OfCache("product").Value(0, "1"), data); err != nil {
					w.Error(err)
				}
				w.rows.commit(1, fmt.Sprint("w", i+1), 0)
				time.Sleep(900 * time.Millisecond)
			}
			invalidate(w)
		}},
		"a source that lags": {lag: lag, play: func(w world) {
			// The row is set by a writer who has it; the Ledger's source lags for three seconds.
			w.rows.commit(1, "v2", lag)
			if err := w.p.Set(w.Context(), 1, "v2"); err != nil {
				w.Error(err)
			}
			w.rows.tell(1)
		}},
		"a source that lags, and a change that is under way": {lag: lag, play: func(w world) {
			w.rows.commit(1, "v2", lag)
			if err := w.p.Set(w.Context(), 1, "v2"); err != nil {
				w.Error(err)
			}
			w.rows.tell(1)
			time.Sleep(2*lag + 900*time.Millisecond)
			slowly(w, "v3")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rows := newTable(3)
				p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Local.MaxBytes = -1; o.ReplicaLag = test.lag })
				if test.lag > 0 { // its Ledger reads the replica
					p.ledger.Close()
					p.ledger = redistest.Must(audit.NewLedger(p.Cache, rows.loadReplica, ledgerOptions{Share: 1, Feed: rows}))
					t.Cleanup(p.ledger.Close)
				}
				time.Sleep(time.Second) // it reads the feed
				p.gives(1, "v1")
				test.play(world{t, m, rows, p})
				time.Sleep(3 * time.Minute)
				rows.tell(1) // where other values came at each look, those looks were given up
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				p.counted(0, 0, 0, 0)
				if s := p.Stats().Ledger; s.Looked1s == 0 {
					t.Errorf("nothing was looked at: %+v", s)
				}
			})
		})
	}
}

// Run too gives a source that lags its time: what its first look saw may have been older than the value, and what its
// second one sees a change that is under way.
func TestRunGivesALaggingSourceItsTime(t *testing.T) {
	const lag = 3 * time.Second
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3)
		p := open(t, m.Client(t), rows.loadReplica, rows, hearing, func(o *options) { o.Local.MaxBytes = -1; o.ReplicaLag = lag })
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() {
			_ = audit.Run(ctx, p.Cache, audit.Options[int64, string]{Rate: 1000, Settle: 5 * time.Second})
		})
		synctest.Wait()
		rows.commit(1, "v2", lag)
		if err := p.Set(ctx, 1, "v2"); err != nil {
			t.Error(err)
		}
		p.gives(1, "v2")
		time.Sleep(4900 * time.Millisecond)
		rows.commit(1, "v3", 0)
		time.Sleep(500 * time.Millisecond)
		if err := p.Invalidate(ctx, 1); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		if s := p.Stats().Audit; s.Stale > 0 || s.Raced == 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A Codec may give other bytes for an equal value, as msgpack does for most maps. Catches an audit that compares
// bytes alone, and would call each such value stale, for ever.
func TestRunDoesNotCallOtherBytesOfAnEqualValueStale(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3)
		p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Codec = &restless{} })
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { _ = audit.Run(ctx, p.Cache, audit.Options[int64, string]{Rate: 100}) })
		for range 20 {
			synctest.Wait()
			p.gives(1, "v1")
			time.Sleep(time.Second)
		}
		if s := p.Stats().Audit; s.Stale+s.Raced > 0 || s.Compared == 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A field that the Codec leaves out by intent is old in nobody's answer.
func TestALedgerIgnoresWhatTheCodecLeavesOut(t *testing.T) {
	type priced struct {
		ID    int64
		Price int `json:"-"`
	}
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		load := func(_ context.Context, id int64) (priced, error) { return priced{id, 7}, nil }
		c := redistest.Must(cache.New(m.Client(t), load, options{Name: "priced", Logger: quiet, Codec: cache.JSON, Local: localcache.Options{MaxBytes: 1 << 20}}))
		defer c.Close()
		defer redistest.Must(audit.NewLedger(c, load, audit.LedgerOptions[int64, priced]{Share: 1})).Close()
		if err := c.Write(t.Context(), []int64{1}, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		_ = redistest.Must(c.Get(t.Context(), 1))
		time.Sleep(70 * time.Second)
		if s := c.Stats().Ledger; s.Looked60s != 2 || s.Old1s+s.Old2s+s.Old10s+s.Old60s+s.Failed > 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A restless Codec never gives the same bytes twice in a row.
type restless struct{ calls atomic.Uint32 }

func (r *restless) Marshal(v any) ([]byte, error) {
	return append([]byte{byte(r.calls.Add(1))}, v.(string)...), nil
}

func (r *restless) Unmarshal(data []byte, v any) error {
	*v.(*string) = string(data[1:])
	return nil
}

// storedNow returns what a cache stores now for each of n rows, a millisecond apart: for a host whose clock is right
// later on, that is what a host whose clock is behind stores.
func storedNow(t *testing.T, n int) (stored []string) {
	m := redistest.Mini(t)
	c := redistest.Must(cache.New(m.Client(t), newTable(0).load, options{Name: "product", Logger: quiet, Jitter: -1}))
	defer c.Close()
	for i := range n {
		if err := c.Set(t.Context(), 1, fmt.Sprint("w", i)); err != nil {
			t.Fatal(err)
		}
		stored = append(stored, redistest.Must(m.Get(keys.OfCache("product").Value(0, "1"))))
		time.Sleep(time.Millisecond)
	}
	return stored
}

// Writers that forget nothing are not accused, however their writes, the reads and the looks fall together, in two
// processes, each with a Ledger.
func TestALedgerAccusesNobodyInRaces(t *testing.T) {
	t.Parallel()
	length := redistest.Length(4*time.Second, time.Hour)
	server := redistest.Start(t)
	rows := newTable(8)
	ps := []*process{open(t, server.Client(t), rows.load, rows), open(t, server.Client(t), rows.load, rows, hearing)}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex // one writer at a time
	for i := range 4 {
		p := ps[i%2]
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key, value := rand.Int64N(8), strconv.Itoa(rand.Int())
				commit := func() { rows.commit(key, value, 0); time.Sleep(rand.N(5 * time.Millisecond)) }
				var err error
				if mu.Lock(); n%2 == 0 {
					err = p.Write(t.Context(), []int64{key}, func(context.Context) error { commit(); return nil })
				} else {
					commit()
					err = p.Invalidate(t.Context(), key)
				}
				mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if rand.N(2) == 0 {
					rows.tell(key)
				}
				for range 5 {
					_, _ = p.Get(t.Context(), rand.Int64N(8))
					time.Sleep(rand.N(10 * time.Millisecond))
				}
			}
		})
	}
	all.Wait()
	for _, p := range ps {
		p.counted(0, 0, 0, 0)
		s := p.Stats().Ledger
		if t.Logf("%+v", s); s.Looked1s < 8 {
			t.Errorf("hardly looked: %+v", s)
		}
	}
}

// A row that cannot be stored differs from the value that was: its writer has forgotten it too. A value of the memory
// that cannot be encoded is no fault.
func TestARowThatCannotBeEncodedIsCompared(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		var row atomic.Value
		row.Store(1.5)
		load := func(context.Context, int64) (float64, error) { return row.Load().(float64), nil }
		c := redistest.Must(cache.New(m.Client(t), load, options{Name: "weight", Logger: quiet, TTL: time.Hour, Codec: cache.JSON, Local: localcache.Options{MaxBytes: -1}}))
		defer c.Close()
		_ = redistest.Must(c.Get(t.Context(), 1))
		defer redistest.Must(audit.NewLedger(c, load, audit.LedgerOptions[int64, float64]{Share: 1})).Close()
		if err := c.Announce(t.Context(), 1); err != nil {
			t.Error(err)
		}
		_ = redistest.Must(c.Get(t.Context(), 1))
		row.Store(math.NaN())
		time.Sleep(70 * time.Second)
		if s := c.Stats().Ledger; s.Old60s != 1 || s.Failed > 0 {
			t.Errorf("got %+v", s)
		}
	})
}
