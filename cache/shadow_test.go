package cache_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levee-go/levee/cache"
	"github.com/levee-go/levee/cache/audit"
	"github.com/levee-go/levee/internal/redistest"
)

// A shadowed is a service whose reads go through a Shadow.
type shadowed struct {
	*audit.Shadow[int64, string]
	c      *probe[int64, string]
	mu     sync.Mutex
	differ map[int64]audit.StaleValue[int64, string]
}

// shadow puts a Shadow of c before source, whose every key asks the cache.
func shadow(r *rig, c *probe[int64, string], source *rows, change ...func(*audit.ShadowOptions[int64, string])) *shadowed {
	s := &shadowed{c: c, differ: map[int64]audit.StaleValue[int64, string]{}}
	o := audit.ShadowOptions[int64, string]{Share: 1, Settle: 500 * time.Millisecond, Differs: func(v audit.StaleValue[int64, string]) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.differ[v.Key] = v
	}}
	for _, f := range change {
		f(&o)
	}
	s.Shadow = redistest.Must(audit.NewShadow(c.Cache, source.load, o))
	r.Cleanup(func() {
		s.Close()
		c.asked.Store(c.Stats().Gets) // the Shadow has read it, not the probe
	})
	return s
}

func (s *shadowed) stats() cache.ShadowStats { return s.c.Stats().Shadow }

func (s *shadowed) found() map[int64]audit.StaleValue[int64, string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.differ)
}

// reads reads keys until each has asked the cache, and says what the source has.
func (s *shadowed) reads(r *rig, keys int64) {
	r.Helper()
	before, n := s.asked(), uint64(0)
	for key := range keys {
		if _, err := s.Get(r.ctx, key); err != nil && !errors.Is(err, cache.ErrNotFound) {
			r.Errorf("Get(%d): %v", key, err)
		}
		n++
	}
	r.eventually("the cache was asked", func() bool { return s.asked() >= before+n })
}

func (s *shadowed) asked() uint64 {
	n := s.stats()
	return n.Local + n.Redis + n.Null + n.Filter + n.Loaded + n.Stale + n.Failed + n.Skipped
}

// A Shadow finds what a writer has forgotten to invalidate: a value that has changed, one that is gone,
// and one that has come to be where the cache says that there is none. It accuses no other key.
func TestAShadowFindsAWriterThatForgets(t *testing.T) {
	const keys = 60
	inCells(t, fewCells, func(r *rig) {
		source := newRows(r)
		for key := range int64(keys) {
			if key%3 != 2 {
				source.put(key, "v1")
			}
		}
		c := open(r, source.source())
		s := shadow(r, c, source)
		for range 3 {
			s.reads(r, keys)
		}
		forgets := func(key int64) bool { return key%10 == 1 }
		changes := func(key int64) {
			switch key % 3 {
			case 0, 2: // a change, and an insert
				source.put(key, "v2")
			case 1:
				source.remove(key)
			}
		}
		for key := range int64(keys) {
			if !forgets(key) {
				changes(key)
				if err := c.Invalidate(r.ctx, key); err != nil {
					r.Fatal(err)
				}
			}
		}
		s.reads(r, keys) // an invalidation ends one in 16,384 other local values too, perhaps one that is forgotten below
		for key := range int64(keys) {
			if forgets(key) {
				changes(key)
			}
		}
		if s.reads(r, keys); r.near() == cache.TierSource { // no tier holds anything
			return
		}
		time.Sleep(600 * time.Millisecond)
		r.eventually("what was forgotten is found", func() bool {
			n := s.stats()
			return n.Differs+n.Raced >= keys/10 && len(s.found()) == int(n.Differs)
		})
		for key := range int64(keys) {
			got, ok := s.found()[key]
			if ok != forgets(key) {
				r.Errorf("%d: %+v, %v", key, got, ok)
			}
			if ok && (got.Null != (key%3 == 2) || got.Gone != (key%3 == 1) || !got.Null && got.Cached != "v1" || !got.Gone && got.Source != "v2") {
				r.Errorf("%d: %+v", key, got)
			}
		}
		if n := s.stats(); n.Failed+n.Skipped+n.Unjudged > 0 || n.Loaded == 0 || n.Equal == 0 || n.HitRatio() < 0.3 || n.HitRatio() > 0.9 {
			r.Errorf("got %+v, ratio %v", n, n.HitRatio())
		}
	})
}

// Writers that forget nothing are not accused, however their writes, the reads and the looks fall together.
// Defect: what differs from the answer of the read is accused at once, or without the same look at the
// cache.
func TestAShadowAccusesNobodyInRaces(t *testing.T) {
	t.Parallel()
	length := redistest.Length(4*time.Second, time.Hour)
	r := onServer(t, redistest.Start(t), cell{redis: "real", local: true})
	source := newRows(r, 0, 1, 2, 3, 4, 5, 6, 7)
	a, b := open(r, source.source()), open(r, source.source())
	s := shadow(r, a, source, func(o *audit.ShadowOptions[int64, string]) { o.Settle = 2 * time.Second })
	began := time.Now()
	goesOn := func() bool { // a busy machine has fewer races
		n, ran := s.stats(), time.Since(began)
		return ran < length || ran < time.Minute && (n.Raced == 0 || n.Equal < 100)
	}
	var all sync.WaitGroup
	var mu sync.Mutex // one writer at a time
	for i := range 4 {
		c := []*probe[int64, string]{a, b}[i%2]
		all.Go(func() {
			for goesOn() {
				key, value := rand.Int64N(8), "v"+strconv.Itoa(rand.Int())
				mu.Lock()
				err := c.Write(r.ctx, []int64{key}, func(context.Context) error {
					source.put(key, value)
					time.Sleep(rand.N(5 * time.Millisecond))
					return nil
				})
				mu.Unlock()
				if err != nil {
					r.Error(err)
				}
				for range 5 {
					_, _ = s.Get(r.ctx, rand.Int64N(8))
					time.Sleep(rand.N(3 * time.Millisecond))
				}
			}
		})
	}
	all.Wait()
	time.Sleep(2500 * time.Millisecond)
	n := s.stats()
	r.Logf("%+v", n)
	if n.Differs > 0 {
		r.Errorf("accused: %v", s.found())
	}
	if n.Raced == 0 || n.Equal < 100 {
		r.Errorf("no race: %+v", n)
	}
}

// A row changes while it is read, and again just before the second look: nobody has forgotten anything. Catches
// a Shadow that leaves out the look at once, by which the cache's answer is older than the source's and not newer;
// one that accuses another value than it doubted; and one that does not wait.
func TestASecondChangeIsNoDifference(t *testing.T) {
	type schedule struct {
		beforeTheRead, afterTheLoad func()
	}
	for name, of := range map[string]func(change, invalidate func()) schedule{
		"the cache has the newer value": func(change, invalidate func()) schedule {
			return schedule{func() {}, func() { change(); invalidate() }}
		},
		"the write is under way": func(change, invalidate func()) schedule {
			return schedule{func() { change(); time.AfterFunc(100*time.Millisecond, invalidate) }, func() {}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCells(t, []cell{{redis: "mini"}, {redis: "mini", local: true}, {redis: "none", local: true}}, func(r *rig) {
				source := newRows(r, 1)
				c := open(r, source.source())
				c.gives(r, 1, "v1")
				ends := func() {
					if err := c.Invalidate(r.ctx, 1); err != nil {
						r.Error(err)
					}
				}
				happens := of(func() { source.put(1, "v2") }, func() { ends(); c.gives(r, 1, "v2") })
				var first sync.Once
				load := func(ctx context.Context, key int64) (string, error) {
					value, err := source.load(ctx, key)
					first.Do(happens.afterTheLoad)
					return value, err
				}
				s := redistest.Must(audit.NewShadow(c.Cache, load, audit.ShadowOptions[int64, string]{Share: 1, Settle: 2 * time.Second}))
				defer func() {
					s.Close()
					c.asked.Store(c.Stats().Gets)
				}()
				happens.beforeTheRead()
				if _, err := s.Get(r.ctx, 1); err != nil {
					r.Error(err)
				}
				time.Sleep(1990 * time.Millisecond)
				source.put(1, "v3")
				time.Sleep(100 * time.Millisecond)
				ends()
				time.Sleep(3 * time.Second)
				if n := c.Stats().Shadow; n.Differs > 0 || n.Raced != 1 {
					r.Errorf("got %+v", n)
				}
			})
		})
	}
}

// Whatever the cache has or cannot do, a read gets what the source gives, and its error.
func TestAShadowAnswersFromTheSourceAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := onFailing(t, server, cell{redis: "real"})
	source := newRows(r, 1, 2)
	c := open(r, source.source())
	s := shadow(r, c, source)
	r.eventually("the cache has a wrong value", func() bool { return c.Set(r.ctx, 1, "wrong") == nil })
	broken := errors.New("broken")
	gives := func(what string) {
		t.Helper()
		if got, err := s.Get(r.ctx, 1); got != "v1" || err != nil {
			t.Errorf("%s: Get: %q, %v", what, got, err)
		}
		if got, err := s.GetMany(r.ctx, []int64{1, 2, 3}); err != nil || len(got) != 2 || got[1] != "v1" || got[2] != "v1" {
			t.Errorf("%s: GetMany: %v, %v", what, got, err)
		}
		if _, err := s.Get(r.ctx, 3); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		source.slowly(func(context.Context, int64) error { return broken })
		if _, err := s.Get(r.ctx, 1); !errors.Is(err, broken) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := s.GetMany(r.ctx, []int64{1}); !errors.Is(err, broken) {
			t.Errorf("%s: %v", what, err)
		}
		source.slowly(nil)
	}
	gives("the cache is wrong")
	server.Stop()
	gives("Redis hangs")
	server.Cont()
	r.eventually("Redis is used", func() bool { return c.Invalidate(r.ctx, 1) == nil })
	s.Close()
	gives("closed")
	before := s.asked()
	gives("closed")
	if n := s.asked(); n != before {
		t.Errorf("asked after Close: %d", n-before)
	}
}

// All reads of a share of the keys ask the cache, and none of the others.
func TestAShadowAsksForAShareOfTheKeys(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		const keys = 4000
		source := newRows(r)
		s := shadow(r, open(r, source.source()), source, func(o *audit.ShadowOptions[int64, string]) { o.Share = 0.25 })
		var before uint64
		for round := range 2 {
			for key := range int64(keys) {
				_, _ = s.Get(r.ctx, key)
				if key%100 == 99 {
					time.Sleep(time.Millisecond) // the workers are done
				}
			}
			n := s.asked() - before
			if n < keys/5 || n > keys*3/10 || round == 1 && n != before {
				r.Errorf("round %d: %d reads asked, after %d", round, n, before)
			}
			before += n
		}
		if n := s.stats(); n.Skipped > 0 || n.Null == 0 {
			r.Errorf("got %+v", n)
		}
	})
}

// A cutting codec keeps the first byte of a string.
type cutting struct{}

func (cutting) Marshal(v any) ([]byte, error)      { return []byte(v.(string)[:1]), nil }
func (cutting) Unmarshal(data []byte, v any) error { *v.(*string) = string(data); return nil }

// What the codec loses is a difference once Redis answers.
func TestAShadowFindsWhatTheCodecLoses(t *testing.T) {
	inCells(t, []cell{{redis: "mini"}}, func(r *rig) {
		source := newRows(r, 1)
		s := shadow(r, open(r, source.source(), func(o *cache.Options) { o.Codec = cutting{} }), source)
		for range 2 {
			s.reads(r, 2)
			time.Sleep(time.Second)
		}
		if n := s.stats(); n.Redis != 1 || n.Differs != 1 {
			r.Fatalf("got %+v", n)
		}
		if v := s.found()[1]; v.Cached != "v" || v.Source != "v1" {
			r.Errorf("got %+v", v)
		}
	})
}

// A key that is read all the time and is old costs a look in each Settle, and takes no place from others.
func TestAHotKeyThatDiffersHidesNoOther(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		source := newRows(r, 1, 2)
		c := open(r, source.source())
		s := shadow(r, c, source)
		s.reads(r, 3)
		source.put(1, "v2")
		source.put(2, "v2")
		const reads = 4000
		for i := range reads {
			_, _ = s.Get(r.ctx, 1)
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		_, _ = s.Get(r.ctx, 2)
		time.Sleep(time.Second)
		if found := s.found(); len(found) != 2 {
			r.Errorf("found %v", found)
		}
		if n := s.stats(); n.Differs > 4 || n.Unjudged+n.Skipped > 0 || n.Local < reads || source.loads(1) > reads+20 {
			r.Errorf("%d loads, %+v", source.loads(1), n)
		}
	})
}

// What a loader calls absent, is: and every look has the values of the context of its read.
func TestAShadowReadsItsSourceAsTheCacheDoes(t *testing.T) {
	type tenant struct{}
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		var gone atomic.Bool
		load := func(ctx context.Context, _ int64) (string, error) {
			switch {
			case ctx.Value(tenant{}) != "a":
				return "", errBroken
			case gone.Load():
				return "", sql.ErrNoRows
			}
			return "v1", nil
		}
		c := open(r, cache.Source[int64, string]{Load: load})
		var found atomic.Int64
		s := redistest.Must(audit.NewShadow(c.Cache, load, audit.ShadowOptions[int64, string]{
			Share: 1, Settle: time.Second, Differs: func(v audit.StaleValue[int64, string]) {
				if v.Gone && v.Cached == "v1" {
					found.Add(1)
				}
			},
		}))
		defer func() {
			s.Close()
			c.asked.Store(c.Stats().Gets)
		}()
		ctx := context.WithValue(r.ctx, tenant{}, "a")
		for range 2 {
			if _, err := s.Get(ctx, 1); err != nil {
				r.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		gone.Store(true)
		if _, err := s.Get(ctx, 1); !errors.Is(err, sql.ErrNoRows) {
			r.Errorf("got %v", err)
		}
		if got, err := s.GetMany(ctx, []int64{1, 2}); err != nil || len(got) > 0 {
			r.Errorf("got %v, %v", got, err)
		}
		time.Sleep(2 * time.Second)
		if n := c.Stats().Shadow; found.Load() != 1 || n.Failed+n.Unjudged > 0 {
			r.Errorf("found %d, %+v", found.Load(), n)
		}
	})
}

// A value that its reader changes is compared as it was returned, if the source has a Clone; and a key
// that the cache does not take is counted.
func TestAShadowComparesWhatWasReturned(t *testing.T) {
	inCells(t, []cell{{redis: "none", local: true}}, func(r *rig) {
		load := func(context.Context, string) (map[string]int, error) { return map[string]int{"a": 1}, nil }
		c := redistest.Must(cache.NewFrom(nil, cache.Source[string, map[string]int]{Load: load, Clone: maps.Clone[map[string]int]}, r.options(nil)))
		defer c.Close()
		s := redistest.Must(audit.NewShadow(c, load, audit.ShadowOptions[string, map[string]int]{Share: 1}))
		defer s.Close()
		for range 100 {
			v, err := s.Get(r.ctx, "1")
			if err != nil {
				r.Fatal(err)
			}
			v["mine"] = 2
		}
		_, _ = s.Get(r.ctx, strings.Repeat("long", 1000))
		time.Sleep(time.Second)
		if n := c.Stats().Shadow; n.Equal != n.Local || n.Local == 0 || n.Failed != 1 {
			r.Errorf("got %+v", n)
		}
	})
}

func TestAShadowRefusesWhatCannotWork(t *testing.T) {
	inCells(t, []cell{{redis: "none"}}, func(r *rig) {
		source := newRows(r)
		c := open(r, source.source())
		for says, o := range map[string]audit.ShadowOptions[int64, string]{
			"Share": {Share: 1.1}, "Share must": {Share: -1}, "Settle": {Settle: -1},
		} {
			if _, err := audit.NewShadow(c.Cache, source.load, o); err == nil || !strings.Contains(err.Error(), says) {
				r.Errorf("%+v: %v", o, err)
			}
		}
		if _, err := audit.NewShadow(c.Cache, nil, audit.ShadowOptions[int64, string]{}); err == nil {
			r.Error("a Shadow without a load")
		}
	})
}
