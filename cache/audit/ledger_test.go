package audit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/internal/keys"
	"github.com/levee-go/levee/internal/redistest"
)

// Each kind of fault is found within a minute, in the tier that has it, and by each way to hear that the docs name.
func TestALedgerFindsEachFault(t *testing.T) {
	type world struct {
		*testing.T
		m    *redistest.MiniServer
		rows *table
		a, b *process // b only reads
	}
	must := func(w world, err error) {
		if err != nil {
			w.Error(err)
		}
	}
	for name, fault := range map[string]struct {
		play     func(w world)
		replica  bool // the loaders read a replica that lags
		byFeed   bool // a Ledger with a feed finds it
		byWrites bool // a Ledger without one
		tier     cache.Tier
	}{
		"a writer that forgets": {byFeed: true, tier: cache.TierRedis, play: func(w world) {
			w.rows.put(1, "v2")
		}},
		"a DEL by hand": {byFeed: true, tier: cache.TierLocal, play: func(w world) {
			w.rows.put(1, "v2")
			w.m.Del(keys.OfCache("product").Value(0, "1"))
		}},
		"a Set of an older value": {byFeed: true, byWrites: true, tier: cache.TierRedis, play: func(w world) {
			older, _ := w.rows.load(w.Context(), 1)
			must(w, w.a.Write(w.Context(), []int64{1}, func(context.Context) error { w.rows.put(1, "v2"); return nil }))
			must(w, w.a.Set(w.Context(), 1, older))
		}},
		"a replica that lags, without ReplicaLag": {replica: true, byFeed: true, byWrites: true, tier: cache.TierRedis, play: func(w world) {
			must(w, w.a.Write(w.Context(), []int64{1}, func(context.Context) error {
				w.rows.commit(1, "v2", 1500*time.Millisecond) // the look after a second finds v1 in both
				w.rows.tell(1)
				return nil
			}))
			w.a.gives(1, "v1") // loaded from the replica, and stored
		}},
	} {
		for _, feeds := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, with a feed %v", name, feeds), func(t *testing.T) {
				inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
					rows := newTable(9)
					load := rows.load
					if fault.replica {
						load = rows.loadReplica
					}
					var how []any
					if !feeds {
						how = []any{hearing}
					}
					w := world{t, m, rows, open(t, m.Client(t), load, rows, how...), open(t, m.Client(t), load, rows, how...)}
					w.a.gives(1, "v1")
					w.b.gives(1, "v1")
					time.Sleep(time.Second)
					fault.play(w)
					time.Sleep(70 * time.Second)
					synctest.Wait()
					found := map[cache.Tier]bool{}
					for _, p := range []*process{w.a, w.b} {
						p.mu.Lock()
						for _, v := range p.old {
							if found[v.Tier] = true; v.Key != 1 || v.Cached != "v1" || v.Source != "v2" || feeds && v.Table != "product" {
								t.Errorf("got %+v", v)
							}
						}
						p.mu.Unlock()
					}
					want := fault.byFeed && feeds || fault.byWrites && !feeds
					if len(found) > 0 != want || want && !found[fault.tier] {
						t.Errorf("found in %v, want %v in %v; %+v", found, want, fault.tier, w.a.Stats().Ledger)
					}
				})
			})
		}
	}
}

// A process that messages do not reach serves what its memory has, until it notices. Its own Ledger, with a feed,
// finds that, and no other one.
func TestALedgerFindsAProcessThatIsCutOff(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	rows := newTable(9)
	a, b := open(t, server.Client(t), rows.load, rows), open(t, proxy.Client(t), rows.load, rows)
	redistest.Eventually(t, time.Minute, "it is found", func() bool {
		value := strconv.Itoa(rand.Int())
		before, _ := rows.load(t.Context(), 1)
		a.gives(1, before)
		redistest.Eventually(t, 20*time.Second, "messages arrive", func() bool { return b.Stats().Live })
		redistest.Eventually(t, 20*time.Second, "it has the value", func() bool {
			got, _ := b.Get(t.Context(), 1)
			return got == before
		})
		proxy.DropMessages(true)
		if err := a.Write(t.Context(), []int64{1}, func(context.Context) error { rows.put(1, value); return nil }); err != nil {
			t.Error(err)
		}
		time.Sleep(1500 * time.Millisecond)
		proxy.DropMessages(false)
		return b.Stats().Ledger.Old1s > 0
	})
	a.counted(0, 0, 0, 0)
	b.mu.Lock()
	defer b.mu.Unlock()
	if v := b.old[0]; v.Tier != cache.TierLocal || v.After != time.Second {
		t.Errorf("found %+v", v)
	}
}

// An old value is counted at the ages that it reaches, and no other, wherever the looks fall.
func TestOldValuesAreCountedByTheirAge(t *testing.T) {
	for name, test := range map[string]struct {
		old  time.Duration // until it is invalidated
		want []uint64      // in each tier
	}{
		"at once":       {0, []uint64{0, 0, 0, 0}},
		"after 0.9 s":   {900 * time.Millisecond, []uint64{0, 0, 0, 0}},
		"after 1.5 s":   {1500 * time.Millisecond, []uint64{1, 0, 0, 0}},
		"after 9 s":     {9 * time.Second, []uint64{1, 1, 0, 0}},
		"after 30 s":    {30 * time.Second, []uint64{1, 1, 1, 0}},
		"after an hour": {time.Hour, []uint64{1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rows := newTable(3)
				p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.TTL = 2 * time.Hour; o.Local.MaxBytes = -1 })
				p.gives(1, "v1")
				rows.put(1, "v2")
				if time.Sleep(test.old); true {
					if err := p.Invalidate(t.Context(), 1); err != nil {
						t.Error(err)
					}
				}
				for range 700 { // and it is read again, and right
					p.gives(1, "v2")
					time.Sleep(100 * time.Millisecond)
				}
				synctest.Wait()
				if test.old == 0 { // the look that the feed begins may come before it or after
					test.want = []uint64{0, 0, 0, 0}
				}
				p.counted(test.want...)
				if s := p.Stats().Ledger; s.Changes != 1 || s.Looked1s != 1 || s.Looked60s != 1 {
					t.Errorf("got %+v", s)
				}
			})
		})
	}
}

// The times of a value that comes to be after the change begin when it is first seen.
func TestAnOldValueThatComesLaterIsCountedByItsOwnAge(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3)
		p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Local.MaxBytes = -1 })
		p.gives(1, "v1")
		name := keys.OfCache("product").Value(0, "1")
		stored := redistest.Must(m.Get(name))
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Error(err)
		}
		rows.put(1, "v2")
		time.Sleep(1500 * time.Millisecond)
		if err := m.Set(name, stored); err != nil { // an old value is back, and the look after 2 s sees it
			t.Error(err)
		}
		time.Sleep(9 * time.Second)
		m.Del(name) // it was seen for 8.5 s, though the change is 10.5 s old
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		p.counted(1, 1, 0, 0)
	})
}

// A key that changes again while it is watched is looked at for that change too: also if its value was found right
// before, and during the last look.
func TestASecondChangeIsLookedAtToo(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, m *redistest.MiniServer, rows *table, p *process){
		"within a second": func(t *testing.T, _ *redistest.MiniServer, rows *table, p *process) {
			rows.tell(1) // the value is right
			time.Sleep(500 * time.Millisecond)
			rows.put(1, "v2")
		},
		"after two": func(t *testing.T, _ *redistest.MiniServer, rows *table, p *process) {
			rows.tell(1)
			time.Sleep(3 * time.Second)
			rows.put(1, "v2")
		},
		"during the last look": func(t *testing.T, m *redistest.MiniServer, rows *table, p *process) {
			rows.tell(1)
			time.Sleep(time.Minute - time.Millisecond)
			m.Before(func(command string, _ []string) {
				if command == "GETRANGE" {
					time.Sleep(time.Second)
				}
			})
			time.Sleep(500 * time.Millisecond)
			rows.put(1, "v2")
			time.Sleep(time.Second)
			m.Before(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
				rows := newTable(3)
				p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Local.MaxBytes = -1 })
				p.gives(1, "v1")
				play(t, m, rows, p)
				time.Sleep(70 * time.Second)
				synctest.Wait()
				p.counted(1, 1, 1, 1)
			})
		})
	}
}

// Whatever the looks find, they change nothing: no Get is counted, no value is loaded into the cache, refreshed or
// invalidated, no key in Redis changes. A value in both tiers costs one load at each look.
func TestTheLooksChangeNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3)
		p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.TTL = time.Hour; o.Local.TTL = time.Hour; o.Local.HotKeys = 10 })
		p.gives(1, "v1") // and the other two are not cached
		before, stored, loads := p.Stats(), m.Dump(), rows.loads.Load()
		rows.tell(0, 1, 2)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		after := p.Stats()
		if n := rows.loads.Load() - loads; n != 5 {
			t.Errorf("%d loads of a value that is right, want one for each look", n)
		}
		if s := after.Ledger; s.Changes != 3 || s.Looked60s != 6 || s.Looked1s != 6 {
			t.Errorf("got %+v", s)
		}
		after.Ledger = before.Ledger
		if after.Gets != before.Gets || after.Loads != before.Loads || after.LocalTier.Hits != before.LocalTier.Hits || after.LocalTier.Misses != before.LocalTier.Misses ||
			after.LocalTier.Filled != before.LocalTier.Filled || after.Refreshes != before.Refreshes || after.RedisRead.Count() != before.RedisRead.Count() {
			t.Errorf("before: %+v\nafter: %+v", before, after)
		}
		if m.Dump() != stored {
			t.Errorf("Redis has changed:\n%s\n%s", stored, m.Dump())
		}
	})
}

// A value that is stuck is found also if its row never rests and the source may lag.
func TestAStuckValueOfABusyRowIsFoundInSpiteOfReplicaLag(t *testing.T) {
	const lag = time.Second
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(3)
		p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Local.MaxBytes = -1; o.ReplicaLag = lag })
		p.gives(1, "v1")
		for i := range 50 { // by a writer that forgets
			rows.put(1, fmt.Sprint("w", i))
			time.Sleep(2 * lag)
		}
		synctest.Wait()
		if s := p.Stats().Ledger; s.Old1s == 0 || s.Old60s == 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A look that is due when a newer change comes reads the source again: that its value was right before says nothing.
func TestALookAtTheMomentOfAChangeReadsTheSource(t *testing.T) {
	const rounds, places = 40, 4 // four keys are looked at, and the looks at the others are due, when the changes come
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		rows := newTable(rounds)
		p := open(t, m.Client(t), rows.load, rows, func(o *options) { o.Local.MaxBytes = -1; o.TTL = time.Hour })
		for key := range int64(rounds) {
			p.gives(key, "v1")
			rows.tell(key)
		}
		synctest.Wait()
		time.Sleep(5 * time.Second) // each was found right, and its next look is after 10 s
		due, told := make(chan struct{}, rounds), make(chan struct{})
		m.Before(func(command string, _ []string) {
			if command == "GETRANGE" {
				due <- struct{}{}
				<-told
			}
		})
		<-due
		synctest.Wait()
		for key := range int64(rounds) {
			rows.put(key, "v2")
		}
		synctest.Wait()
		m.Before(nil)
		close(told)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if s := p.Stats().Ledger; s.Looked10s > places {
			t.Errorf("%d of %d looks counted as right without a look at the source: %+v", s.Looked10s, rounds, s)
		}
	})
}

// A look that comes too late says nothing: what was old at its time is not counted as right. And the looks that are due do
// not wait for the first looks at all keys.
func TestLateLooksAreNotCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, m *redistest.MiniServer) {
		const changed = 200
		rows := newTable(changed)
		load := func(ctx context.Context, key int64) (string, error) { // four a second
			time.Sleep(time.Second)
			return rows.load(ctx, key)
		}
		p := open(t, m.Client(t), load, rows, func(o *options) { o.TTL = time.Hour; o.Local.MaxBytes = -1 })
		for key := range int64(changed) {
			if err := p.Set(t.Context(), key, "v1"); err != nil {
				t.Error(err)
			}
		}
		for key := range int64(changed) {
			rows.put(key, "v2")
		}
		time.Sleep(10 * time.Second)
		for key := range int64(changed) {
			if err := p.Invalidate(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Hour)
		s := p.Stats().Ledger
		if s.Old1s == 0 || s.Old2s == 0 || s.Looked1s > 2*s.Old1s || s.Looked2s > 2*s.Old2s || s.Skipped == 0 || s.Failed > 0 {
			t.Errorf("all were old for 10 s: %+v", s)
		}
		t.Logf("%+v", s)
	})
}
